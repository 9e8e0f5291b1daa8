// The end of whole jobs: launcher or every process killed, clean stops, resumed runs, crash loops.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

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

}  // namespace
}  // namespace optlease
