// What a run's report says, where processes died on the way: counted, not sampled.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "actors/runtime/exit_code.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

// No skipped step: nothing streams in it.
const std::vector<std::string> kSteps = {"gradients.nonfinite_steps=[]", "job.steps=60",
                                         "model.elements=60000",         "restart.intensity=1000",
                                         "offload.chunk_size_mb=0.0625", "restart.backoff_ms=1"};

uint64_t bytes_of(const Json& report, const char* key) {
  return report["traffic"][key].get<uint64_t>();
}

const Json* death_of(const Json& report, const std::string& role, int rank) {
  for (const Json& death : report["restarts"]) {
    if (death["role"] == role && death["rank"] == rank) return &death;
  }
  return nullptr;
}

const Json* check_of(const Json& report, const std::string& name) {
  for (const Json& check : report["checks"]) {
    if (check["name"] == name) return &check;
  }
  return nullptr;
}

// Every committed chunk came in and went back once, and what a killed life did is done again.
TEST(Report, AKilledRunHasMovedAtLeastWhatAnUndisturbedOneMoves) {
  SystemJob calm("calm");
  calm.use("synthetic.toml", kSteps);
  const Json quiet = calm.run();
  ASSERT_TRUE(quiet.is_object());
  ASSERT_GT(bytes_of(quiet, "bytes_h2d"), 0u);
  uint64_t by_rank = 0;
  for (const Json& rank : quiet["ranks"]) by_rank += rank["bytes_h2d"].get<uint64_t>();
  EXPECT_EQ(bytes_of(quiet, "bytes_h2d"), by_rank);

  SystemJob killed("killed");
  killed.use("synthetic.toml", kSteps);
  killed.rehearse("gpu_actor", 1, 20, "copy_out", 1);
  killed.rehearse("gpu_actor", 0, 30, "between_steps", 0);
  killed.rehearse("gpu_actor", 1, 50, "after_commit", 1);
  killed.rehearse("host_store", 0, 55, "before_commit", 1);
  const Json report = killed.run();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report["state_digest"], quiet["state_digest"]);
  EXPECT_EQ(report["traffic"]["bytes_are_exact"], true);
  EXPECT_GE(bytes_of(report, "bytes_h2d"), bytes_of(quiet, "bytes_h2d"));
  EXPECT_GE(bytes_of(report, "bytes_d2h"), bytes_of(quiet, "bytes_d2h"));
  // And not some steps' worth more: a life's work is counted once.
  EXPECT_LT(bytes_of(report, "bytes_d2h"), bytes_of(quiet, "bytes_d2h") * 5 / 4);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_GE(report["ranks"][r]["bytes_d2h"], quiet["ranks"][r]["bytes_d2h"]) << "rank " << r;
  }
}

TEST(Report, AnActorThatIsKilledFromOutsideTakesNoFigureWithIt) {
  SystemJob calm("calm");
  calm.use("synthetic.toml", kSteps);
  const uint64_t of_60_steps = calm.run()["ranks"][1]["bytes_d2h"].get<uint64_t>();
  SystemJob job("outside");
  job.use("synthetic.toml", kSteps);
  job.add("job.steps=300");
  job.start();
  ASSERT_TRUE(job.wait_for_step(20));
  for (int kills = 0; kills < 3; ++kills) {
    const pid_t actor = job.pid_of("gpu_actor", 1);
    if (actor > 0) kill(actor, SIGKILL);
    poll(nullptr, 0, 150);
  }
  const CommandResult result = job.wait();
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json report = job.report();
  EXPECT_EQ(report["traffic"]["bytes_are_exact"], true);
  EXPECT_GE(report["ranks"][1]["bytes_d2h"].get<uint64_t>(), 5 * of_60_steps);
  ASSERT_GE(report["restarts"].size(), 1u);
  EXPECT_EQ(report["restarts_by_cause"]["crash"], report["restarts_by_role"]["gpu_actor"]);
  EXPECT_EQ(report["step_seconds"]["steps_measured"].get<int>() > 250, true)
      << report["step_seconds"] << ": the steps of all lives count";
  EXPECT_EQ(report["status"], "passed") << report["checks"].dump(1);
}

TEST(Report, AQuietJobSaysWhyItFailedAndNothingElse) {
  SystemJob job("quiet");
  job.use("synthetic.toml", kSteps);
  job.add("restart.intensity=0");
  job.add("job.steps=100000");
  job.start({"--quiet"});
  ASSERT_TRUE(job.wait_for_step(3));
  ASSERT_EQ(kill(job.pid_of("gpu_actor", 1), SIGKILL), 0);
  const CommandResult failed = job.wait();
  EXPECT_EQ(failed.exit_code, static_cast<int>(ExitCode::kCrashLoop)) << failed.output;
  EXPECT_EQ(failed.output.rfind("optlease run: 1 restarts within 60000 ms", 0), 0u)
      << failed.output;
  EXPECT_NE(failed.output.find("gpu_actor 1 (crash)"), std::string::npos) << failed.output;
  EXPECT_EQ(std::count(failed.output.begin(), failed.output.end(), '\n'), 1) << failed.output;
  job.command({"clean", "{job}"});
  SystemJob calm("silent");
  calm.use("synthetic.toml", kSteps);
  calm.start({"--quiet"});
  const CommandResult passed = calm.wait();
  EXPECT_EQ(passed.exit_code, 0);
  EXPECT_EQ(passed.output, "");
}

TEST(Report, NamesStepAndPhaseOfEveryConfiguredKill) {
  SystemJob job("places");
  job.use("synthetic.toml", kSteps);
  job.rehearse("gpu_actor", 1, 3, "between_steps", 1);
  job.rehearse("gpu_actor", 0, 9, "copy_out", 0);
  job.rehearse("host_store", 0, 15, "before_commit", 1);
  job.start();
  const CommandResult result = job.wait();
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json report = job.report();
  struct Kill {
    const char* role;
    int rank;
    int step;
    const char* phase;
    int at_rank;
    int committed;  // at that moment
  };
  for (const Kill& wanted :
       {Kill{"gpu_actor", 1, 3, "between_steps", 1, 3}, Kill{"gpu_actor", 0, 9, "copy_out", 0, 8},
        Kill{"host_store", 0, 15, "before_commit", 1, 14}}) {
    const Json* death = death_of(report, wanted.role, wanted.rank);
    ASSERT_NE(death, nullptr) << report["restarts"].dump(1);
    const Json place = {
        {"step", wanted.step}, {"phase", wanted.phase}, {"at_rank", wanted.at_rank}};
    EXPECT_EQ((*death)["rehearsal"], place) << wanted.role;
    EXPECT_EQ((*death)["step_committed"], wanted.committed) << wanted.role;
  }
  EXPECT_EQ(report["restarts_by_cause"]["rehearsal"], 3);
  EXPECT_NE(result.output.find("killing gpu_actor 0: rehearsal in step 9, copy_out of rank 0"),
            std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find(", 3 restarts\n"), std::string::npos) << result.output;
  const std::string file = job.directory() + "/report.json";
  const CommandResult compared = job.command({"compare", file, file});
  EXPECT_NE(compared.output.find("host_store   killed in step 15, before_commit of rank 1"),
            std::string::npos)
      << compared.output;
}

TEST(Report, ADeathThatEndsTheJobIsNoRestart) {
  SystemJob job("intensity");
  job.use("synthetic.toml", kSteps);
  job.add("job.steps=100000");
  job.add("restart.intensity=0");
  job.expect_segments_left();
  job.start();
  ASSERT_TRUE(job.wait_for_step(5));
  kill(job.pid_of("gpu_actor", 0), SIGKILL);
  const CommandResult result = job.wait();
  EXPECT_EQ(result.exit_code, 8) << result.output;
  EXPECT_NE(result.output.find(", 0 restarts of 1 death\n"), std::string::npos) << result.output;
  const Json report = job.report();
  EXPECT_EQ(report["restarts"].size(), 1u);
  EXPECT_EQ(report["restarts_by_cause"]["crash"], 0);
  const Json* kept = check_of(report, "run_directory_removed");
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ((*kept)["passed"], true);
  EXPECT_NE((*kept)["detail"].get<std::string>().find("kept for its logs"), std::string::npos);
  EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
}

// Not even root removes a file that is immutable. False where the file system has no such thing.
bool set_immutable(const std::string& path, bool on) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int flags = 0;
  bool done = fd >= 0 && ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0;
  flags = on ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
  done = done && ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0;
  if (fd >= 0) close(fd);
  return done;
}

TEST(Report, ARunDirectoryThatCannotBeRemovedIsNoSegmentThatIsLeft) {
  SystemJob job("directory");
  job.use("synthetic.toml", kSteps);
  job.add("job.steps=300");
  job.start();
  ASSERT_TRUE(job.wait_for_step(5));
  const std::string foreign = job.directory() + "/optlease/" + job.name() + "/foreign";
  std::ofstream(foreign) << "x";
  const bool set = set_immutable(foreign, true);
  const CommandResult result = job.wait();
  EXPECT_TRUE(!set || set_immutable(foreign, false));
  if (!set) {
    GTEST_SKIP() << "no immutable files in " << job.directory();
  }
  const Json report = job.report();
  const Json* removed = check_of(report, "run_directory_removed");
  ASSERT_NE(removed, nullptr) << result.output;
  EXPECT_EQ((*removed)["passed"], false) << *removed;
  EXPECT_NE((*removed)["detail"].get<std::string>().find("/foreign"), std::string::npos);
  EXPECT_EQ(report["status"], "failed");
  const Json* segments = check_of(report, "no_segments_left");
  ASSERT_NE(segments, nullptr);
  EXPECT_EQ((*segments)["passed"], true) << *segments;
}

TEST(Report, ReplayedGradientsThatAreNotThereAreRefusedBeforeAnythingStarts) {
  SystemJob job("replay");
  job.use("replay.toml", {"gradients.replay_path=/no/such/g.{step}.{rank}"});
  job.start();
  const CommandResult result = job.wait();
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_NE(result.output.find("--set gradients.replay_path=/no/such/g.{step}.{rank}: "
                               "gradients.replay_path: step 1: "),
            std::string::npos)
      << result.output;
  EXPECT_TRUE(job.segments().empty());
  const Json report = job.report();
  EXPECT_EQ(report["status"], "refused");
  ASSERT_EQ(report["checks"].size(), 1u) << report["checks"].dump(1);
  EXPECT_EQ(report["checks"][0]["name"], "exit_zero");

  const std::string file = std::string(OPTLEASE_SOURCE_DIR) + "/configs/replay.toml";
  const CommandResult planned =
      job.command({"plan", file, "--set", "gradients.replay_path=/no/such/g.{step}"});
  EXPECT_EQ(planned.exit_code, 3) << planned.output;
  EXPECT_EQ(job.command({"plan", file}).exit_code, 0);
}

TEST(Report, AResumedRunNeedsTheGradientsOfItsNextStepAlone) {
  SystemJob job("rolling");
  const std::string recorded = job.directory() + "/g";
  fs::create_directory(recorded);
  for (const char* step : {"1", "2", "3", "4"}) {
    const std::string name = std::string("/gradients.") + step + ".safetensors";
    fs::copy_file(std::string(OPTLEASE_SOURCE_DIR) + "/configs/replay" + name, recorded + name);
  }
  job.use("replay.toml", {"job.steps=2", "job.keep_state=true",
                          "gradients.replay_path=" + recorded + "/gradients.{step}.safetensors"});
  job.expect_segments_left();
  EXPECT_EQ(job.run()["steps_committed"], 2);
  fs::remove(recorded + "/gradients.1.safetensors");
  fs::remove(recorded + "/gradients.2.safetensors");
  job.add("job.steps=4");
  job.add("job.keep_state=false");
  EXPECT_EQ(job.run({"--resume"})["steps_committed"], 4);
}

}  // namespace
}  // namespace optlease
