// Starts, deaths and restarts; supervisor_core_stop_test.cc has the ends.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/launcher/supervisor_core_job.h"

namespace optlease {
namespace {

TEST(SupervisorCore, StartsStoreThenActorsThenTrainers) {
  CoreJob job(CoreJob::options(2, true));
  EXPECT_EQ(job.count(Kind::kSpawn, kStore), 1u);
  EXPECT_EQ(job.count(Kind::kSpawn, actor(0)), 0u);
  job.answer(kNoStep);
  EXPECT_EQ(job.count(Kind::kSpawn, actor(0)), 1u);
  EXPECT_EQ(job.count(Kind::kSpawn, actor(1)), 1u);
  job.answer(kNoStep);
  EXPECT_EQ(job.count(Kind::kSpawn, trainer(0)), 0u) << "step 0 is not committed yet";
  job.answer(0);
  job.tick();
  EXPECT_EQ(job.count(Kind::kSpawn, trainer(0)), 1u);
  EXPECT_EQ(job.count(Kind::kSpawn, trainer(1)), 1u);
}

TEST(SupervisorCore, TellsTheStoreOfAnIncarnationBeforeItIsSpawned) {
  CoreJob job(CoreJob::options(1, false));
  job.answer(kNoStep);
  const size_t told = job.position(Kind::kTellStarted, actor(0), 1);
  const size_t spawned = job.position(Kind::kSpawn, actor(0), 1);
  ASSERT_NE(told, SIZE_MAX);
  ASSERT_NE(spawned, SIZE_MAX);
  EXPECT_LT(told, spawned);
}

TEST(SupervisorCore, RestartsAnActorAtLifelineEndBeforeTheZombieIsReaped) {
  CoreJob job(CoreJob::options(2, false));
  job.start_all();
  job.close(actor(1));
  EXPECT_NE(job.position(Kind::kTellLost, actor(1), 1), SIZE_MAX);
  EXPECT_EQ(job.position(Kind::kTellReaped, actor(1), 1), SIZE_MAX);
  EXPECT_EQ(job.count(Kind::kSpawn, actor(1)), 1u) << "the backoff has not passed";
  job.advance_ms(20);
  EXPECT_EQ(job.count(Kind::kSpawn, actor(1)), 2u);
  EXPECT_EQ(job.core().life(actor(1)), 2u);
  job.reap(actor(1), 1);
  EXPECT_NE(job.position(Kind::kTellReaped, actor(1), 1), SIZE_MAX);
  EXPECT_EQ(job.count(Kind::kDied, actor(1)), 1u);
}

TEST(SupervisorCore, ExitWithoutLifelineEndIsLostThenReaped) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  job.reap(actor(0), 1, {false, 1});
  const size_t lost = job.position(Kind::kTellLost, actor(0), 1);
  const size_t reaped = job.position(Kind::kTellReaped, actor(0), 1);
  ASSERT_NE(lost, SIZE_MAX);
  ASSERT_NE(reaped, SIZE_MAX);
  EXPECT_LT(lost, reaped);
}

TEST(SupervisorCore, RestartsTheStoreOnlyOnceItIsReaped) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  job.close(kStore);
  job.advance_ms(500);
  EXPECT_EQ(job.count(Kind::kSpawn, kStore), 1u);
  job.reap(kStore, 1);
  job.advance_ms(20);
  EXPECT_EQ(job.count(Kind::kSpawn, kStore), 2u);
}

TEST(SupervisorCore, TellsARestartedStoreEverythingAgain) {
  CoreJob job(CoreJob::options(2, false));
  job.start_all();
  job.die(actor(0));
  job.advance_ms(20);
  job.die(kStore);
  job.forget();
  job.advance_ms(50);
  ASSERT_EQ(job.count(Kind::kSpawn, kStore), 1u);
  EXPECT_NE(job.position(Kind::kTellStarted, actor(0), 2), SIZE_MAX);
  EXPECT_NE(job.position(Kind::kTellStarted, actor(1), 1), SIZE_MAX);
  EXPECT_NE(job.position(Kind::kTellReaped, actor(0), 1), SIZE_MAX);
}

TEST(SupervisorCore, TellsARestartedStoreThatAZombieIsLostAndNotReaped) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  job.close(actor(0));
  job.die(kStore);
  job.forget();
  job.advance_ms(50);
  EXPECT_NE(job.position(Kind::kTellLost, actor(0), 1), SIZE_MAX);
  EXPECT_EQ(job.position(Kind::kTellReaped, actor(0), 1), SIZE_MAX);
}

// A copy of it may still land: the new store must not take its slots for free at once.
TEST(SupervisorCore, TellsARestartedStoreFirstThatOneWhoseGraceIsNotOverWasLost) {
  for (const bool grace_is_over : {false, true}) {
    CoreOptions options = CoreJob::options(1, false);
    options.restart.quarantine_grace_ms = 100;
    CoreJob job(options);
    job.start_all();
    job.die(actor(0));
    job.advance_ms(20);
    if (grace_is_over) job.advance_ms(101);
    job.die(kStore);
    job.forget();
    job.advance_ms(50);
    ASSERT_EQ(job.count(Kind::kSpawn, kStore), 1u);
    const size_t lost = job.position(Kind::kTellLost, actor(0), 1);
    const size_t started = job.position(Kind::kTellStarted, actor(0), 2);
    const size_t reaped = job.position(Kind::kTellReaped, actor(0), 1);
    ASSERT_NE(reaped, SIZE_MAX);
    EXPECT_EQ(lost == SIZE_MAX, grace_is_over);
    if (!grace_is_over) {
      EXPECT_LT(lost, started);
      EXPECT_LT(started, reaped);
    }
  }
}

TEST(SupervisorCore, ContinuesIncarnationNumbersOfAnEarlierRun) {
  CoreOptions options = CoreJob::options(2, false);
  options.last_incarnation = {7, 0};
  CoreJob job(options);
  job.start_all();
  EXPECT_EQ(job.core().life(actor(0)), 8u);
  EXPECT_EQ(job.core().life(actor(1)), 1u);
  EXPECT_NE(job.position(Kind::kTellReaped, actor(0), 7), SIZE_MAX);
}

TEST(SupervisorCore, DoublesTheBackoffOfTheSameProcess) {
  CoreOptions options = CoreJob::options(1, false);
  options.restart.intensity = 10;
  CoreJob job(options);
  job.start_all();
  job.die(actor(0));
  job.advance_ms(20);
  EXPECT_EQ(job.core().life(actor(0)), 2u);
  job.die(actor(0));
  job.advance_ms(20);
  EXPECT_EQ(job.core().life(actor(0)), 2u);
  job.advance_ms(20);
  EXPECT_EQ(job.core().life(actor(0)), 3u);
  job.die(actor(0));
  job.advance_ms(79);
  EXPECT_EQ(job.core().life(actor(0)), 3u);
  job.advance_ms(1);
  EXPECT_EQ(job.core().life(actor(0)), 4u);
}

TEST(SupervisorCore, EndsTheJobWhenRestartIntensityIsExceeded) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  for (int i = 0; i < 3; ++i) {
    job.die(actor(0), {false, 1});
    job.advance_ms(100);
    job.answer(0);
    ASSERT_EQ(job.core().ending(), Ending::kNone) << i;
  }
  job.die(actor(0), {false, 7});
  EXPECT_EQ(job.core().ending(), Ending::kRestartIntensity);
  EXPECT_NE(job.core().ending_text().find("gpu_actor 0"), std::string::npos);
  EXPECT_NE(job.core().ending_text().find("exit code 7"), std::string::npos)
      << job.core().ending_text();
  job.advance_ms(10);
  EXPECT_TRUE(job.asked(Kind::kStopStore));
  job.die(kStore, {false, 0});
  job.advance_ms(10);
  EXPECT_TRUE(job.core().finished());
}

TEST(SupervisorCore, ForgetsDeathsOlderThanThePeriod) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  for (int i = 0; i < 12; ++i) {
    job.die(actor(0));
    for (int k = 0; k < 5; ++k) {
      job.advance_ms(90);
      job.answer(0);
    }
  }
  EXPECT_EQ(job.core().ending(), Ending::kNone);
  EXPECT_EQ(job.core().life(actor(0)), 13u);
}

TEST(SupervisorCore, WantedKillsAreNeitherCountedNorDelayed) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(job.core().kill_on_purpose(actor(0), DeathCause::kRehearsal, job.now()));
    ASSERT_FALSE(job.core().kill_on_purpose(actor(0), DeathCause::kRehearsal, job.now()));
    job.take();
    job.die(actor(0));
    job.tick();
    ASSERT_EQ(job.core().life(actor(0)), i + 1);
    job.answer(0);
  }
  EXPECT_EQ(job.core().ending(), Ending::kNone);
}

TEST(SupervisorCore, KillsASilentActorAndASilentStore) {
  CoreJob job(CoreJob::options(2, false));
  job.start_all();
  job.silent(1, 200);
  job.answer(0);
  ASSERT_EQ(job.count(Kind::kKill, actor(1)), 1u);
  EXPECT_EQ(job.count(Kind::kKill, actor(0)), 0u);
  job.silent(1, 0);
  for (int i = 0; i < 4; ++i) job.advance_ms(60);
  EXPECT_EQ(job.count(Kind::kKill, kStore), 1u);
  job.die(kStore);
  const auto died = std::find_if(job.actions().begin(), job.actions().end(), [](const Action& a) {
    return a.kind == Kind::kDied && a.seat == kStore;
  });
  ASSERT_NE(died, job.actions().end());
  EXPECT_EQ(died->cause, DeathCause::kHeartbeat);
}

TEST(SupervisorCore, APauseOfTheLauncherIsNobodysSilence) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  job.advance_ms(60000);
  EXPECT_EQ(job.count(Kind::kKill, kStore), 0u);
  EXPECT_EQ(job.count(Kind::kKill, actor(0)), 0u);
}

TEST(SupervisorCore, AnAnswerThatWaitedThroughAPauseIsNotFromTheFuture) {
  CoreJob job(CoreJob::options(2, false));
  job.start_all();
  for (int i = 0; i < 20; ++i) {
    job.pause_ms(5000);
    job.answer(0);
    job.advance_ms(20);
  }
  EXPECT_EQ(job.count(Kind::kKill, kStore), 0u);
  EXPECT_EQ(job.count(Kind::kKill, actor(0)), 0u);
}

TEST(SupervisorCore, EndsTheJobWhenTrainersTakeDifferentSteps) {
  CoreJob job(CoreJob::options(2, true));
  job.start_all();
  job.reap(trainer(0), job.core().life(trainer(0)), {false, 0});
  job.answer(4);
  for (int i = 0; i < 20; ++i) {
    job.answer(4);
    job.advance_ms(50);
  }
  EXPECT_EQ(job.core().ending(), Ending::kNone) << "the other one may still be at work";
  job.phase(1, Phase::kWaitPeers);
  for (int i = 0; i < 20; ++i) {
    job.answer(4);
    job.advance_ms(50);
  }
  EXPECT_EQ(job.core().ending(), Ending::kTrainersDisagree);
}

// Its last words were that it waits; the step was done since, and it stands still.
TEST(SupervisorCore, TakesNoWordOfASilentActorForAStepThatNobodyTakes) {
  CoreJob job(CoreJob::options(2, true));
  job.start_all();
  job.reap(trainer(0), job.core().life(trainer(0)), {false, 0});
  job.phase(1, Phase::kWaitPeers);
  for (uint64_t silent_ms = 0; job.count(Kind::kKill, actor(1)) == 0; silent_ms += 10) {
    ASSERT_LT(silent_ms, 1000u);
    job.silent(1, silent_ms);
    job.answer(4);
    job.advance_ms(10);
  }
  EXPECT_EQ(job.core().ending(), Ending::kNone);
}

TEST(SupervisorCore, TakesNoWordOfASilentStoreForAStepThatNobodyTakes) {
  CoreJob job(CoreJob::options(2, true));
  job.start_all();
  job.reap(trainer(0), job.core().life(trainer(0)), {false, 0});
  job.phase(1, Phase::kWaitPeers);
  for (int i = 0; i < 10; ++i) {
    job.answer(4);
    job.advance_ms(10);
  }
  while (job.count(Kind::kKill, kStore) == 0) job.advance_ms(10);
  EXPECT_EQ(job.core().ending(), Ending::kNone);
}

TEST(SupervisorCore, APauseIsNoTimeInWhichATrainerWaited) {
  CoreJob job(CoreJob::options(2, true));
  job.start_all();
  job.reap(trainer(0), job.core().life(trainer(0)), {false, 0});
  job.phase(1, Phase::kWaitPeers);
  job.answer(4);
  job.advance_ms(5000);
  job.answer(4);
  EXPECT_EQ(job.core().ending(), Ending::kNone);
}

TEST(SupervisorCore, KillsWhatDoesNotComeUpInTime) {
  CoreJob job(CoreJob::options(1, false));
  for (int i = 0; i < 5; ++i) job.advance_ms(100);
  EXPECT_EQ(job.count(Kind::kKill, kStore), 1u);
}

TEST(SupervisorCore, AnActorsStartTimeWaitsForTheStore) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  job.die(kStore);
  job.advance_ms(20);  // the new store is spawned and takes 400 ms
  for (int i = 0; i < 4; ++i) job.advance_ms(100);
  EXPECT_EQ(job.count(Kind::kKill, actor(0)), 0u);
  EXPECT_EQ(job.core().state(actor(0)), SeatState::kStarting);
  job.answer(0);
  EXPECT_EQ(job.core().state(actor(0)), SeatState::kRunning);
}

TEST(SupervisorCore, AFatalEndIsToldInTheProcesssOwnWords) {
  CoreJob job(CoreJob::options(2, false));
  job.start_all();
  const uint64_t life = job.core().life(actor(1));
  job.core().reaped(actor(1), life, {false, 10}, true, job.now(), "/dev/shm/x has mode 0644");
  EXPECT_EQ(job.core().ending(), Ending::kFatalExit);
  EXPECT_EQ(job.core().ending_text(),
            "gpu_actor 1 ended with exit code 10: /dev/shm/x has mode 0644");
}

TEST(SupervisorCore, WhatWasCommittedIsRememberedAcrossTheStoresDeath) {
  CoreJob job(CoreJob::options(1, false));
  EXPECT_EQ(job.core().step_seen(), kNoStep);
  job.start_all();
  job.answer(7);
  job.die(kStore);
  EXPECT_TRUE(job.core().facts().ranks.empty());
  EXPECT_EQ(job.core().step_seen(), 7);
}

}  // namespace
}  // namespace optlease
