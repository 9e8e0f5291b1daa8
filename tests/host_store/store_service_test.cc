// The store service with fake actors, in process: whole steps, deaths, holds.
#include <gtest/gtest.h>

#include <random>

#include "tests/host_store/service_job.h"
#include "tests/support/test_seed.h"

namespace optlease {
namespace {

TEST(StoreService, CommitsStepsOfTwoRanksExactly) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(3));
  EXPECT_EQ(job.check(3), "");
  EXPECT_EQ(job.service().store().view().header().steps_skipped.load(), 0u);
  EXPECT_GE(job.actor(0).received(MessageKind::kStepCommitted), 4u);
}

TEST(StoreService, ASkippedStepMovesVersionsAndNothingElse) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(3));
  std::vector<uint32_t> slots;
  for (uint32_t c = 0; c < 7; ++c) {
    slots.push_back(job.service().store().view().entries(Rank{0}, ChunkIndex{c})[0].slot);
  }
  ASSERT_TRUE(job.run_until_committed(4));
  ASSERT_TRUE(fake_step_is_skipped(4));
  EXPECT_EQ(job.check(4), "");
  EXPECT_EQ(job.service().store().view().header().steps_skipped.load(), 1u);
  for (uint32_t c = 0; c < 7; ++c) {
    EXPECT_EQ(job.service().store().view().entries(Rank{0}, ChunkIndex{c})[0].slot, slots[c]);
  }
  ASSERT_TRUE(job.run_until_committed(9));
  EXPECT_EQ(job.service().store().view().header().steps_skipped.load(), 2u);
}

// Fault cases 10 and 11, in the store's part.
TEST(StoreService, SurvivesRandomDeathsOfActorsAndStoreBitExactly) {
  std::mt19937_64 random(test_seed());
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  ServiceJob job;
  uint64_t lives[2] = {1, 1}, reaped[2] = {0, 0};
  uint32_t deaths = 0;
  for (int i = 0; i < 3000; ++i) {
    if (pick(20) == 0) {
      job.restart_store();
      // The launcher tells a restarted store of the dead, too.
      for (uint32_t r = 0; r < 2; ++r) {
        for (uint64_t life = reaped[r] + 1; life < lives[r]; ++life) {
          job.launcher(MessageKind::kIncarnationLost, r, life);
        }
        for (uint64_t life = 1; life <= reaped[r]; ++life) job.reap(r, life);
      }
      ++deaths;
    } else if (pick(15) == 0) {
      const uint32_t rank = pick(2);
      job.restart_actor(rank);
      job.actor(rank).set_prefetches(pick(2) == 0);
      ++lives[rank];
      ++deaths;
    } else if (const uint32_t rank = pick(2); reaped[rank] + 1 < lives[rank]) {
      job.reap(rank, ++reaped[rank]);
    }
    // Some of what an actor wanted to say may die with the store.
    job.tick(1000);
    ASSERT_EQ(job.service().check_invariants(), "") << "turn " << i;
  }
  for (uint32_t r = 0; r < 2; ++r) {
    while (reaped[r] + 1 < lives[r]) job.reap(r, ++reaped[r]);
  }
  const Step last = job.service().coordinator().step_committed() + 3;
  ASSERT_TRUE(job.run_until_committed(last));
  EXPECT_EQ(job.check(last), "");
  EXPECT_GT(deaths, 100u);
  EXPECT_GT(last, 20);
  for (uint32_t r = 0; r < 2; ++r) {
    EXPECT_EQ(job.service().leases().quarantine(Rank{r}).slots, 0u);
    EXPECT_EQ(job.service().leases().free_slots(Rank{r}),
              job.service().store().view().rank(Rank{r}).slot_count - 7)
        << "slots are conserved";
  }
}

TEST(StoreService, RefusesADelayedCommitOfAVoidLeaseAndKeepsTheOldVersion) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.actor(0).set_commits(false);
  const size_t before = job.actor(0).grants().size();
  for (int i = 0; i < 20 && job.actor(0).grants().size() == before; ++i) job.tick(2);
  ASSERT_GT(job.actor(0).grants().size(), before);
  const auto [grant, entries] = job.actor(0).grants()[before];
  job.actor(0).say_hello();  // it drained; its lease is over
  job.deliver();
  job.actor(0).send_commit(grant, entries);
  job.deliver();
  EXPECT_EQ(job.actor(0).last_refusal(), StatusCode::kStaleLease);
  EXPECT_EQ(job.service().store().view().version(Rank{0}, ChunkIndex{grant.first_chunk}), 1);
  job.actor(0).set_commits(true);
  ASSERT_TRUE(job.run_until_committed(2));
  EXPECT_EQ(job.check(2), "");
  job.actor(0).send_commit(grant, entries);  // all of it is at step 2: acknowledged, not done again
  const uint32_t replies = job.actor(0).received(MessageKind::kCommitReply);
  job.deliver();
  EXPECT_EQ(job.actor(0).received(MessageKind::kCommitReply), replies + 1);
  EXPECT_EQ(job.check(2), "");
}

TEST(StoreService, RefusesTheCommitOfALesseeThatWasStoppedPastItsLease) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.actor(0).set_commits(false);
  const size_t before = job.actor(0).grants().size();
  for (int i = 0; i < 20 && job.actor(0).grants().size() == before; ++i) job.tick(2);
  ASSERT_GT(job.actor(0).grants().size(), before);
  const auto [grant, entries] = job.actor(0).grants()[before];
  job.now_ms += 200;  // SIGSTOP ... SIGCONT
  job.actor(0).send_commit(grant, entries);
  job.deliver();
  EXPECT_EQ(job.actor(0).last_refusal(), StatusCode::kStaleLease);
  EXPECT_GT(job.service().leases().quarantine(Rank{0}).slots, 0u);
  EXPECT_EQ(job.service().leases().quarantine(Rank{1}).slots, 0u);
  job.actor(0).set_commits(true);
  job.actor(0).say_hello();
  ASSERT_TRUE(job.run_until_committed(2));
  EXPECT_EQ(job.check(2), "");
  EXPECT_EQ(job.service().leases().quarantine(Rank{0}).slots, 0u);
}

// optlease_prepare, in the store's part.
TEST(StoreService, LeasesAheadOfTheStepAndCommitsNothingBeforeItIsOpen) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  FakeActor& actor = job.actor(0);
  const size_t before = actor.grants().size();
  actor.send(MessageKind::kLeaseRequest, LeaseRequestBody{2, 0, 2});
  job.deliver();
  ASSERT_EQ(actor.grants().size(), before + 1);
  const auto [grant, entries] = actor.grants().back();
  EXPECT_EQ(grant.step, 2);
  EXPECT_EQ(entries[0].source_slot,
            job.service().store().view().entries(Rank{0}, ChunkIndex{0})[0].slot);
  actor.send_commit(grant, entries);
  job.deliver();
  EXPECT_EQ(actor.last_refusal(), StatusCode::kBusy);
  EXPECT_EQ(job.service().store().view().version(Rank{0}, ChunkIndex{0}), 1);
  EXPECT_EQ(job.check(1), "");
  EXPECT_EQ(job.service().leases().lease_count(Rank{0}), 1u);
  ASSERT_TRUE(job.run_until_committed(2)) << "the lease goes on in the open step";
  EXPECT_EQ(job.check(2), "");
}

TEST(StoreService, WindowsLeasedAheadComeBackWhereTheStepIsSkippedOrTheActorDies) {
  ServiceJob job;
  for (uint32_t r = 0; r < 2; ++r) job.actor(r).set_prefetches(true);
  const auto all_free = [&](uint32_t rank) {
    return job.service().leases().free_slots(Rank{rank}) ==
           job.service().store().view().rank(Rank{rank}).slot_count - 7;
  };
  ASSERT_TRUE(job.run_until_committed(3));
  ASSERT_TRUE(fake_step_is_skipped(4));
  ASSERT_TRUE(job.run_until_committed(4));
  EXPECT_EQ(job.check(4), "");
  EXPECT_TRUE(all_free(0) && all_free(1));
  job.actor(0).tick(5);  // leases ahead of step 5, and dies
  for (const std::string& frame : job.actor(0).take_outgoing()) job.raw(job.actor(0).peer(), frame);
  EXPECT_GT(job.service().leases().lease_count(Rank{0}), 0u);
  job.restart_actor(0);
  EXPECT_EQ(job.service().leases().lease_count(Rank{0}), 0u);
  EXPECT_GT(job.service().leases().quarantine(Rank{0}).slots, 0u);
  job.reap(0, 1);
  ASSERT_TRUE(job.run_until_committed(7));
  EXPECT_EQ(job.check(7), "");
  EXPECT_TRUE(all_free(0) && all_free(1));
}

TEST(StoreService, CommitsNoStepWhileAZombieMayStillWrite) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.restart_actor(0);
  for (int i = 0; i < 200; ++i) job.tick(2);
  EXPECT_EQ(job.service().coordinator().step_committed(), 1);
  job.reap(0, 1);
  ASSERT_TRUE(job.run_until_committed(2));
  EXPECT_EQ(job.check(2), "");
}

// It was ordered to reduce and killed before it had a lease: its kernel may still write the shard.
TEST(StoreService, OrdersNoReductionWhileAnIncarnationThatOnlyReducedMayStillWrite) {
  for (const bool store_dies : {false, true}) {
    SCOPED_TRACE(store_dies ? "the store dies too" : "the store goes on");
    ServiceJob job;
    ASSERT_TRUE(job.run_until_committed(1));
    job.restart_actor(0);
    job.reap(0, 1);
    const auto orders = [&] { return job.actor(0).received(MessageKind::kGoReduce); };
    for (uint32_t i = 0; i < 400 && orders() == 0; ++i) {
      FakeActor& actor = job.actor(i % 2);
      job.now_ms += 10;
      actor.tick(2);
      for (const std::string& frame : actor.take_outgoing()) {
        if (orders() == 0) job.raw(actor.peer(), frame);
      }
    }
    ASSERT_EQ(orders(), 1u);
    ASSERT_EQ(job.service().leases().lease_count(Rank{0}), 0u);
    job.restart_actor(0);
    if (store_dies) {
      job.restart_store();
      job.launcher(MessageKind::kIncarnationLost, 0, 2);
      job.reap(0, 1);
    }
    for (int i = 0; i < 200; ++i) job.tick(2);
    EXPECT_EQ(job.service().leases().live(Rank{0}), Incarnation{3});
    EXPECT_EQ(orders(), 0u);
    EXPECT_EQ(job.service().coordinator().step_open(), kNoStep);
    job.reap(0, 2);
    ASSERT_TRUE(job.run_until_committed(2));
    EXPECT_EQ(job.check(2), "");
  }
}

TEST(StoreService, AHoldBlocksNewStepsUntilItEnds) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.tool("tool.7", MessageKind::kHoldRequest, HoldBody{0, 0, 500});
  ASSERT_EQ(job.heard("tool.7").kind, MessageKind::kHoldReply);
  const auto held = decode(job.heard("tool.7").frame).value().as<HoldBody>();
  EXPECT_EQ(held.step, 1);
  for (int i = 0; i < 40; ++i) job.tick(2);
  EXPECT_EQ(job.service().coordinator().step_open(), kNoStep);
  EXPECT_EQ(job.service().coordinator().step_committed(), 1);
  job.tool("tool.7", MessageKind::kHoldRequest, HoldBody{0, held.hold_id, 500});
  EXPECT_EQ(job.heard("tool.7").frames, 2u) << "a renewal is answered";
  for (int i = 0; i < 40; ++i) job.tick(2);
  EXPECT_EQ(job.service().coordinator().step_committed(), 1);
  job.tool("tool.7", MessageKind::kHoldRelease, HoldBody{0, held.hold_id, 0});
  ASSERT_TRUE(job.run_until_committed(2));
  job.tool("tool.7", MessageKind::kHoldRequest, HoldBody{0, held.hold_id, 500});
  EXPECT_EQ(job.heard("tool.7").refused, StatusCode::kNotFound);
  job.tool("tool.7", MessageKind::kHoldRequest, HoldBody{0, 0, 100});
  ASSERT_TRUE(job.run_until_committed(3)) << "a hold that nobody renews ends by itself";
}

TEST(StoreService, AHoldInTheMiddleOfAStepIsAnsweredAtItsEnd) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.actor(1).set_commits(false);
  for (int i = 0; i < 10; ++i) job.tick(3);
  ASSERT_EQ(job.service().coordinator().step_open(), 2);
  const std::string ask = encode(Speaker{}, MessageKind::kHoldRequest, 77, HoldBody{0, 0, 5000});
  job.raw("tool.8", ask);
  job.raw("tool.8", ask);  // it heard nothing and repeats
  EXPECT_EQ(job.heard("tool.8").frames, 0u);
  job.actor(1).set_commits(true);
  job.actor(1).say_hello();
  for (int i = 0; i < 20; ++i) job.tick(3);
  EXPECT_EQ(job.service().coordinator().step_committed(), 2);
  EXPECT_EQ(job.heard("tool.8").frames, 1u) << "one hold, one answer";
  EXPECT_EQ(decode(job.heard("tool.8").frame).value().header.sequence, 77u);
}

TEST(StoreService, StopsAtAStepBoundaryAndTellsTheActors) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.tool("launcher", MessageKind::kStopStore, HoldBody{0, 0, 60000});
  EXPECT_TRUE(job.service().finished());
  EXPECT_TRUE(job.actor(0).stopped());
  EXPECT_TRUE(job.actor(1).stopped());
}

TEST(StoreService, LeasesACorruptChunkNeverAgain) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.actor(0).send(MessageKind::kCorruptChunk, CorruptChunkBody{3, 1, 5, 6});
  for (int i = 0; i < 60; ++i) job.tick(2);
  EXPECT_EQ(job.actor(0).last_refusal(), StatusCode::kCorrupt);
  EXPECT_EQ(job.service().coordinator().step_committed(), 1);
  EXPECT_EQ(job.service().store().view().version(Rank{0}, ChunkIndex{3}), 1);
  EXPECT_EQ(job.service().store().view().version(Rank{0}, ChunkIndex{6}), 2) << "others go on";
}

}  // namespace
}  // namespace optlease
