// Seeded random operations on the lease table against a naive model of it: per slot, who may write
// it and why. The model is slow and obvious; the table must agree after every operation.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "shm/lease_table.h"
#include "tests/support/test_seed.h"

namespace optlease {
namespace {

constexpr uint32_t kChunkCount = 6;
constexpr uint32_t kWindow = 3;
constexpr uint64_t kLeaseMs = 40;
constexpr uint64_t kGraceMs = 15;
// Chunks of different size, as matrix rules have them.
const std::vector<uint32_t> kSlotsOfChunk = {1, 2, 1, 3, 1, 1};
constexpr uint32_t kCommittedSlots = 9;
constexpr uint32_t kSlotCount = kCommittedSlots + 8;

struct ModelLease {
  uint32_t first = 0, count = 0, done = 0;
  uint64_t incarnation = 0, expires_ms = 0;
  Step step = 0;
  std::vector<uint32_t> shadow;
};
// What a slot is, but for committed ones.
struct ModelSlot {
  enum { kFree, kGranted, kHeld } state = kFree;
  uint64_t writer = 0;
  uint64_t free_at_ms = UINT64_MAX;
};

class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed) {
    std::vector<SlotIndex> unreferenced;
    uint32_t slot = 0;
    for (uint32_t slots : kSlotsOfChunk) {
      for (uint32_t i = 0; i < slots; ++i) committed_[committed_.size()] = slot++;
    }
    for (; slot < kSlotCount; ++slot) {
      unreferenced.push_back(SlotIndex{slot});
      slots_[slot] = {};
    }
    table_.add_rank(kRank, kSlotsOfChunk, unreferenced, Incarnation{});
  }

  void step() {
    now_ += pick(6);
    switch (pick(12)) {
      case 0:
        return hello();
      case 1:
        return lose();
      case 2:
        return reap();
      case 3:
        return heartbeat();
      case 4:
        return give_back();
      case 5:
        return advance();
      case 6:
      case 7:
        return grant();
      default:
        return commit();
    }
  }
  uint64_t grants() const { return grants_; }
  uint64_t commits() const { return commits_; }
  uint64_t quarantined() const { return quarantined_; }
  uint64_t fenced() const { return fenced_; }

 private:
  static constexpr Rank kRank{0};
  uint32_t pick(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }

  static uint32_t first_slot_of(uint32_t chunk) {
    uint32_t at = 0;
    for (uint32_t c = 0; c < chunk; ++c) at += kSlotsOfChunk[c];
    return at;
  }
  static uint32_t slots_of(uint32_t first, uint32_t count) {
    return first_slot_of(first + count) - first_slot_of(first);
  }

  void expire() {
    for (auto it = leases_.begin(); it != leases_.end();) {
      it = it->second.expires_ms <= now_ ? end(it, /*drained=*/false) : std::next(it);
    }
  }
  std::map<uint64_t, ModelLease>::iterator end(std::map<uint64_t, ModelLease>::iterator it,
                                               bool drained) {
    for (uint32_t slot : it->second.shadow) {
      if (drained) {
        slots_[slot] = {};
      } else {
        slots_[slot] = {ModelSlot::kHeld, it->second.incarnation, UINT64_MAX};
        ++quarantined_;
      }
    }
    return leases_.erase(it);
  }
  void end_all(bool drained) {
    while (!leases_.empty()) end(leases_.begin(), drained);
  }

  void hello() {
    const uint64_t incarnation = newest_ + pick(2) - (newest_ > 0 ? pick(2) : 0);
    const bool expected = incarnation > newest_ || (incarnation == newest_ && incarnation > 0 &&
                                                    !gone_.contains(incarnation));
    expire();
    const Status said = table_.hello(kRank, Incarnation{incarnation}, now_);
    ASSERT_EQ(said.is_ok(), expected) << incarnation << " of " << newest_ << ": " << said.text();
    if (!expected) return;
    end_all(incarnation == live_);
    newest_ = live_ = incarnation;
    heard_of_.insert(incarnation);
    for (auto& [slot, state] : slots_) {
      const bool over = state.free_at_ms <= now_;  // a hello frees those too
      if (state.state == ModelSlot::kHeld && (state.writer == incarnation || over)) state = {};
    }
  }
  void lose() {
    if (newest_ == 0) return;
    const uint64_t incarnation = 1 + pick(static_cast<uint32_t>(newest_));
    expire();
    table_.lost(kRank, Incarnation{incarnation}, now_);
    lost_now(incarnation);
  }
  void lost_now(uint64_t incarnation) {
    gone_.insert(incarnation);
    heard_of_.insert(incarnation);
    if (live_ != incarnation) return;
    end_all(false);
    live_ = 0;
  }
  void reap() {
    if (newest_ == 0) return;
    const uint64_t incarnation = 1 + pick(static_cast<uint32_t>(newest_));
    expire();
    table_.reaped(kRank, Incarnation{incarnation}, now_);
    lost_now(incarnation);
    if (!reaped_.insert(incarnation).second) return;
    for (auto& [slot, state] : slots_) {
      if (state.state == ModelSlot::kHeld && state.writer == incarnation) {
        state.free_at_ms = now_ + kGraceMs;
      }
    }
  }
  // With or without a lease: it may write a gradient shard.
  bool may_an_older_one_write() {
    const auto writes = [&](uint64_t each) { return each != live_ && !reaped_.contains(each); };
    const bool any = std::any_of(heard_of_.begin(), heard_of_.end(), writes);
    fenced_ += any ? 1 : 0;
    return any;
  }
  void heartbeat() {
    const uint64_t incarnation = pick(3) == 0 ? pick(4) : live_;
    const bool expected = incarnation != 0 && incarnation == live_;
    if (expected) expire();
    ASSERT_EQ(table_.heartbeat(kRank, Incarnation{incarnation}, now_).is_ok(), expected);
    if (!expected) return;
    for (auto& [id, lease] : leases_) lease.expires_ms = now_ + kLeaseMs;
  }
  void advance() {
    table_.advance(now_);
    expire();
    for (auto& [slot, state] : slots_) {
      if (state.state == ModelSlot::kHeld && state.free_at_ms <= now_) state = {};
    }
  }

  void grant() {
    const uint32_t first = pick(kChunkCount), count = 1 + pick(kWindow);
    const Step step = 1 + pick(2);
    const auto lease = table_.grant(kRank, Incarnation{live_}, step, first, count, now_);
    if (live_ == 0 || first + count > kChunkCount) {
      ASSERT_FALSE(lease.is_ok());
      return;
    }
    expire();
    for (const auto& [id, other] : leases_) {
      if (other.first >= first + count || first >= other.first + other.count) continue;
      const bool same = other.first == first && other.count == count && other.step == step;
      ASSERT_EQ(lease.is_ok(), same) << lease.status().text();
      if (same) {
        ASSERT_EQ(lease.value().id.value, id);
      }
      return;
    }
    size_t free = 0;
    for (const auto& [slot, state] : slots_) free += state.state == ModelSlot::kFree ? 1 : 0;
    ASSERT_EQ(lease.is_ok(), free >= slots_of(first, count)) << lease.status().text();
    if (!lease.is_ok()) return;
    ++grants_;
    ModelLease mine{first, count, 0, live_, now_ + kLeaseMs, step, {}};
    for (SlotIndex slot : lease.value().shadow) {
      ASSERT_EQ(slots_.at(slot.value).state, ModelSlot::kFree) << "slot " << slot.value;
      slots_[slot.value] = {ModelSlot::kGranted, live_, UINT64_MAX};
      mine.shadow.push_back(slot.value);
    }
    ASSERT_TRUE(leases_.emplace(lease.value().id.value, mine).second) << "a lease id is reused";
    seen_[lease.value().id.value] = mine;
  }

  // A commit of any lease there ever was, by anybody, whole or in part.
  void commit() {
    if (seen_.empty()) return;
    auto it = seen_.begin();
    std::advance(it, pick(static_cast<uint32_t>(seen_.size())));
    if (!leases_.empty() && pick(4) != 0) it = seen_.find(leases_.begin()->first);
    const auto [id, old] = *it;
    const auto lease = leases_.find(id);
    const bool alive = lease != leases_.end() && lease->second.expires_ms > now_;
    const ModelLease view = lease != leases_.end() ? lease->second : old;
    const uint32_t first = view.first + view.done, left = view.count - view.done;
    const uint32_t count = 1 + pick(left);
    std::vector<SlotEntry> shadow;
    for (uint32_t i = 0; i < slots_of(first, count); ++i) shadow.push_back({view.shadow[i], 0, 1});
    const bool forged = pick(8) == 0;
    if (forged) shadow[0].slot ^= 1;
    const uint64_t incarnation = pick(6) == 0 ? pick(3) : view.incarnation;
    const bool expected =
        alive && !forged && incarnation == live_ && incarnation == view.incarnation;
    const Status allowed = table_.may_commit(kRank, Incarnation{incarnation}, LeaseId{id},
                                             view.step, first, count, shadow, now_);
    ASSERT_EQ(allowed.is_ok(), expected) << allowed.text();
    if (!expected) return;
    ++commits_;
    std::vector<SlotIndex> freed;
    for (uint32_t i = 0; i < shadow.size(); ++i) {
      uint32_t& current = committed_[first_slot_of(first) + i];
      freed.push_back(SlotIndex{current});
      slots_[current] = {};
      current = shadow[i].slot;
      slots_.erase(current);
    }
    table_.committed(LeaseId{id}, count, freed);
    auto& kept = lease->second;
    kept.shadow.erase(kept.shadow.begin(), kept.shadow.begin() + static_cast<long>(shadow.size()));
    kept.done += count;
    if (kept.done == kept.count) leases_.erase(lease);
  }
  void give_back() {
    if (seen_.empty()) return;
    auto it = seen_.begin();
    std::advance(it, pick(static_cast<uint32_t>(seen_.size())));
    const auto lease = leases_.find(it->first);
    const bool expected = lease != leases_.end() && lease->second.expires_ms > now_ &&
                          lease->second.incarnation == live_ && live_ != 0;
    const Status said = table_.give_back(kRank, Incarnation{live_}, LeaseId{it->first}, now_);
    ASSERT_EQ(said.is_ok(), expected) << said.text();
    if (expected) end(lease, true);
  }

 public:
  void check() {
    std::vector<SlotIndex> referenced;
    for (const auto& [at, slot] : committed_) referenced.push_back(SlotIndex{slot});
    ASSERT_EQ(table_.check_invariants(kRank, referenced, kSlotCount), "");
    if (pick(2) == 0) return;  // what is due and not yet done must be safe too
    advance();
    ASSERT_EQ(table_.check_invariants(kRank, referenced, kSlotCount), "");
    uint32_t free = 0, held = 0;
    for (const auto& [slot, state] : slots_) {
      free += state.state == ModelSlot::kFree ? 1 : 0;
      held += state.state == ModelSlot::kHeld ? 1 : 0;
    }
    ASSERT_EQ(table_.free_slots(kRank), free);
    ASSERT_EQ(table_.quarantine(kRank).slots, held);
    ASSERT_EQ(table_.lease_count(kRank), leases_.size());
    ASSERT_EQ(table_.live(kRank).value, live_);
    ASSERT_EQ(table_.older_are_reaped(kRank), !may_an_older_one_write());
  }

 private:
  std::mt19937_64 random_;
  uint64_t now_ = 0;
  LeaseTable table_{
      {.lease_ms = kLeaseMs, .quarantine_grace_ms = kGraceMs, .window_chunks = kWindow}};
  std::map<uint32_t, uint32_t> committed_;  // by place: chunks ascending, slots in order
  std::map<uint32_t, ModelSlot> slots_;     // all that no committed version occupies
  std::map<uint64_t, ModelLease> leases_;
  std::map<uint64_t, ModelLease> seen_;  // every lease ever, as granted
  std::set<uint64_t> gone_, reaped_, heard_of_;
  uint64_t live_ = 0, newest_ = 0;
  uint64_t grants_ = 0, commits_ = 0, quarantined_ = 0, fenced_ = 0;
};

TEST(LeaseTableModel, AgreesWithTheNaiveModelAfterEveryRandomOperation) {
  const uint64_t base = test_seed();
  uint64_t grants = 0, commits = 0, quarantined = 0, fenced = 0;
  for (uint64_t run = 0; run < 100; ++run) {
    Model model(base + run);
    for (int i = 0; i < 1000; ++i) {
      ASSERT_NO_FATAL_FAILURE(model.step()) << "run " << run << ", operation " << i;
      ASSERT_NO_FATAL_FAILURE(model.check()) << "run " << run << ", operation " << i;
    }
    grants += model.grants();
    commits += model.commits();
    quarantined += model.quarantined();
    fenced += model.fenced();
  }
  // Operations that never succeed would prove nothing.
  EXPECT_GT(grants, 1000u);
  EXPECT_GT(commits, 1000u);
  EXPECT_GT(quarantined, 1000u);
  EXPECT_GT(fenced, 1000u);
}

}  // namespace
}  // namespace optlease
