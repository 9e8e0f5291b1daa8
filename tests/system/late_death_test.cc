// A killed actor that cannot be reaped, its descriptors open and its memory mapped, as a GPU
// driver's teardown leaves it for a second: its successor starts at the death page's word and
// works, and nothing that the dead one might still write is used meanwhile.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "shm/contract/status.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

constexpr int kDeadlineMs = 60'000;  // against a hang, not a measure
const std::vector<std::string> kJob = {
    "gradients.nonfinite_steps=[]", "job.steps=400",           "model.elements=60000",
    "offload.chunk_size_mb=0.0625", "offload.window_chunks=2", "restart.intensity=1000",
    "restart.backoff_ms=1"};

// Traces one thread of a process, which then cannot end whole before release(): the thread stops at
// its end (and, pushed on, stays a zombie that only the tracer can reap).
class HeldThread {
 public:
  explicit HeldThread(pid_t process) {
    const std::string tasks = format("/proc/%d/task", static_cast<int>(process));
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(tasks, error)) {
      const pid_t thread = std::stoi(entry.path().filename());
      if (thread == process) continue;
      errno = 0;
      if (ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACEEXIT) == 0) {
        thread_ = thread;
        return;
      }
      error_ = errno;
    }
  }
  ~HeldThread() { release(); }
  bool held() const { return thread_ > 0; }
  int error() const { return error_; }

  // REQUIRES: the process was killed.
  void release() {
    int status = 0;
    while (thread_ > 0) {
      const pid_t got = waitpid(thread_, &status, __WALL);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 || !WIFSTOPPED(status)) thread_ = -1;
      if (thread_ > 0) (void)ptrace(PTRACE_CONT, thread_, nullptr, nullptr);
    }
  }

 private:
  pid_t thread_ = -1;
  int error_ = 0;
};

Json process_of(const Json& status, int rank) {
  if (!status.contains("processes")) return {};
  for (const Json& process : status["processes"]) {
    if (process["role"] == "gpu_actor" && process["rank"] == rank) return process;
  }
  return {};
}

// True once an actor of `rank` other than `old` is attached.
bool wait_for_successor(SystemJob& job, int rank, pid_t old) {
  for (int waited = 0; waited < kDeadlineMs && job.launcher_alive(); waited += 20) {
    const Json process = process_of(job.status(), rank);
    if (process.is_object() && process["state"] == "running" && process["pid"] != old) return true;
    poll(nullptr, 0, 20);
  }
  return false;
}

const Json* death_of(const Json& report, pid_t pid) {
  for (const Json& death : report["restarts"]) {
    if (death["pid"] == pid) return &death;
  }
  return nullptr;
}

TEST(LateDeath, ASuccessorWorksWhileItsPredecessorCannotBeReaped) {
  SystemJob undisturbed("in-time");
  undisturbed.use("synthetic.toml", kJob);
  const Json oracle = undisturbed.run();
  SystemJob job("late");
  job.use("synthetic.toml", kJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const pid_t old = job.pid_of("gpu_actor", 1);
  ASSERT_GT(old, 0);
  HeldThread thread(old);
  if (!thread.held() && (thread.error() == EPERM || thread.error() == ENOSYS)) {
    ASSERT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
    (void)job.wait();
    GTEST_SKIP() << "this system lets nobody trace a process";
  }
  ASSERT_TRUE(thread.held());
  ASSERT_EQ(kill(old, SIGKILL), 0);

  ASSERT_TRUE(wait_for_successor(job, 1, old)) << job.status().dump(1);
  const Json before = job.status();
  EXPECT_EQ(kill(old, 0), 0) << "the dead one was reaped: nothing was tested";
  poll(nullptr, 0, 300);
  const Json after = job.status();
  ASSERT_TRUE(before.is_object() && after.is_object());
  EXPECT_EQ(before["step_committed"], after["step_committed"])
      << "a step was committed beside a process that may still write";
  EXPECT_EQ(kill(old, 0), 0);

  thread.release();
  const CommandResult ended = job.wait();
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  const Json report = job.report();
  EXPECT_EQ(report["state_digest"], oracle["state_digest"]);
  const Json* death = death_of(report, old);
  ASSERT_NE(death, nullptr) << report["restarts"].dump(1);
  EXPECT_EQ((*death)["seen_by"], "death_page");
  EXPECT_LT((*death)["attach_seconds"].get<double>(), (*death)["reap_seconds"].get<double>());
}

TEST(LateDeath, EveryKilledActorIsAnnouncedByItsDeathPage) {
  SystemJob job("announced");
  std::vector<std::string> overrides = kJob;
  overrides.push_back("job.steps=20");
  job.use("synthetic.toml", overrides);
  job.rehearse("gpu_actor", 0, 4, "copy_in", 0);
  job.rehearse("gpu_actor", 1, 8, "before_commit", 0);
  job.rehearse("gpu_actor", 1, 12, "between_steps", 1);
  job.rehearse("host_store", 0, 16, "update", 0);
  const Json report = job.run();
  EXPECT_EQ(report["rehearsals"]["done"], 4);
  ASSERT_EQ(report["restarts"].size(), 4u) << report["restarts"].dump(1);
  for (const Json& death : report["restarts"]) {
    EXPECT_EQ(death["seen_by"], death["role"] == "gpu_actor" ? "death_page" : "exit") << death;
    EXPECT_TRUE(death["reap_seconds"].is_number()) << death;
  }
}

}  // namespace
}  // namespace optlease
