#include "launcher/supervisor_core.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

namespace optlease {
namespace {

using Kind = Action::Kind;

constexpr Seat kStore{Role::kHostStore, 0};
Seat actor(uint32_t rank) { return {Role::kGpuActor, rank}; }
Seat trainer(uint32_t rank) { return {Role::kTrainer, rank}; }

// A small language: kill(seat), answer(step), advance_ms(n), and questions about what was asked of
// the shell.
class Job {
 public:
  explicit Job(CoreOptions options) : options_(std::move(options)), core_(options_, now_) { tick(); }

  static CoreOptions options(uint32_t world_size, bool trainers, int64_t steps = 10) {
    CoreOptions out;
    out.world_size = world_size;
    out.trainers = trainers;
    out.steps = steps;
    out.restart.intensity = 3;
    out.restart.period_ms = 1000;
    out.restart.backoff_ms = 20;
    out.restart.backoff_ms_max = 100;
    out.restart.start_timeout_ms = 500;
    out.restart.heartbeat_timeout_ms = 200;
    out.restart.stop_timeout_ms = 300;
    out.store_start_timeout_ms = 500;
    out.kill_wait_ms = 400;
    return out;
  }

  void tick() {
    core_.advance(now_);
    take();
  }
  void take() {
    for (Action& action : core_.take_actions()) all_.push_back(std::move(action));
  }
  void advance_ms(uint64_t ms) {
    now_ += ms;
    tick();
  }
  // The store answers; every actor whose seat has a life is attached, unless `silent` says otherwise.
  void answer(Step committed, Step open = kNoStep) {
    StoreFacts facts;
    facts.body.step_committed = committed;
    facts.body.step_open = open;
    facts.body.rank_count = options_.world_size;
    for (uint32_t r = 0; r < options_.world_size; ++r) {
      RankStatus rank{};
      rank.incarnation = core_.life(actor(r));
      rank.silent_ms = r < silent_.size() ? silent_[r] : 0;
      facts.ranks.push_back(rank);
    }
    core_.store_answered(facts, now_);
    tick();
  }
  void close(Seat seat) {
    core_.lifeline_closed(seat, core_.life(seat), now_);
    take();
  }
  void reap(Seat seat, uint64_t life, ExitInfo info = {true, SIGKILL}, bool fatal = false) {
    core_.reaped(seat, life, info, fatal, now_);
    take();
  }
  void die(Seat seat, ExitInfo info = {true, SIGKILL}) {
    const uint64_t life = core_.life(seat);
    close(seat);
    reap(seat, life, info);
  }
  void start_all() {
    answer(kNoStep);
    answer(0);
    tick();
  }
  void silent(uint32_t rank, uint64_t ms) {
    silent_.resize(options_.world_size);
    silent_[rank] = ms;
  }

  size_t count(Kind kind, Seat seat) const {
    return static_cast<size_t>(std::count_if(all_.begin(), all_.end(), [&](const Action& a) {
      return a.kind == kind && a.seat == seat;
    }));
  }
  size_t position(Kind kind, Seat seat, uint64_t life) const {
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].kind == kind && all_[i].seat == seat && all_[i].life == life) return i;
    }
    return SIZE_MAX;
  }
  bool asked(Kind kind) const {
    return std::any_of(all_.begin(), all_.end(), [&](const Action& a) { return a.kind == kind; });
  }
  void forget() { all_.clear(); }
  const std::vector<Action>& actions() const { return all_; }
  SupervisorCore& core() { return core_; }
  uint64_t now() const { return now_; }

 private:
  uint64_t now_ = 1000;
  CoreOptions options_;
  SupervisorCore core_;
  std::vector<Action> all_;
  std::vector<uint64_t> silent_;
};

TEST(SupervisorCore, StartsStoreThenActorsThenTrainers) {
  Job job(Job::options(2, true));
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
  Job job(Job::options(1, false));
  job.answer(kNoStep);
  const size_t told = job.position(Kind::kTellStarted, actor(0), 1);
  const size_t spawned = job.position(Kind::kSpawn, actor(0), 1);
  ASSERT_NE(told, SIZE_MAX);
  ASSERT_NE(spawned, SIZE_MAX);
  EXPECT_LT(told, spawned);
}

TEST(SupervisorCore, RestartsAnActorAtLifelineEndBeforeTheZombieIsReaped) {
  Job job(Job::options(2, false));
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
  Job job(Job::options(1, false));
  job.start_all();
  job.reap(actor(0), 1, {false, 1});
  const size_t lost = job.position(Kind::kTellLost, actor(0), 1);
  const size_t reaped = job.position(Kind::kTellReaped, actor(0), 1);
  ASSERT_NE(lost, SIZE_MAX);
  ASSERT_NE(reaped, SIZE_MAX);
  EXPECT_LT(lost, reaped);
}

TEST(SupervisorCore, RestartsTheStoreOnlyOnceItIsReaped) {
  Job job(Job::options(1, false));
  job.start_all();
  job.close(kStore);
  job.advance_ms(500);
  EXPECT_EQ(job.count(Kind::kSpawn, kStore), 1u);
  job.reap(kStore, 1);
  job.advance_ms(20);
  EXPECT_EQ(job.count(Kind::kSpawn, kStore), 2u);
}

TEST(SupervisorCore, TellsARestartedStoreEverythingAgain) {
  Job job(Job::options(2, false));
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
  Job job(Job::options(1, false));
  job.start_all();
  job.close(actor(0));
  job.die(kStore);
  job.forget();
  job.advance_ms(50);
  EXPECT_NE(job.position(Kind::kTellLost, actor(0), 1), SIZE_MAX);
  EXPECT_EQ(job.position(Kind::kTellReaped, actor(0), 1), SIZE_MAX);
}

TEST(SupervisorCore, ContinuesIncarnationNumbersOfAnEarlierRun) {
  CoreOptions options = Job::options(2, false);
  options.last_incarnation = {7, 0};
  Job job(options);
  job.start_all();
  EXPECT_EQ(job.core().life(actor(0)), 8u);
  EXPECT_EQ(job.core().life(actor(1)), 1u);
  EXPECT_NE(job.position(Kind::kTellReaped, actor(0), 7), SIZE_MAX);
}

TEST(SupervisorCore, DoublesTheBackoffOfTheSameProcess) {
  CoreOptions options = Job::options(1, false);
  options.restart.intensity = 10;
  Job job(options);
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
  Job job(Job::options(1, false));
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
  Job job(Job::options(1, false));
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
  Job job(Job::options(1, false));
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
  Job job(Job::options(2, false));
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
  Job job(Job::options(1, false));
  job.start_all();
  job.advance_ms(60000);
  EXPECT_EQ(job.count(Kind::kKill, kStore), 0u);
  EXPECT_EQ(job.count(Kind::kKill, actor(0)), 0u);
}

TEST(SupervisorCore, KillsWhatDoesNotComeUpInTime) {
  Job job(Job::options(1, false));
  for (int i = 0; i < 5; ++i) job.advance_ms(100);
  EXPECT_EQ(job.count(Kind::kKill, kStore), 1u);
}

TEST(SupervisorCore, AnActorsStartTimeWaitsForTheStore) {
  Job job(Job::options(1, false));
  job.start_all();
  job.die(kStore);
  job.advance_ms(20);  // the new store is spawned and takes 400 ms
  for (int i = 0; i < 4; ++i) job.advance_ms(100);
  EXPECT_EQ(job.count(Kind::kKill, actor(0)), 0u);
  EXPECT_EQ(job.core().state(actor(0)), SeatState::kStarting);
  job.answer(0);
  EXPECT_EQ(job.core().state(actor(0)), SeatState::kRunning);
}

TEST(SupervisorCore, CompletesWhenTheLastStepIsCommitted) {
  Job job(Job::options(1, false, 5));
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
  Job job(Job::options(2, true, 10));
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
  Job job(Job::options(2, true, 10));
  job.start_all();
  job.reap(trainer(0), 1, {false, 0});
  job.answer(10);
  EXPECT_EQ(job.core().ending(), Ending::kNone);
}

TEST(SupervisorCore, RestartsATrainerThatFailed) {
  Job job(Job::options(1, true));
  job.start_all();
  job.reap(trainer(0), 1, {false, 3});
  job.advance_ms(20);
  EXPECT_EQ(job.core().life(trainer(0)), 2u);
}

TEST(SupervisorCore, StopsTrainersBeforeActors) {
  Job job(Job::options(1, true));
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

TEST(SupervisorCore, KillsWhatDoesNotStopInTimeAndReportsWhatCannotBeKilled) {
  Job job(Job::options(1, true));
  job.start_all();
  job.core().stop(Ending::kStopped, "asked to", job.now());
  for (int i = 0; i < 4; ++i) job.advance_ms(100);
  EXPECT_EQ(job.count(Kind::kKill, trainer(0)), 1u);
  job.reap(trainer(0), 1);
  for (int i = 0; i < 8; ++i) job.advance_ms(100);
  EXPECT_EQ(job.count(Kind::kKill, actor(0)), 1u);
  EXPECT_EQ(job.count(Kind::kKill, kStore), 1u);
  job.die(kStore);
  EXPECT_FALSE(job.core().finished());
  for (int i = 0; i < 5; ++i) job.advance_ms(100);
  EXPECT_TRUE(job.core().finished());
  ASSERT_EQ(job.core().unreaped().size(), 1u);
  EXPECT_NE(job.core().unreaped()[0].find("gpu_actor 0"), std::string::npos);
}

TEST(SupervisorCore, HurryKillsEverything) {
  Job job(Job::options(2, true));
  job.start_all();
  job.core().hurry(job.now());
  job.take();
  for (const Seat seat : job.core().seats()) EXPECT_EQ(job.count(Kind::kKill, seat), 1u);
}

TEST(SupervisorCore, AnExitThatNoRestartMendsEndsTheJob) {
  Job job(Job::options(1, false));
  job.reap(kStore, 1, {false, 4}, true);
  EXPECT_EQ(job.core().ending(), Ending::kFatalExit);
  EXPECT_NE(job.core().ending_text().find("exit code 4"), std::string::npos);
  job.advance_ms(1);
  EXPECT_TRUE(job.core().finished());
}

TEST(SupervisorCore, AProgramThatCannotStartEndsTheJob) {
  Job job(Job::options(1, false));
  job.core().spawn_failed(kStore, 1, "it is not there", job.now());
  EXPECT_EQ(job.core().ending(), Ending::kSpawnFailed);
  job.advance_ms(1);
  EXPECT_TRUE(job.core().finished());
}

TEST(SupervisorCore, IgnoresEventsOfUnknownLives) {
  Job job(Job::options(1, false));
  job.start_all();
  job.forget();
  job.core().lifeline_closed(actor(0), 9, job.now());
  job.core().reaped(actor(0), 9, {true, 9}, false, job.now());
  job.core().reaped(trainer(0), 1, {true, 9}, false, job.now());
  job.take();
  EXPECT_TRUE(job.actions().empty());
}

TEST(SupervisorCore, AClosedLifelineOfALivingProcessIsHelpedAlong) {
  Job job(Job::options(1, false));
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
