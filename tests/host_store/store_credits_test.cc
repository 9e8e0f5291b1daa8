// Lease requests that wait for credit, in a whole store with fake actors: none is ever lost. (A
// fake actor asks once: a request that the store forgot would stop its step for ever.)
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/host_store/service_job.h"

namespace optlease {
namespace {

// Rank 0 has 4 chunks (2 windows), rank 1 has 24 (12 windows); a pipeline is two windows.
class StoreCredits : public ::testing::Test {
 protected:
  static constexpr uint32_t kFew = 4, kMany = 24;
  explicit StoreCredits(uint64_t ceiling_bytes = 0)
      : job_(uneven_segment_plan("credits", 2, kFew, kMany - kFew),
             {.ceiling_bytes = ceiling_bytes, .windows_ahead = 2}) {}

  // Both have asked for two windows of step 0, and keep what they are granted.
  void ask() {
    for (uint32_t r = 0; r < 2; ++r) job_.actor(r).set_commits(false);
    for (int i = 0; i < 4; ++i) job_.tick(0);
  }
  void commit(uint32_t rank, size_t grant) {
    FakeActor& actor = job_.actor(rank);
    actor.send_commit(actor.grants()[grant].first, actor.grants()[grant].second);
    job_.deliver();
  }
  size_t grants(uint32_t rank) { return job_.actor(rank).grants().size(); }
  size_t waiting(uint32_t rank) { return job_.service().credits().waiting(Rank{rank}); }

  ServiceJob job_;
};

TEST_F(StoreCredits, ARankThatIsAheadWaitsAndIsAnsweredByTheCommitThatFreesItsCredit) {
  ask();
  EXPECT_EQ(grants(1), 2u);
  ASSERT_EQ(grants(0), 1u) << "it has a sixth of the work and one window in flight";
  EXPECT_EQ(waiting(0), 1u);
  EXPECT_EQ(job_.actor(0).received(MessageKind::kRefused), 0u);
  commit(0, 0);
  ASSERT_EQ(grants(0), 2u);
  EXPECT_EQ(waiting(0), 0u);
  EXPECT_EQ(job_.actor(0).grants()[0].first.deferred, 0u);
  EXPECT_EQ(job_.actor(0).grants()[1].first.deferred, 1u);
  EXPECT_EQ(job_.service().check_invariants(), "");
}

TEST_F(StoreCredits, ARepeatedRequestIsAnsweredOnceAndUnderItsLastNumber) {
  ask();
  FakeActor& actor = job_.actor(0);
  const LeaseGrantBody held = actor.grants()[0].first;
  const uint32_t waits_for = held.first_chunk == 0 ? 2 : 0;
  for (int i = 0; i < 3; ++i) {
    actor.send(MessageKind::kLeaseRequest, LeaseRequestBody{0, waits_for, 2});
    job_.deliver();
  }
  EXPECT_EQ(waiting(0), 1u);
  // One for the window that it has is answered as before, whatever waits.
  actor.send(MessageKind::kLeaseRequest, LeaseRequestBody{0, held.first_chunk, 2});
  job_.deliver();
  ASSERT_EQ(grants(0), 2u);
  EXPECT_EQ(actor.grants()[1].first.lease_id, held.lease_id);
  commit(0, 0);
  EXPECT_EQ(grants(0), 3u);
  EXPECT_EQ(waiting(0), 0u);
}

TEST_F(StoreCredits, TheDeathOfTheLongestFreesTheOthers) {
  ask();
  ASSERT_EQ(grants(0), 1u);
  job_.launcher(MessageKind::kIncarnationLost, 1, 1);
  EXPECT_EQ(grants(0), 2u);
  EXPECT_EQ(waiting(0), 0u);
}

TEST_F(StoreCredits, ADeadActorsRequestWaitsForNobody) {
  ask();
  ASSERT_EQ(waiting(0), 1u);
  job_.restart_actor(0);
  EXPECT_EQ(waiting(0), 0u);
  job_.reap(0, 1);
  job_.actor(1).set_commits(true);
  for (size_t i = 0; i < 2; ++i) commit(1, i);
  ASSERT_TRUE(job_.run_until_committed(2));
  EXPECT_EQ(job_.check(2), "");
}

TEST_F(StoreCredits, WhatIsWrongIsRefusedAtOnceAndNeverWaits) {
  ask();
  FakeActor& actor = job_.actor(0);
  const auto refused = [&](Step step, uint32_t first, uint32_t count) {
    actor.send(MessageKind::kLeaseRequest, LeaseRequestBody{step, first, count});
    job_.deliver();
    return job_.heard(actor.peer()).refused;
  };
  EXPECT_EQ(refused(0, 0, 3), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(0, kFew, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(5, 0, 1), StatusCode::kStaleStep);
  EXPECT_EQ(waiting(0), 1u);
}

// Before a step is open all of it is left: its windows are read ahead within the same shares.
TEST_F(StoreCredits, WindowsReadAheadOfTheirStepHaveTheSharesThatTheyHaveInIt) {
  ASSERT_TRUE(job_.run_until_committed(0));
  const size_t before[2] = {grants(0), grants(1)};
  const auto ask_ahead = [&](uint32_t rank, uint32_t first) {
    job_.actor(rank).send(MessageKind::kLeaseRequest, LeaseRequestBody{1, first, 2});
    job_.deliver();
  };
  for (uint32_t rank : {0, 1}) {
    for (uint32_t first : {0, 2}) ask_ahead(rank, first);
  }
  EXPECT_EQ(job_.service().coordinator().step_open(), kNoStep);
  EXPECT_EQ(grants(0), before[0] + 1);
  EXPECT_EQ(waiting(0), 1u);
  EXPECT_EQ(grants(1), before[1] + 2);
  EXPECT_EQ(waiting(1), 0u);
  // What is given back makes room for what waits.
  const uint64_t lease = job_.actor(0).grants().back().first.lease_id;
  job_.actor(0).send(MessageKind::kLeaseReturn, LeaseReturnBody{lease});
  job_.deliver();
  EXPECT_EQ(grants(0), before[0] + 2);
  EXPECT_EQ(waiting(0), 0u);
  EXPECT_EQ(job_.service().check_invariants(), "");
}

// Its windows are given back by who asked, and what still waited is nobody's any more.
TEST_F(StoreCredits, WhatWaitsForASkippedStepIsForgottenWithoutARefusal) {
  const Step skipped = kSkipEvery;
  ASSERT_TRUE(job_.run_until_committed(skipped - 1));
  for (uint32_t first : {0, 2}) {
    job_.actor(0).send(MessageKind::kLeaseRequest, LeaseRequestBody{skipped, first, 2});
  }
  job_.deliver();
  ASSERT_EQ(waiting(0), 1u);
  const uint32_t refusals = job_.actor(0).received(MessageKind::kRefused);
  ASSERT_TRUE(job_.run_until_committed(skipped));
  EXPECT_EQ(waiting(0), 0u);
  EXPECT_EQ(job_.actor(0).received(MessageKind::kRefused), refusals);
  ASSERT_TRUE(job_.run_until_committed(skipped + 2));
  EXPECT_EQ(job_.check(skipped + 2), "");
}

// 8192 bytes a window: three may be in flight.
class StoreCeiling : public StoreCredits {
 protected:
  StoreCeiling() : StoreCredits(3 * 8192) {}
};

TEST_F(StoreCeiling, AnExpiredLeaseGivesItsCreditBack) {
  ask();
  EXPECT_EQ(grants(0) + grants(1), 3u);
  EXPECT_EQ(waiting(0), 1u);
  // Rank 1 falls silent; rank 0 goes on saying that it lives.
  for (int i = 0; i < 30; ++i) {
    job_.now_ms += 10;
    job_.actor(0).send(MessageKind::kHeartbeat, HeartbeatBody{0, 7, 0});
    for (const std::string& frame : job_.actor(0).take_outgoing()) {
      job_.raw(job_.actor(0).peer(), frame);
    }
  }
  EXPECT_EQ(job_.service().leases().lease_count(Rank{1}), 0u);
  // It is attached and has most of the work: the shares stay, but the ceiling is no reason to wait.
  commit(0, 0);
  EXPECT_EQ(grants(0), 2u);
}

TEST_F(StoreCeiling, StepsEndWhateverDiesAndTheBitsAreExact) {
  const char* fixed = std::getenv("OPTLEASE_TEST_SEED");
  const uint64_t seed =
      fixed != nullptr ? std::strtoull(fixed, nullptr, 0) : std::random_device{}();
  std::printf("OPTLEASE_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (uint32_t r = 0; r < 2; ++r) job_.actor(r).set_prefetches(true);
  uint64_t lives[2] = {1, 1}, reaped[2] = {0, 0}, most_in_flight = 0;
  uint32_t waited = 0;
  for (int i = 0; i < 3000; ++i) {
    if (pick(60) == 0) {
      job_.restart_store();
      for (uint32_t r = 0; r < 2; ++r) {
        for (uint64_t life = reaped[r] + 1; life < lives[r]; ++life) {
          job_.launcher(MessageKind::kIncarnationLost, r, life);
        }
        for (uint64_t life = 1; life <= reaped[r]; ++life) job_.reap(r, life);
      }
    } else if (pick(40) == 0) {
      const uint32_t rank = pick(2);
      job_.restart_actor(rank);
      job_.actor(rank).set_prefetches(pick(2) == 0);
      ++lives[rank];
    } else if (const uint32_t rank = pick(2); reaped[rank] + 1 < lives[rank]) {
      job_.reap(rank, ++reaped[rank]);
    }
    job_.tick(1000);
    ASSERT_EQ(job_.service().check_invariants(), "") << "turn " << i;
    uint64_t in_flight = 0;
    for (uint32_t r = 0; r < 2; ++r) {
      in_flight += job_.service().leases().chunks_in_flight(Rank{r}) * 4096;
      for (const auto& grant : job_.actor(r).grants()) waited += grant.first.deferred;
    }
    most_in_flight = std::max(most_in_flight, in_flight);
  }
  EXPECT_LE(most_in_flight, 3u * 8192);
  EXPECT_GT(waited, 0u);
  for (uint32_t r = 0; r < 2; ++r) {
    while (reaped[r] + 1 < lives[r]) job_.reap(r, ++reaped[r]);
  }
  const Step last = job_.service().coordinator().step_committed() + 3;
  ASSERT_TRUE(job_.run_until_committed(last));
  EXPECT_EQ(job_.check(last), "");
}

}  // namespace
}  // namespace optlease
