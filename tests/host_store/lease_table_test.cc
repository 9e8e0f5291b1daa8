// The lease table alone: each rule of docs/LEASES.md by name, fault cases 12, 13, 17, 18 and 19.
#include "shm/lease_table.h"

#include <gtest/gtest.h>

#include <numeric>

namespace optlease {
namespace {

constexpr Rank kRank{0};
constexpr uint32_t kChunks = 8;
constexpr uint32_t kSlots = 14;  // 6 shadow slots
constexpr uint64_t kLeaseMs = 100;
constexpr uint64_t kGraceMs = 10;

// A rank of one-slot chunks whose committed versions the test keeps itself.
class LeaseTableTest : public testing::Test {
 protected:
  LeaseTableTest() { add(kRank); }

  void add(Rank rank, Incarnation last = {}) {
    std::vector<SlotIndex> unreferenced;
    for (uint32_t slot = kChunks; slot < kSlots; ++slot) unreferenced.push_back(SlotIndex{slot});
    table_.add_rank(rank, std::vector<uint32_t>(kChunks, 1), unreferenced, last);
    auto& referenced = referenced_[rank];
    for (uint32_t slot = 0; slot < kChunks; ++slot) referenced.push_back(SlotIndex{slot});
  }
  Status hello(uint64_t incarnation, Rank rank = kRank) {
    return table_.hello(rank, Incarnation{incarnation}, now_);
  }
  Result<Lease> grant(uint32_t first, uint32_t count, uint64_t incarnation = 1, Step step = 1,
                      Rank rank = kRank) {
    return table_.grant(rank, Incarnation{incarnation}, step, first, count, now_);
  }
  Lease granted(uint32_t first, uint32_t count, uint64_t incarnation = 1, Step step = 1,
                Rank rank = kRank) {
    const Result<Lease> lease = grant(first, count, incarnation, step, rank);
    EXPECT_TRUE(lease.is_ok()) << lease.status().text();
    return lease.is_ok() ? lease.value() : Lease{};
  }
  static std::vector<SlotEntry> entries(const Lease& lease, uint32_t begin, uint32_t count) {
    std::vector<SlotEntry> out;
    for (uint32_t i = 0; i < count; ++i) out.push_back({lease.shadow[begin + i].value, 0, 7});
    return out;
  }
  StatusCode may_commit(const Lease& lease, uint32_t first, uint32_t count, uint32_t begin = 0) {
    return table_
        .may_commit(lease.rank, lease.incarnation, lease.id, lease.step, first, count,
                    entries(lease, begin, count), now_)
        .code();
  }
  StatusCode commit(const Lease& lease, uint32_t first, uint32_t count, uint32_t begin = 0) {
    const StatusCode allowed = may_commit(lease, first, count, begin);
    if (allowed != StatusCode::kOk) return allowed;
    std::vector<SlotIndex> freed;
    for (uint32_t i = 0; i < count; ++i) {
      SlotIndex& current = referenced_[lease.rank][first + i];
      freed.push_back(current);
      current = lease.shadow[begin + i];
    }
    table_.committed(lease.id, count, freed);
    return StatusCode::kOk;
  }
  void advance_ms(uint64_t ms) {
    now_ += ms;
    table_.advance(now_);
  }
  void expect_sound() {
    for (const auto& [rank, referenced] : referenced_) {
      EXPECT_EQ(table_.check_invariants(rank, referenced, kSlots), "") << "rank " << rank.value;
    }
  }
  void TearDown() override { expect_sound(); }

  uint64_t now_ = 1000;
  LeaseTable table_{{.lease_ms = kLeaseMs, .quarantine_grace_ms = kGraceMs, .window_chunks = 4}};
  std::map<Rank, std::vector<SlotIndex>> referenced_;
};

TEST_F(LeaseTableTest, GrantsNothingBeforeHello) {
  EXPECT_EQ(grant(0, 1).status().code(), StatusCode::kStaleIncarnation);
}

TEST_F(LeaseTableTest, GrantsDisjointFreeSlots) {
  ASSERT_TRUE(hello(1));
  const Lease a = granted(0, 3);
  const Lease b = granted(3, 3);
  EXPECT_NE(a.id, b.id);
  EXPECT_EQ(table_.free_slots(kRank), 0u);
  EXPECT_EQ(table_.lease_count(kRank), 2u);
}

TEST_F(LeaseTableTest, RefusesWindowPastLastChunk) {
  ASSERT_TRUE(hello(1));
  EXPECT_EQ(grant(6, 3).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(grant(UINT32_MAX, 2).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(grant(0, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(grant(0, 5).status().code(), StatusCode::kInvalidArgument) << "larger than a window";
  EXPECT_EQ(grant(0, 1, 1, -1).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(LeaseTableTest, AnswersARepeatedRequestWithTheSameLease) {
  ASSERT_TRUE(hello(1));
  const Lease a = granted(2, 2);
  const Lease again = granted(2, 2);
  EXPECT_EQ(a.id, again.id);
  EXPECT_EQ(a.shadow, again.shadow);
  EXPECT_EQ(table_.lease_count(kRank), 1u);
}

TEST_F(LeaseTableTest, IsBusyForAnOverlapAndForTooFewSlots) {
  ASSERT_TRUE(hello(1));
  granted(2, 2);
  EXPECT_EQ(grant(3, 2).status().code(), StatusCode::kBusy);
  EXPECT_EQ(grant(1, 2).status().code(), StatusCode::kBusy);
  EXPECT_EQ(grant(2, 1).status().code(), StatusCode::kBusy);
  granted(4, 4);
  EXPECT_EQ(grant(0, 1).status().code(), StatusCode::kBusy) << "no shadow slot is left";
}

TEST_F(LeaseTableTest, CommitsChunksInOrderAndFreesTheOldSlots) {
  ASSERT_TRUE(hello(1));
  const Lease lease = granted(0, 3);
  EXPECT_EQ(may_commit(lease, 1, 1, 1), StatusCode::kInvalidArgument) << "out of order";
  EXPECT_EQ(may_commit(lease, 0, 1, 1), StatusCode::kInvalidArgument) << "another's slot";
  EXPECT_EQ(may_commit(lease, 0, 4 - 1, 0), StatusCode::kOk);
  EXPECT_EQ(commit(lease, 0, 2), StatusCode::kOk);
  expect_sound();
  EXPECT_EQ(commit(lease, 0, 2), StatusCode::kInvalidArgument) << "those are committed";
  EXPECT_EQ(commit(lease, 2, 1, 2), StatusCode::kOk);
  EXPECT_EQ(table_.find(lease.id), nullptr) << "a lease ends with its last chunk";
  EXPECT_EQ(table_.free_slots(kRank), kSlots - kChunks);
}

TEST_F(LeaseTableTest, RefusesAnotherStepThanTheLeases) {
  ASSERT_TRUE(hello(1));
  Lease lease = granted(0, 1);
  lease.step = 2;
  EXPECT_EQ(may_commit(lease, 0, 1), StatusCode::kStaleStep);
}

// Fault case 12.
TEST_F(LeaseTableTest, RefusesADelayedCommitOfAnEndedLeaseAfterTheNextWasGranted) {
  ASSERT_TRUE(hello(1));
  const Lease first = granted(0, 2);
  ASSERT_TRUE(hello(1)) << "it drained and starts over";
  const Lease second = granted(0, 2);
  EXPECT_NE(first.id, second.id);
  EXPECT_EQ(may_commit(first, 0, 2), StatusCode::kStaleLease);
  EXPECT_EQ(commit(second, 0, 2), StatusCode::kOk);
  EXPECT_EQ(may_commit(first, 0, 2), StatusCode::kStaleLease);
}

// Fault case 13: SIGSTOP past the lease, the window is granted again, SIGCONT.
TEST_F(LeaseTableTest, QuarantinesTheSlotsOfAStoppedLesseeUntilItsHello) {
  ASSERT_TRUE(hello(1));
  const Lease first = granted(0, 2);
  advance_ms(kLeaseMs);
  EXPECT_EQ(table_.quarantine(kRank).slots, 2u);
  const Lease second = granted(0, 2);
  for (SlotIndex slot : second.shadow) {
    EXPECT_EQ(std::count(first.shadow.begin(), first.shadow.end(), slot), 0)
        << "slot " << slot.value << " may still be written";
  }
  EXPECT_EQ(may_commit(first, 0, 2), StatusCode::kStaleLease);
  EXPECT_EQ(commit(second, 0, 2), StatusCode::kOk);
  advance_ms(100 * kLeaseMs);
  EXPECT_EQ(table_.quarantine(kRank).slots, 2u) << "time alone frees nothing";
  ASSERT_TRUE(hello(1));
  EXPECT_EQ(table_.quarantine(kRank).slots, 0u);
  EXPECT_EQ(table_.free_slots(kRank), kSlots - kChunks);
}

TEST_F(LeaseTableTest, QuarantinesALostLesseesSlotsUntilItIsReapedAndTheGraceIsOver) {
  ASSERT_TRUE(hello(1));
  const Lease lease = granted(0, 3);
  table_.lost(kRank, Incarnation{1}, now_);
  EXPECT_EQ(may_commit(lease, 0, 3), StatusCode::kStaleIncarnation);
  ASSERT_TRUE(hello(2));
  advance_ms(1000 * kLeaseMs);
  EXPECT_EQ(table_.quarantine(kRank).waiting_for_reap, 3u)
      << "its successor's hello proves nothing";
  EXPECT_FALSE(table_.older_are_reaped(kRank));
  table_.reaped(kRank, Incarnation{1}, now_);
  EXPECT_TRUE(table_.older_are_reaped(kRank));
  EXPECT_EQ(table_.quarantine(kRank).slots, 3u);
  EXPECT_EQ(table_.quarantine(kRank).waiting_for_reap, 0u);
  EXPECT_EQ(table_.next_deadline_ms(), now_ + kGraceMs);
  advance_ms(kGraceMs - 1);
  EXPECT_EQ(table_.quarantine(kRank).slots, 3u);
  table_.reaped(kRank, Incarnation{1}, now_);  // told again: the grace is not started anew
  advance_ms(1);
  EXPECT_EQ(table_.free_slots(kRank), kSlots - kChunks);
}

// It may write the gradient shard, for which it needs no lease.
TEST_F(LeaseTableTest, AnOlderIncarnationCountsUntilItIsReapedThoughItNeverHadALease) {
  ASSERT_TRUE(hello(1));
  EXPECT_TRUE(table_.older_are_reaped(kRank)) << "it is itself no older one";
  table_.lost(kRank, Incarnation{1}, now_);
  EXPECT_FALSE(table_.older_are_reaped(kRank));
  ASSERT_TRUE(hello(3)) << "2 was started, and nobody says what became of it";
  table_.reaped(kRank, Incarnation{1}, now_);
  EXPECT_TRUE(table_.older_are_reaped(kRank)) << "2 never said hello and was never told of";
  table_.started(kRank, Incarnation{4}, now_);
  table_.started(kRank, Incarnation{5}, now_);
  EXPECT_FALSE(table_.older_are_reaped(kRank));
  table_.reaped(kRank, Incarnation{3}, now_);
  EXPECT_FALSE(table_.older_are_reaped(kRank)) << "4 was superseded and is not reaped";
  table_.reaped(kRank, Incarnation{4}, now_);
  EXPECT_TRUE(table_.older_are_reaped(kRank)) << "5, which is not attached, is no older one";
}

TEST_F(LeaseTableTest, FencesOlderIncarnationsAtANewersHello) {
  ASSERT_TRUE(hello(1));
  const Lease lease = granted(0, 1);
  ASSERT_TRUE(hello(2));
  EXPECT_EQ(hello(1).code(), StatusCode::kStaleIncarnation);
  EXPECT_EQ(may_commit(lease, 0, 1), StatusCode::kStaleIncarnation);
  EXPECT_EQ(table_.heartbeat(kRank, Incarnation{1}, now_).code(), StatusCode::kStaleIncarnation);
  EXPECT_EQ(table_.quarantine(kRank).slots, 1u);
}

TEST_F(LeaseTableTest, RefusesTheHelloOfALostOrReapedIncarnation) {
  table_.lost(kRank, Incarnation{3}, now_);
  EXPECT_EQ(hello(3).code(), StatusCode::kStaleIncarnation);
  EXPECT_EQ(hello(2).code(), StatusCode::kStaleIncarnation);
  EXPECT_TRUE(hello(4));
  table_.reaped(kRank, Incarnation{4}, now_);
  EXPECT_EQ(hello(4).code(), StatusCode::kStaleIncarnation);
  EXPECT_EQ(hello(0).code(), StatusCode::kStaleIncarnation);
}

TEST_F(LeaseTableTest, HeartbeatsRenewLiveLeasesAndReviveNoneThatExpired) {
  ASSERT_TRUE(hello(1));
  const Lease old = granted(0, 1);
  now_ += kLeaseMs - 1;
  ASSERT_TRUE(table_.heartbeat(kRank, Incarnation{1}, now_));
  now_ += kLeaseMs - 1;
  EXPECT_EQ(may_commit(old, 0, 1), StatusCode::kOk);
  now_ += 1;  // nobody called advance()
  ASSERT_TRUE(table_.heartbeat(kRank, Incarnation{1}, now_));
  EXPECT_EQ(may_commit(old, 0, 1), StatusCode::kStaleLease);
  EXPECT_EQ(table_.lease_count(kRank), 0u);
  EXPECT_EQ(table_.advance(now_).size(), 1u) << "it is still reported";
}

// Whether or not advance() has run. ExpiredLeases has every kind of message.
TEST_F(LeaseTableTest, NothingIsDoneByAnExpiredLease) {
  for (const bool advanced : {false, true}) {
    ASSERT_TRUE(hello(1));
    const Lease lease = granted(0, 2);
    now_ += kLeaseMs;
    if (advanced) table_.advance(now_);
    EXPECT_EQ(may_commit(lease, 0, 2), StatusCode::kStaleLease);
    EXPECT_EQ(may_commit(lease, 0, 1), StatusCode::kStaleLease);
    EXPECT_EQ(table_.give_back(kRank, Incarnation{1}, lease.id, now_).code(),
              StatusCode::kStaleLease);
    ASSERT_TRUE(table_.heartbeat(kRank, Incarnation{1}, now_));
    EXPECT_EQ(may_commit(lease, 0, 2), StatusCode::kStaleLease);
    EXPECT_NE(granted(0, 2).id, lease.id) << "a repeated request is a new lease";
    EXPECT_EQ(may_commit(lease, 0, 2), StatusCode::kStaleLease);
    EXPECT_EQ(table_.quarantine(kRank).slots, 2u);
    expect_sound();
  }
}

// Fault case 18.
TEST_F(LeaseTableTest, OneRanksExpiryLeavesTheOthersUntouched) {
  add(Rank{1});
  ASSERT_TRUE(hello(1));
  ASSERT_TRUE(hello(1, Rank{1}));
  const Lease expiring = granted(0, 2);
  now_ += kLeaseMs / 2;
  const Lease other = granted(0, 2, 1, 1, Rank{1});
  now_ += kLeaseMs / 2;
  EXPECT_EQ(table_.advance(now_).size(), 1u);
  EXPECT_EQ(may_commit(expiring, 0, 2), StatusCode::kStaleLease);
  EXPECT_EQ(table_.quarantine(Rank{1}).slots, 0u);
  EXPECT_EQ(commit(other, 0, 2), StatusCode::kOk);
}

TEST_F(LeaseTableTest, RefusesAnotherRanksOrIncarnationsLease) {
  add(Rank{1});
  ASSERT_TRUE(hello(1));
  ASSERT_TRUE(hello(1, Rank{1}));
  Lease lease = granted(0, 1);
  EXPECT_EQ(table_.give_back(Rank{1}, Incarnation{1}, lease.id, now_).code(),
            StatusCode::kStaleLease);
  lease.rank = Rank{1};
  EXPECT_EQ(may_commit(lease, 0, 1), StatusCode::kStaleLease);
  lease.id = LeaseId{999};
  EXPECT_EQ(may_commit(lease, 0, 1), StatusCode::kStaleLease);
}

TEST_F(LeaseTableTest, TakesBackALeaseThatIsReturned) {
  ASSERT_TRUE(hello(1));
  const Lease lease = granted(0, 3);
  ASSERT_EQ(commit(lease, 0, 1), StatusCode::kOk);
  ASSERT_TRUE(table_.give_back(kRank, Incarnation{1}, lease.id, now_));
  EXPECT_EQ(table_.free_slots(kRank), kSlots - kChunks);
  EXPECT_EQ(may_commit(lease, 1, 1, 1), StatusCode::kStaleLease);
}

class RecoveredLeaseTableTest : public LeaseTableTest {
 protected:
  static constexpr Rank kRecovered{7};
  static constexpr uint32_t kShadow = kSlots - kChunks;
  RecoveredLeaseTableTest() { add(kRecovered, Incarnation{5}); }
  size_t free() { return table_.free_slots(kRecovered); }
};

TEST_F(RecoveredLeaseTableTest, WaitsForTheLastIncarnationsHelloAndTheLaunchersWord) {
  EXPECT_EQ(free(), 0u);
  ASSERT_TRUE(hello(5, kRecovered));
  EXPECT_EQ(free(), 0u) << "an older zombie may be writing";
  EXPECT_FALSE(table_.older_are_reaped(kRecovered));
  table_.started(kRecovered, Incarnation{5}, now_);
  EXPECT_EQ(free(), kShadow);
  EXPECT_TRUE(table_.older_are_reaped(kRecovered));
}

TEST_F(RecoveredLeaseTableTest, WaitsForOlderOnesThatTheLauncherKnowsToBeLost) {
  table_.lost(kRecovered, Incarnation{3}, now_);
  table_.started(kRecovered, Incarnation{5}, now_);
  ASSERT_TRUE(hello(5, kRecovered));
  advance_ms(1000);
  EXPECT_EQ(free(), 0u);
  EXPECT_FALSE(table_.older_are_reaped(kRecovered));
  table_.reaped(kRecovered, Incarnation{3}, now_);
  EXPECT_EQ(free(), 0u);
  advance_ms(kGraceMs);
  EXPECT_EQ(free(), kShadow);
  EXPECT_TRUE(table_.older_are_reaped(kRecovered));
}

TEST_F(RecoveredLeaseTableTest, WaitsForTheReapingWhereTheLastIncarnationIsGone) {
  table_.started(kRecovered, Incarnation{6}, now_);
  ASSERT_TRUE(hello(6, kRecovered));
  advance_ms(1000);
  EXPECT_EQ(free(), 0u);
  EXPECT_FALSE(table_.older_are_reaped(kRecovered));
  table_.reaped(kRecovered, Incarnation{5}, now_);
  EXPECT_TRUE(table_.older_are_reaped(kRecovered));
  advance_ms(kGraceMs);
  EXPECT_EQ(free(), kShadow);
}

// Attached to an earlier life of the store, which granted it nothing: 5 is the last on record.
TEST_F(RecoveredLeaseTableTest, WaitsForALostOneThatIsNewerThanTheRecordedOne) {
  table_.lost(kRecovered, Incarnation{6}, now_);
  table_.started(kRecovered, Incarnation{7}, now_);
  table_.reaped(kRecovered, Incarnation{5}, now_);
  ASSERT_TRUE(hello(7, kRecovered));
  EXPECT_FALSE(table_.older_are_reaped(kRecovered));
  table_.reaped(kRecovered, Incarnation{6}, now_);
  EXPECT_TRUE(table_.older_are_reaped(kRecovered));
}

TEST_F(RecoveredLeaseTableTest, RefusesIncarnationsOlderThanTheLast) {
  EXPECT_EQ(hello(4, kRecovered).code(), StatusCode::kStaleIncarnation);
}

// Fault case 19.
TEST(LeaseTable, KeepsFiveHundredTwelveLeasesInFlight) {
  constexpr uint32_t kRanks = 8;
  LeaseTable table({.lease_ms = 1000, .quarantine_grace_ms = 1, .window_chunks = 2});
  constexpr uint32_t kChunkCount = 2 * (kLeasesInFlightMax + 1);
  std::vector<SlotIndex> free(3 * kChunkCount);
  for (uint32_t i = 0; i < free.size(); ++i) free[i] = SlotIndex{i};
  for (uint32_t r = 0; r < kRanks; ++r) {
    table.add_rank(Rank{r}, std::vector<uint32_t>(kChunkCount, 3), free, Incarnation{});
    ASSERT_TRUE(table.hello(Rank{r}, Incarnation{1}, 0));
  }
  std::vector<Lease> leases;
  for (uint32_t w = 0; w < kLeasesInFlightMax; ++w) {
    for (uint32_t r = 0; r < kRanks; ++r) {
      const auto lease = table.grant(Rank{r}, Incarnation{1}, 0, 2 * w, 2, w);
      ASSERT_TRUE(lease.is_ok()) << lease.status().text();
      leases.push_back(lease.value());
    }
  }
  ASSERT_EQ(leases.size(), 512u);
  EXPECT_EQ(table.grant(Rank{0}, Incarnation{1}, 0, 2 * kLeasesInFlightMax, 2, 1).status().code(),
            StatusCode::kBusy);
  for (const Lease& lease : leases) {
    std::vector<SlotEntry> shadow;
    for (SlotIndex slot : lease.shadow) shadow.push_back({slot.value, 0, 0});
    ASSERT_TRUE(table.may_commit(lease.rank, lease.incarnation, lease.id, 0, lease.first_chunk, 2,
                                 shadow, 100));
    table.committed(lease.id, 2, {});
  }
  EXPECT_EQ(table.lease_count(Rank{3}), 0u);
}

}  // namespace
}  // namespace optlease
