// What a start may meet: a /dev/shm that is small, or full a moment later, signals without end,
// leftovers that leave room for nothing else, and somebody who cleans meanwhile.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "actors/runtime/exit_code.h"
#include "shm/contract/status.h"
#include "tests/support/small_shm.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;
using testing_support::fill_shm;
using testing_support::in_small_shm;
using testing_support::kNoRightToMount;

const std::string kConfig = std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml";

int number_of(ExitCode code) { return static_cast<int>(code); }

// The whole of `body` in a /dev/shm of that size; its failures count here.
void in_shm_of(uint64_t bytes, const std::function<void()>& body) {
  const int end = in_small_shm(std::to_string(bytes), [&] {
    body();
    return testing::Test::HasFailure() ? 1 : 0;
  });
  if (end == kNoRightToMount) GTEST_SKIP() << "mounting is not permitted";
  EXPECT_EQ(end, 0) << "see above";
}

// 'T' where it is stopped, 'S' where it sleeps, ...; 0 where it is gone.
char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_ends = text.rfind(") ");
  return name_ends == std::string::npos ? '\0' : text[name_ends + 2];
}

// The process of the job that a stop point has stopped; 0 where none is within 30 s.
pid_t stopped_process(const SystemJob& job) {
  for (int i = 0; i < 3000; ++i) {
    for (const pid_t pid : job.processes()) {
      if (state_of(pid) == 'T') return pid;
    }
    poll(nullptr, 0, 10);
  }
  return 0;
}

// A directory with our launcher and, in the place of every other program, one that leaves a word.
class LauncherAlone {
 public:
  explicit LauncherAlone(const SystemJob& job) : job_(job), directory_(job.directory() + "/bin") {
    fs::create_directory(directory_);
    fs::copy_file(std::string(OPTLEASE_BIN_DIR) + "/optlease", directory_ + "/optlease");
    for (const char* name : {"optlease-host-store", "optlease-gpu-actor", "optlease-trainer"}) {
      const std::string path = directory_ + "/" + name;
      std::ofstream(path) << "#!/bin/sh\necho started >> " << started_file() << "\nexit 4\n";
      fs::permissions(path, fs::perms::owner_all);
    }
  }
  int run(uint64_t elements) {
    const std::string command = format(
        "XDG_RUNTIME_DIR=%s %s/optlease run %s --set 'job.name=\"%s\"' --set "
        "model.elements=%llu > %s/out.txt 2>&1",
        job_.directory().c_str(), directory_.c_str(), kConfig.c_str(), job_.name().c_str(),
        static_cast<unsigned long long>(elements), job_.directory().c_str());
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool started_anything() const { return fs::exists(started_file()); }
  std::string output() const {
    std::stringstream text;
    text << std::ifstream(job_.directory() + "/out.txt").rdbuf();
    return text.str();
  }

 private:
  std::string started_file() const { return directory_ + "/started"; }

  const SystemJob& job_;
  std::string directory_;
};

// Fault case 2.
TEST(Start, InThe64MibOfAPlainContainerIsRefusedBeforeAnyProcess) {
  in_shm_of(64 << 20, [] {
    SystemJob job("container");
    LauncherAlone launcher(job);
    EXPECT_EQ(launcher.run(20'000'000), number_of(ExitCode::kNoResources)) << launcher.output();
    EXPECT_NE(launcher.output().find("shared memory (/dev/shm)"), std::string::npos)
        << launcher.output();
    EXPECT_NE(launcher.output().find("64.0 MiB"), std::string::npos) << launcher.output();
    EXPECT_FALSE(launcher.started_anything()) << launcher.output();
    EXPECT_TRUE(job.segments().empty());
    // What fits is started: the check above can fail.
    EXPECT_NE(launcher.run(60'000), 0) << launcher.output();
    EXPECT_TRUE(launcher.started_anything()) << launcher.output();
  });
}

// Fault case 1, through the launcher: there was room when it looked, and again when the store did.
TEST(Start, WhereTheSpaceIsTakenAfterTheCheckEndsWithItsNumbersAndLeavesNothing) {
  in_shm_of(64 << 20, [] {
    for (const int segment : {1, 2, 3}) {  // control, and each rank's arena
      SystemJob job("taken");
      job.use("synthetic.toml", {"model.elements=600000", "restart.start_timeout_s=60"});
      setenv("OPTLEASE_KILL_POINT", format("stop:reserve.checked:%d", segment).c_str(), 1);
      job.start();
      unsetenv("OPTLEASE_KILL_POINT");
      const pid_t store = stopped_process(job);
      ASSERT_GT(store, 0) << "no store reserves segment " << segment;
      EXPECT_TRUE(fill_shm());
      kill(store, SIGCONT);
      const CommandResult result = job.wait(60);
      EXPECT_EQ(result.exit_code, number_of(ExitCode::kNoResources)) << result.output;
      EXPECT_NE(result.output.find("No space left on device"), std::string::npos) << result.output;
      EXPECT_NE(result.output.find("bytes and its file system has"), std::string::npos)
          << result.output;
      EXPECT_TRUE(job.segments().empty()) << "segment " << segment;
      fs::remove("/dev/shm/somebody-elses");
    }
  });
}

// Fault case 5.
TEST(Start, UnderAStormOfSignalsInEveryProcessGivesTheSameState) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's runtime must be the first library";
#endif
  const std::vector<std::string> overrides = {"job.steps=30", "model.elements=60000",
                                              "offload.chunk_size_mb=0.0625"};
  SystemJob calm("calm");
  calm.use("synthetic.toml", overrides);
  const Json oracle = calm.run();
  SystemJob job("storm");
  job.use("synthetic.toml", overrides);
  job.rehearse("gpu_actor", 1, 10, "copy_in", 1);  // starts within a job are starts, too
  job.rehearse("host_store", 0, 20, "before_commit", 0);
  setenv("LD_PRELOAD", OPTLEASE_SIGNAL_STORM, 1);
  job.start();
  unsetenv("LD_PRELOAD");
  const CommandResult result = job.wait(120);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(job.report()["state_digest"], oracle["state_digest"]);
  EXPECT_EQ(job.report()["restarts"].size(), 2u) << job.report()["restarts"].dump(1);
}

// Fault case 6: what was killed is all that fits.
TEST(Start, AfterEverythingWasKilledGoesOnWhereOneCopyFits) {
  const std::vector<std::string> overrides = {"job.steps=200", "model.elements=500000",
                                              "offload.chunk_size_mb=0.25"};
  SystemJob measure("measure");
  std::vector<std::string> words = {"plan", kConfig, "--json"};
  for (const std::string& each : overrides) words.insert(words.end(), {"--set", each});
  const Json plan = Json::parse(measure.command(words).output, nullptr, false);
  ASSERT_TRUE(plan.is_object());
  const auto needed = plan["memory"]["shared_memory_bytes"].get<uint64_t>();
  measure.use("synthetic.toml", overrides);
  const Json oracle = measure.run();
  in_shm_of(needed + needed / 4, [&] {
    SystemJob job("one-copy");
    job.use("synthetic.toml", overrides);
    for (const char* flag : {"--resume", "--fresh"}) {
      job.start();
      ASSERT_TRUE(job.wait_for_step(15));
      for (const pid_t pid : job.processes()) kill(pid, SIGKILL);
      job.wait();
      for (int i = 0; i < 500 && !job.processes().empty(); ++i) poll(nullptr, 0, 10);
      SystemJob other("other");
      other.use("synthetic.toml", overrides);
      other.start();
      EXPECT_EQ(other.wait(30).exit_code, number_of(ExitCode::kNoResources)) << "two copies fit";
      const Json report = job.run({flag});
      EXPECT_EQ(report["state_digest"], oracle["state_digest"]) << flag;
    }
  });
}

// Fault case 9: whoever has said nothing yet is alive all the same.
class Stopped : public testing::TestWithParam<const char*> {};

TEST_P(Stopped, BeforeItsFirstWordIsNeitherCleanedNorReplaced) {
  SystemJob job("stopped");
  job.use("synthetic.toml", {"job.steps=100000", "model.elements=60000",
                             "restart.start_timeout_s=120", "restart.heartbeat_timeout_s=120"});
  setenv("OPTLEASE_KILL_POINT", (std::string("stop:") + GetParam()).c_str(), 1);
  job.start();
  unsetenv("OPTLEASE_KILL_POINT");
  const pid_t stopped = stopped_process(job);
  ASSERT_GT(stopped, 0) << "nobody passes " << GetParam();
  const std::vector<std::string> before = job.segments();
  ASSERT_FALSE(before.empty());
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"clean", "--dry-run"}, {"clean", "{job}", "--include-kept"}}) {
    const CommandResult clean = job.command(words);
    EXPECT_NE(clean.output.find(job.name() + ": it runs"), std::string::npos) << clean.output;
    EXPECT_EQ(job.segments(), before) << clean.output;
  }
  const CommandResult second =
      job.command({"run", kConfig, "--fresh", "--set", "job.name=\"" + job.name() + "\""});
  EXPECT_EQ(second.exit_code, number_of(ExitCode::kAlreadyRunning)) << second.output;
  EXPECT_EQ(job.segments(), before);
  EXPECT_EQ(state_of(stopped), 'T');
  kill(stopped, SIGCONT);
  ASSERT_TRUE(job.wait_for_step(3));
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  job.wait(30);
  EXPECT_TRUE(job.report()["restarts"].empty()) << job.report()["restarts"].dump(1);
}

// A launcher that has its lock and nothing else; a store with control segment, with all segments.
INSTANTIATE_TEST_SUITE_P(Start, Stopped,
                         testing::Values("lock.taken", "store.control_made", "store.before_ready"));

}  // namespace
}  // namespace optlease
