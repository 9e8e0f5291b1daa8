// How a job completes, stops and ends.
#include <gtest/gtest.h>
#include <signal.h>

#include "actors/runtime/exit_code.h"
#include "tests/launcher/supervisor_core_job.h"

namespace optlease {
namespace {

TEST(SupervisorCore, CompletesWhenTheLastStepIsCommitted) {
  CoreJob job(CoreJob::options(1, false, 5));
  job.start_all();
  job.answer(4);
  EXPECT_EQ(job.core().ending(), Ending::kNone);
  job.answer(5);
  EXPECT_EQ(job.core().ending(), Ending::kCompleted);
  ASSERT_TRUE(job.asked(Kind::kStopStore));
  job.die(actor(0), {false, 0});
  job.die(kStore, {false, 0});
  job.advance_ms(1);
  EXPECT_TRUE(job.core().finished());
  EXPECT_EQ(job.count(Kind::kDied, actor(0)), 0u) << "an ordered end is no death";
}

TEST(SupervisorCore, CompletesWhenEveryTrainerEndedWellAndNoStepIsOpen) {
  CoreJob job(CoreJob::options(2, true, 10));
  job.start_all();
  job.reap(trainer(0), 1, {false, 0});
  job.answer(7, 8);
  EXPECT_EQ(job.core().ending(), Ending::kNone);
  job.reap(trainer(1), 1, {false, 0});
  job.answer(7, 8);
  EXPECT_EQ(job.core().ending(), Ending::kNone) << "step 8 is open";
  job.answer(8);
  EXPECT_EQ(job.core().ending(), Ending::kCompleted);
}

TEST(SupervisorCore, DoesNotCompleteATrainerJobWhileATrainerRuns) {
  CoreJob job(CoreJob::options(2, true, 10));
  job.start_all();
  job.reap(trainer(0), 1, {false, 0});
  job.answer(10);
  EXPECT_EQ(job.core().ending(), Ending::kNone);
}

TEST(SupervisorCore, RestartsATrainerThatFailed) {
  CoreJob job(CoreJob::options(1, true));
  job.start_all();
  job.reap(trainer(0), 1, {false, 3});
  job.advance_ms(20);
  EXPECT_EQ(job.core().life(trainer(0)), 2u);
}

TEST(SupervisorCore, EndsAtOnceWhereANewStoreKnowsOnlyAnOlderCommittedStep) {
  CoreJob job(CoreJob::options(2, true, 100));
  job.start_all();
  job.answer(41);
  job.answer(42);
  job.die(kStore);
  job.advance_ms(20);
  ASSERT_EQ(job.core().life(kStore), 2u);
  job.answer(42);
  EXPECT_EQ(job.core().ending(), Ending::kNone) << "the same step is no step back";
  job.die(kStore);
  job.advance_ms(40);
  ASSERT_EQ(job.core().life(kStore), 3u);
  job.answer(17);
  EXPECT_EQ(job.core().ending(), Ending::kStateWentBack);
  for (const char* words :
       {"incarnation 3", "step 17", "step 42", "older copy", "/dev/shm", "moved away are kept"}) {
    EXPECT_NE(job.core().ending_text().find(words), std::string::npos)
        << words << ": " << job.core().ending_text();
  }
  EXPECT_EQ(job.core().facts().body.step_committed, 42);
  // Nobody gets the time to go on from there, but actors save what a resumed job would need.
  for (const Seat seat : {kStore, trainer(0), trainer(1)}) {
    EXPECT_EQ(job.count(Kind::kKill, seat), 1u) << text_of(seat);
  }
  for (const Seat seat : {actor(0), actor(1)}) {
    EXPECT_EQ(job.count(Kind::kTerminate, seat), 1u) << text_of(seat);
    EXPECT_EQ(job.count(Kind::kKill, seat), 0u) << text_of(seat);
  }
  EXPECT_FALSE(job.asked(Kind::kStopStore));
  for (const Seat seat : {kStore, trainer(0), trainer(1)}) job.die(seat);
  job.die(actor(0), {false, 0});
  job.advance_ms(299);
  EXPECT_FALSE(job.core().finished()) << "actor 1 may still be saving";
  job.die(actor(1), {false, 0});
  job.advance_ms(1);
  EXPECT_TRUE(job.core().finished());
  EXPECT_EQ(job.core().ending_text().find("was killed"), std::string::npos);
}

TEST(SupervisorCore, WhereTheStateWentBackAnActorThatDoesNotEndIsKilledAfterTheStopTimeout) {
  CoreJob job(CoreJob::options(2, false, 100));
  job.start_all();
  job.answer(42);
  job.die(kStore);
  job.advance_ms(20);
  job.answer(17);
  ASSERT_EQ(job.core().ending(), Ending::kStateWentBack);
  job.die(kStore);
  job.die(actor(0), {false, 0});
  job.advance_ms(300);
  EXPECT_EQ(job.count(Kind::kKill, actor(1)), 1u);
  EXPECT_NE(job.core().ending_text().find("gpu_actor 1 did not end within 300 ms"),
            std::string::npos)
      << job.core().ending_text();
  EXPECT_EQ(job.core().ending_text().find("gpu_actor 0 did"), std::string::npos);
  job.die(actor(1));
  job.advance_ms(1);
  EXPECT_TRUE(job.core().finished());
}

// It has mapped the older files: what it would save there is another step's.
TEST(SupervisorCore, WhereTheStateWentBackAnActorThatWasStartedSinceSavesNothing) {
  CoreJob job(CoreJob::options(2, false, 100));
  job.start_all();
  job.answer(42);
  job.die(kStore);
  job.die(actor(1));
  job.advance_ms(40);
  ASSERT_EQ(job.core().life(actor(1)), 2u);
  job.answer(17);
  ASSERT_EQ(job.core().ending(), Ending::kStateWentBack);
  EXPECT_EQ(job.count(Kind::kTerminate, actor(0)), 1u);
  EXPECT_EQ(job.count(Kind::kTerminate, actor(1)), 0u);
  EXPECT_EQ(job.count(Kind::kKill, actor(1)), 1u);
  job.core().hurry(job.now());
  job.take();
  EXPECT_EQ(job.count(Kind::kKill, actor(0)), 1u) << "who hurries does not wait for it";
}

TEST(SupervisorCore, KnowsTheCommittedStepOfTheStateThatItResumes) {
  CoreOptions options = CoreJob::options(1, false, 100);
  options.step_committed = 30;
  CoreJob job(options);
  job.answer(29);
  EXPECT_EQ(job.core().ending(), Ending::kStateWentBack);
  CoreJob other(options);
  other.answer(30);
  EXPECT_EQ(other.core().ending(), Ending::kNone);
}

TEST(SupervisorCore, StopsTrainersBeforeActors) {
  CoreJob job(CoreJob::options(1, true));
  job.start_all();
  job.core().stop(Ending::kStopped, "asked to", job.now());
  job.take();
  EXPECT_EQ(job.count(Kind::kTerminate, trainer(0)), 1u);
  job.advance_ms(50);
  EXPECT_FALSE(job.asked(Kind::kStopStore));
  job.reap(trainer(0), 1, {true, SIGTERM});
  job.advance_ms(1);
  EXPECT_TRUE(job.asked(Kind::kStopStore));
  EXPECT_EQ(job.core().life(trainer(0)), 1u) << "nothing is restarted while the job stops";
}

// It may have to finish an open step, for which the actors must live on.
TEST(SupervisorCore, AStoreThatIsBetweenTwoLivesIsToldToStopOnceItAnswersAndNoActorIsEnded) {
  CoreJob job(CoreJob::options(2, false));
  job.start_all();
  job.answer(3, 4);
  job.die(kStore);
  job.advance_ms(30);
  ASSERT_EQ(job.core().state(kStore), SeatState::kStarting);
  job.core().stop(Ending::kStopped, "asked to", job.now());
  job.advance_ms(1);
  job.advance_ms(40);
  EXPECT_FALSE(job.asked(Kind::kStopStore)) << "nobody could hear it";
  EXPECT_FALSE(job.asked(Kind::kTerminate));
  job.answer(3, 4);
  EXPECT_EQ(job.count(Kind::kStopStore, kStore), 1u);
  EXPECT_FALSE(job.asked(Kind::kTerminate));
  CoreJob dies(CoreJob::options(1, false));
  dies.start_all();
  dies.die(kStore);
  dies.advance_ms(30);
  dies.core().stop(Ending::kStopped, "asked to", dies.now());
  dies.advance_ms(1);
  dies.die(kStore);
  dies.advance_ms(1);
  EXPECT_EQ(dies.count(Kind::kTerminate, actor(0)), 1u) << "no other store comes";
}

TEST(SupervisorCore, KillsWhatDoesNotStopInTimeAndReportsWhatCannotBeKilled) {
  CoreJob job(CoreJob::options(1, true));
  job.start_all();
  job.core().stop(Ending::kStopped, "asked to", job.now());
  for (int i = 0; i < 4; ++i) job.advance_ms(100);
  EXPECT_EQ(job.count(Kind::kKill, trainer(0)), 1u);
  job.reap(trainer(0), 1);
  for (int i = 0; i < 8; ++i) job.advance_ms(100);
  EXPECT_EQ(job.count(Kind::kKill, actor(0)), 1u);
  EXPECT_EQ(job.count(Kind::kKill, kStore), 1u);
  EXPECT_NE(job.core().ending_text().find("asked to; trainer 0 did not end within 300 ms"),
            std::string::npos)
      << job.core().ending_text();
  EXPECT_NE(job.core().ending_text().find("; host_store did not end within 600 ms"),
            std::string::npos)
      << job.core().ending_text();
  job.die(kStore);
  EXPECT_FALSE(job.core().finished());
  for (int i = 0; i < 5; ++i) job.advance_ms(100);
  EXPECT_TRUE(job.core().finished());
  ASSERT_EQ(job.core().unreaped().size(), 1u);
  EXPECT_NE(job.core().unreaped()[0].find("gpu_actor 0"), std::string::npos);
}

TEST(SupervisorCore, TellsForHowLongTheStoreHasNotAnswered) {
  CoreJob job(CoreJob::options(1, false));
  EXPECT_EQ(job.core().store_silent_ms(job.now()), 0u) << "there is none yet";
  job.start_all();
  job.answer(3);
  EXPECT_EQ(job.core().store_silent_ms(job.now()), 0u);
  job.core().stop(Ending::kStopped, "asked to", job.now());
  job.advance_ms(150);
  EXPECT_EQ(job.core().store_silent_ms(job.now()), 150u);
}

TEST(SupervisorCore, HurryKillsEverything) {
  CoreJob job(CoreJob::options(2, true));
  job.start_all();
  job.core().hurry(job.now());
  job.take();
  for (const Seat seat : job.core().seats()) EXPECT_EQ(job.count(Kind::kKill, seat), 1u);
}

TEST(SupervisorCore, AnExitThatNoRestartMendsEndsTheJob) {
  CoreJob job(CoreJob::options(1, false));
  job.reap(kStore, 1, {false, 4}, true);
  EXPECT_EQ(job.core().ending(), Ending::kFatalExit);
  EXPECT_NE(job.core().ending_text().find("exit code 4"), std::string::npos);
  job.advance_ms(1);
  EXPECT_TRUE(job.core().finished());
}

TEST(SupervisorCore, TheFatalExitIsNotReplacedByThoseThatFollowIt) {
  CoreJob job(CoreJob::options(2, false));
  job.start_all();
  job.reap(actor(1), 1, {false, 10}, true);
  job.reap(actor(0), 1, {false, 3}, true);
  job.reap(kStore, 1, {false, 1});
  EXPECT_EQ(job.core().ending(), Ending::kFatalExit);
  EXPECT_EQ(job.core().ending_seat(), actor(1));
  EXPECT_EQ(job.core().ending_exit().code, 10);
}

TEST(SupervisorCore, AProgramThatCannotStartEndsTheJob) {
  CoreJob job(CoreJob::options(1, false));
  job.core().spawn_failed(kStore, 1, Status(StatusCode::kNotFound, "it is not there"), job.now());
  EXPECT_EQ(job.core().ending(), Ending::kSpawnFailed);
  EXPECT_EQ(job.core().ending_exit().code, static_cast<int>(ExitCode::kIo));
  EXPECT_NE(job.core().ending_text().find("it is not there"), std::string::npos);
  job.advance_ms(1);
  EXPECT_TRUE(job.core().finished());
}

TEST(SupervisorCore, IgnoresEventsOfUnknownLives) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  job.forget();
  job.core().lifeline_closed(actor(0), 9, job.now());
  job.core().reaped(actor(0), 9, {true, 9}, false, job.now());
  job.core().reaped(trainer(0), 1, {true, 9}, false, job.now());
  job.take();
  EXPECT_TRUE(job.actions().empty());
}

TEST(SupervisorCore, AClosedLifelineOfALivingProcessIsHelpedAlong) {
  CoreJob job(CoreJob::options(1, false));
  job.start_all();
  job.close(actor(0));
  job.forget();
  for (int i = 0; i < 30; ++i) {
    job.advance_ms(100);
    job.answer(0);
  }
  const size_t kill = job.position(Kind::kKill, actor(0), 1);
  EXPECT_NE(kill, SIZE_MAX);
}

}  // namespace
}  // namespace optlease
