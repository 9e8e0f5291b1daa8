// The end of whole jobs: launcher or every process killed, clean stops, resumed runs, crash loops.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "actors/runtime/exit_code.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

const std::vector<std::string> kJob = {"job.steps=400", "model.elements=60000",
                                       "offload.chunk_size_mb=0.0625"};

int number_of(ExitCode code) { return static_cast<int>(code); }

std::string undisturbed() {
  static const std::string digest = [] {
    SystemJob job("undisturbed");
    job.use("synthetic.toml", kJob);
    return job.run()["state_digest"].get<std::string>();
  }();
  return digest;
}

void wait_until_gone(const SystemJob& job) {
  for (int i = 0; i < 500 && !job.processes().empty(); ++i) poll(nullptr, 0, 10);
  EXPECT_TRUE(job.processes().empty()) << "children outlive their launcher";
}

TEST(Resume, AfterTheLauncherIsKilledItsChildrenEndAndTheStateGoesOn) {
  SystemJob job("launcher");
  job.use("synthetic.toml", kJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(20));
  kill(job.launcher_pid(), SIGKILL);
  job.wait();
  wait_until_gone(job);
  EXPECT_FALSE(job.segments().empty()) << "the state is gone";
  const Json report = job.run({"--resume"});
  EXPECT_EQ(report["state_digest"], undisturbed());
  EXPECT_EQ(report["resumed"], true);
}

TEST(Resume, AfterEveryProcessOfTheNodeIsKilledAtOnce) {
  SystemJob job("node");
  job.use("synthetic.toml", kJob);
  for (int64_t step : {15, 60, 120}) {
    job.start(step == 15 ? std::vector<std::string>{} : std::vector<std::string>{"--resume"});
    ASSERT_TRUE(job.wait_for_step(step));
    const Json status = job.status();
    for (const Json& process : status["processes"]) {
      if (process["pid"].is_number() && process["role"] != "launcher")
        kill(process["pid"].get<pid_t>(), SIGKILL);
    }
    kill(job.launcher_pid(), SIGKILL);
    job.wait();
    wait_until_gone(job);
  }
  const Json report = job.run({"--resume"});
  EXPECT_EQ(report["state_digest"], undisturbed());
}

TEST(Resume, AStateThatIsThereIsNeitherOverwrittenNorIgnored) {
  SystemJob job("exists");
  job.use("synthetic.toml", kJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(10));
  EXPECT_EQ(job.command({"stop", "{job}", "--keep"}).exit_code, 0);
  job.wait();
  ASSERT_FALSE(job.segments().empty());
  job.start();
  const CommandResult refused = job.wait();
  EXPECT_EQ(refused.exit_code, number_of(ExitCode::kStateExists)) << refused.output;
  EXPECT_NE(refused.output.find("--resume"), std::string::npos) << refused.output;
  const Json report = job.run({"--resume"});
  EXPECT_EQ(report["state_digest"], undisturbed());
}

TEST(Resume, WithNothingThereIsRefused) {
  SystemJob job("absent");
  job.use("synthetic.toml", kJob);
  job.start({"--resume"});
  const CommandResult refused = job.wait();
  EXPECT_EQ(refused.exit_code, number_of(ExitCode::kStateAbsent)) << refused.output;
}

TEST(Resume, FreshDiscardsTheOldState) {
  SystemJob job("fresh");
  job.use("synthetic.toml", kJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(10));
  kill(job.launcher_pid(), SIGKILL);
  job.wait();
  wait_until_gone(job);
  const Json report = job.run({"--fresh"});
  EXPECT_EQ(report["state_digest"], undisturbed());
  EXPECT_EQ(report["resumed"], false);
}

TEST(Resume, SigtermIsACleanStop) {
  SystemJob job("sigterm");
  job.use("synthetic.toml", kJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(5));
  kill(job.launcher_pid(), SIGTERM);
  const CommandResult result = job.wait(30);
  EXPECT_EQ(result.exit_code, number_of(ExitCode::kInterrupted)) << result.output;
  EXPECT_TRUE(job.segments().empty()) << "nobody asked to keep the state";
}

TEST(Resume, SigtermKeepsTheStateWhereTheJobAsksForIt) {
  SystemJob job("sigterm-keep");
  std::vector<std::string> overrides = kJob;
  overrides.push_back("job.keep_state=true");
  job.use("synthetic.toml", overrides);
  job.start();
  ASSERT_TRUE(job.wait_for_step(5));
  kill(job.launcher_pid(), SIGTERM);
  EXPECT_EQ(job.wait(30).exit_code, number_of(ExitCode::kInterrupted));
  EXPECT_FALSE(job.segments().empty());
  job.add("job.keep_state=false");
  EXPECT_EQ(job.run({"--resume"})["state_digest"], undisturbed());
}

TEST(Resume, ACrashLoopEndsTheJobWithItsReasonAndKeepsTheState) {
  SystemJob job("loop");
  job.use("quickstart.toml",
          {"trainer.command=[\"/bin/false\"]", "restart.intensity=3", "restart.backoff_ms=1"});
  job.start();
  const CommandResult result = job.wait(60);
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kTrainerFailed)) << result.output;
  EXPECT_NE(result.output.find("restart_intensity_exceeded"), std::string::npos) << result.output;
  EXPECT_FALSE(job.segments().empty())
      << "the state of a failed job is kept for --resume: " << result.output;
  const CommandResult clean = job.command({"clean", "{job}"});
  EXPECT_EQ(clean.exit_code, 0) << clean.output;
  EXPECT_TRUE(job.segments().empty()) << clean.output;
}

TEST(Resume, WithFewerStepsThanTheStateHasIsRefusedAndTouchesNothing) {
  SystemJob job("fewer");
  job.use("synthetic.toml", kJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(30));
  kill(job.launcher_pid(), SIGKILL);
  job.wait();
  wait_until_gone(job);
  job.add("job.steps=20");
  job.start({"--resume"});
  const CommandResult refused = job.wait();
  EXPECT_EQ(refused.exit_code, number_of(ExitCode::kBadConfiguration)) << refused.output;
  EXPECT_NE(refused.output.find("job.steps is 20"), std::string::npos) << refused.output;
  EXPECT_FALSE(job.segments().empty()) << "the state is gone";
  job.add("job.steps=400");
  EXPECT_EQ(job.run({"--resume"})["state_digest"], undisturbed());
}

TEST(Resume, WithAnotherSeedIsRefusedAfterAKillAndAfterACleanStop) {
  SystemJob job("seed");
  job.use("synthetic.toml", kJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(5));
  kill(job.launcher_pid(), SIGKILL);
  job.wait();
  wait_until_gone(job);
  const auto is_refused = [&job] {
    job.add("model.seed=77");
    job.start({"--resume"});
    const CommandResult refused = job.wait();
    EXPECT_EQ(refused.exit_code, number_of(ExitCode::kBadConfiguration)) << refused.output;
    EXPECT_NE(refused.output.find("model.seed was 1 and is now 77"), std::string::npos)
        << refused.output;
    job.add("model.seed=1");
  };
  is_refused();
  job.start({"--resume"});
  ASSERT_TRUE(job.wait_for_step(10));
  EXPECT_EQ(job.command({"stop", "{job}", "--keep"}).exit_code, 0);
  job.wait(30);
  is_refused();
  EXPECT_EQ(job.run({"--resume"})["state_digest"], undisturbed());
}

TEST(Resume, WithAnotherPlanIsRefusedAndTouchesNothing) {
  SystemJob job("plan");
  job.use("synthetic.toml", kJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(10));
  kill(job.launcher_pid(), SIGKILL);
  job.wait();
  wait_until_gone(job);
  job.add("model.elements=50000");
  job.start({"--resume"});
  const CommandResult refused = job.wait();
  EXPECT_NE(refused.exit_code, 0) << refused.output;
  job.add("model.elements=60000");
  EXPECT_EQ(job.run({"--resume"})["state_digest"], undisturbed());
}

// --- The launcher, killed at each of its phases -----------------------------------------------

// What is there for `run --resume` once everybody has ended.
enum class Left { kNothing, kEither, kState };

struct Phase {
  const char* point;
  Left left;
};
constexpr Phase kPhases[] = {
    {"launcher.start", Left::kNothing},      // before it owns the job
    {"claim.plan_written", Left::kNothing},  // it owns it, and has told what is to run
    {"claim.emptied", Left::kNothing},       // nothing was started
    {"launcher.spawned:1", Left::kEither},   // the store is about to make its segments, or does
    {"launcher.spawned:2", Left::kEither},   // an actor
    {"launcher.spawned:3", Left::kEither},   // the other
    {"launcher.store_up", Left::kState},     // the first answer of the store
    {"launcher.step:1", Left::kState},       // the first step that it hears of, and later ones
    {"launcher.step:3", Left::kState},       //
    {"launcher.stopping", Left::kState},     // the last step is committed
    {"launcher.reaped:1", Left::kState},     // a child has ended
    {"launcher.reaped:3", Left::kState},     // the last one
    {"launcher.all_ended", Left::kState},    // nobody else is left
    {"launcher.reported", Left::kState},     // the state was read for the report
    {"removal.begun", Left::kNothing},       // it is being removed
    {"removal.segment:1", Left::kNothing},   //
    {"removal.segment:3", Left::kNothing},   //
    {"lock.unlinked", Left::kNothing},       // as removed as it can be
};

TEST(Resume, AfterTheLauncherIsKilledAtEachOfItsPhasesTheBitsAreTheSame) {
  std::vector<std::string> overrides = kJob;
  overrides.push_back("job.steps=100");
  SystemJob whole("phases");
  whole.use("synthetic.toml", overrides);
  const std::string digest = whole.run()["state_digest"];
  for (const Phase& phase : kPhases) {
    SCOPED_TRACE(phase.point);
    SystemJob job("phase");
    job.use("synthetic.toml", overrides);
    setenv("OPTLEASE_KILL_POINT", phase.point, 1);
    job.start();
    unsetenv("OPTLEASE_KILL_POINT");
    const CommandResult killed = job.wait();
    EXPECT_EQ(killed.signal, SIGKILL) << "it was never there: " << killed.output;
    wait_until_gone(job);
    job.start({"--resume"});
    const CommandResult resumed = job.wait();
    const bool was_there = resumed.exit_code == 0;
    if (!was_there) {
      EXPECT_EQ(resumed.exit_code, number_of(ExitCode::kStateAbsent)) << resumed.output;
      job.run();  // in place of what was never finished, without being told to
    }
    if (phase.left != Left::kEither) {
      EXPECT_EQ(was_there, phase.left == Left::kState) << resumed.output;
    }
    EXPECT_EQ(job.report()["state_digest"], digest);
    EXPECT_TRUE(job.segments().empty());
    if (testing::Test::HasFailure()) return;
  }
}

// --- A kept state that is damaged --------------------------------------------------------------

void flip_a_bit(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
  ASSERT_TRUE(file.flush().good()) << path;
}

// Refused in words, with nothing touched: mended, it goes on as if nothing had been.
TEST(Resume, AKeptStateOfWhichABitIsFlippedOrAFileIsAwayIsRefusedAndSparedUntilItIsNamed) {
  SystemJob job("flip-kept");
  std::vector<std::string> overrides = kJob;
  overrides.insert(overrides.end(), {"job.keep_state=true", "job.steps=20"});
  job.use("synthetic.toml", overrides);
  const std::string digest = job.run()["state_digest"];
  const std::string stem = "/dev/shm/optlease." + std::to_string(getuid()) + "." + job.name();
  const auto is_refused_and_spared = [&] {
    const std::vector<std::string> before = job.segments();
    for (const std::vector<std::string>& flags :
         {std::vector<std::string>{}, std::vector<std::string>{"--resume"}}) {
      job.start(flags);
      const CommandResult refused = job.wait();
      EXPECT_EQ(refused.exit_code, number_of(ExitCode::kCorruptState)) << refused.output;
      EXPECT_NE(refused.output.find("--fresh"), std::string::npos) << refused.output;
    }
    // Without a name, but only looking: the machine has other people's jobs.
    const CommandResult cleaned = job.command({"clean", "--dry-run", "--include-kept"});
    EXPECT_NE(cleaned.output.find("left " + job.name() + ": it may hold a state"),
              std::string::npos)
        << cleaned.output;
    EXPECT_EQ(job.segments(), before);
  };
  flip_a_bit(stem + ".ctl", 200);
  is_refused_and_spared();
  flip_a_bit(stem + ".ctl", 200);
  std::filesystem::copy_file(stem + ".ctl", job.directory() + "/ctl.away");
  std::filesystem::remove(stem + ".ctl");
  is_refused_and_spared();
  std::filesystem::copy_file(job.directory() + "/ctl.away", stem + ".ctl");
  std::filesystem::permissions(
      stem + ".ctl", std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const CommandResult whole = job.command({"digest", "{job}", "--json"});
  EXPECT_EQ(Json::parse(whole.output)["state_digest"], digest);
  flip_a_bit(stem + ".r1", 8);
  is_refused_and_spared();
  const CommandResult named = job.command({"clean", "{job}"});
  EXPECT_EQ(named.exit_code, 0) << named.output;
  EXPECT_TRUE(job.segments().empty()) << named.output;
}

}  // namespace
}  // namespace optlease
