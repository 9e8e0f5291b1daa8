#include "launcher/recovery_log.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace optlease {
namespace {

constexpr Seat kActor1{Role::kGpuActor, 1};
constexpr Seat kStore{Role::kHostStore, 0};
constexpr Seat kTrainer0{Role::kTrainer, 0};

StoreFacts facts(Step committed, uint64_t incarnation1, uint32_t chunks1, uint64_t commits = 0) {
  StoreFacts out;
  out.body.step_committed = committed;
  out.body.commits = commits;
  out.ranks.resize(2);
  out.ranks[1].incarnation = incarnation1;
  out.ranks[1].chunks_committed = chunks1;
  return out;
}

TEST(RecoveryLog, MeasuresAnActorsRestartAttachAndFirstCommit) {
  RecoveryLog log(1000);
  log.died(kActor1, 1, 42, DeathCause::kOwn, 3, 5000, DeathSign::kDeathPage);
  EXPECT_FALSE(log.is_measuring());
  log.spawned(kActor1, 2, 5020);
  log.exited(kActor1, 1, {true, SIGKILL}, 5070);
  EXPECT_TRUE(log.is_measuring());
  EXPECT_TRUE(log.store_answered(facts(3, 1, 4), 5050).empty());
  EXPECT_TRUE(log.store_answered(facts(3, 2, 4), 5100).empty());
  EXPECT_TRUE(log.store_answered(facts(3, 2, 4), 5150).empty());
  const auto whole = log.store_answered(facts(3, 2, 5), 5200);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].at_ms, 4000u);
  EXPECT_EQ(whole[0].restart_ms, 20u);
  EXPECT_EQ(whole[0].attach_ms, 100u);
  EXPECT_EQ(whole[0].recovery_ms, 200u);
  EXPECT_EQ(whole[0].reap_ms, 70u);
  EXPECT_EQ(timeline_of(whole[0]),
            "first commit 0.200 s after its death (seen by death_page; started 0.020, "
            "attached 0.100, reaped 0.070)");
  ASSERT_TRUE(whole[0].exit.has_value());
  EXPECT_EQ(whole[0].exit->code, SIGKILL);
  EXPECT_FALSE(log.is_measuring());
}

TEST(RecoveryLog, KeepsWhatKilledAndCountsOnlyWhatWasRestarted) {
  RecoveryLog log(0);
  const Rehearsal kill{Role::kGpuActor, 1, 25, RehearsePhase::kBeforeCommit, 0};
  log.died(kActor1, 1, 42, DeathCause::kRehearsal, 24, 100, DeathSign::kDeathPage, kill);
  log.died(kStore, 1, 43, DeathCause::kOwn, 24, 110);
  EXPECT_EQ(log.restarts(), 0u);
  log.spawned(kActor1, 2, 120);
  EXPECT_EQ(log.restarts(), 1u);
  const auto records = log.records();
  ASSERT_TRUE(records[0].rehearsal.has_value());
  EXPECT_EQ(text_of(*records[0].rehearsal), "step 25, before_commit of rank 0");
  EXPECT_FALSE(records[1].rehearsal.has_value());
}

TEST(RecoveryLog, ADeathBeforeRecoveryLeavesTheFirstUnmeasured) {
  RecoveryLog log(0);
  log.died(kActor1, 1, 42, DeathCause::kOwn, 3, 100);
  log.spawned(kActor1, 2, 120);
  log.died(kActor1, 2, 43, DeathCause::kOwn, 3, 130);
  log.spawned(kActor1, 3, 150);
  (void)log.store_answered(facts(3, 3, 0), 200);
  (void)log.store_answered(facts(4, 3, 0), 300);
  const auto records = log.records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_FALSE(records[0].recovery_ms.has_value());
  EXPECT_EQ(records[1].recovery_ms, 170u);
}

TEST(RecoveryLog, ASuccessorMayCommitBeforeItsPredecessorIsReaped) {
  RecoveryLog log(0);
  log.died(kActor1, 1, 42, DeathCause::kOwn, 3, 100, DeathSign::kDeathPage);
  log.spawned(kActor1, 2, 120);
  (void)log.store_answered(facts(3, 2, 0), 200);
  const auto whole = log.store_answered(facts(3, 2, 1), 300);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_NE(timeline_of(whole[0]).find("not reaped yet"), std::string::npos);
  log.exited(kActor1, 1, {true, SIGKILL}, 900);
  EXPECT_EQ(log.records()[0].reap_ms, 800u);
}

TEST(RecoveryLog, KeepsWhatWasHeardOfTheLifeThatDied) {
  RecoveryLog log(0);
  log.died(kActor1, 1, 42, DeathCause::kHeartbeat, 3, 100);
  log.heard(kActor1, 1, {"stream", 4, "it was silent"});
  log.died(kActor1, 2, 43, DeathCause::kOwn, 3, 200);
  ASSERT_EQ(log.records().size(), 2u);
  EXPECT_EQ(log.records()[0].heard.phase, "stream");
  EXPECT_EQ(log.records()[0].heard.step, 4);
  EXPECT_EQ(log.records()[0].heard.why, "it was silent");
  EXPECT_EQ(log.records()[1].heard.why, "");
}

TEST(RecoveryLog, AStoreRecoversWithItsFirstCommit) {
  RecoveryLog log(0);
  log.died(kStore, 1, 42, DeathCause::kRehearsal, 3, 100);
  log.spawned(kStore, 2, 110);
  (void)log.store_answered(facts(3, 0, 0, 0), 150);
  (void)log.store_answered(facts(3, 1, 1, 1), 190);
  const auto records = log.records();
  EXPECT_EQ(records[0].attach_ms, 50u);
  EXPECT_EQ(records[0].recovery_ms, 90u);
}

TEST(RecoveryLog, ATrainerRecoversWithTheNextStepAndHasNoAttach) {
  RecoveryLog log(0);
  log.died(kTrainer0, 1, 42, DeathCause::kOwn, 3, 100);
  log.spawned(kTrainer0, 2, 110);
  (void)log.store_answered(facts(3, 1, 7, 9), 150);
  (void)log.store_answered(facts(3, 1, 8, 10), 190);
  (void)log.store_answered(facts(4, 1, 8, 10), 210);
  const auto records = log.records();
  EXPECT_FALSE(records[0].attach_ms.has_value());
  EXPECT_EQ(records[0].recovery_ms, 110u);
}

}  // namespace
}  // namespace optlease
