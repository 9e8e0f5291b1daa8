// A launcher that runs out of memory at any of its phases (throw: of shm/kill_point.h): it ends the
// job in words and in order, and loses nothing.
#include <gtest/gtest.h>

#include <cstdlib>

#include "actors/runtime/exit_code.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

const std::vector<std::string> kJob = {"job.steps=100", "model.elements=60000",
                                       "offload.chunk_size_mb=0.0625"};

int number_of(ExitCode code) { return static_cast<int>(code); }

enum class Failed {
  kBeforeAnyState,  // nothing was begun, or perhaps just so
  kInTheJob,        // it ends the job in order and keeps what was begun
  kInTheStop,       // the last step is committed: it ends as if nothing had been
  kAfterTheJob,     // of the state something may be left; the report tells
};

struct Memory {
  const char* point;
  Failed when;
};

constexpr Memory kMemory[] = {
    {"launcher.forked:1", Failed::kBeforeAnyState},
    {"launcher.forked:2", Failed::kBeforeAnyState},
    {"launcher.spawned:1", Failed::kBeforeAnyState},
    {"launcher.spawned:2", Failed::kBeforeAnyState},
    {"launcher.spawned:3", Failed::kBeforeAnyState},
    {"launcher.store_up", Failed::kBeforeAnyState},
    {"launcher.step:1", Failed::kInTheJob},
    {"launcher.step:3", Failed::kInTheJob},
    {"launcher.stopping", Failed::kInTheStop},
    {"launcher.reaped:1", Failed::kInTheStop},
    {"launcher.reaped:2", Failed::kInTheStop},
    {"launcher.reaped:3", Failed::kInTheStop},
    {"launcher.all_ended", Failed::kAfterTheJob},
    {"launcher.reported", Failed::kAfterTheJob},
    {"removal.begun", Failed::kAfterTheJob},
    {"removal.segment:1", Failed::kAfterTheJob},
    {"removal.segment:3", Failed::kAfterTheJob},
    {"lock.unlinked", Failed::kAfterTheJob},
};

void expect_ended_as(Failed when, const SystemJob& job, const CommandResult& failed) {
  EXPECT_NE(failed.output.find("memory has run out"), std::string::npos) << failed.output;
  EXPECT_TRUE(job.processes().empty()) << "it left processes behind";
  const Json report = job.report();
  for (const Json& check : report["checks"]) {
    if (check["name"] != "no_processes_left") continue;
    EXPECT_EQ(check["passed"], true) << check;
  }
  if (when == Failed::kInTheStop) {
    EXPECT_EQ(failed.exit_code, 0) << failed.output;
    return;
  }
  EXPECT_EQ(failed.exit_code, number_of(ExitCode::kNoResources)) << failed.output;
  EXPECT_EQ(report["status"], "failed");
  if (when == Failed::kInTheJob) {
    EXPECT_EQ(report["ending"], "launcher_failed");
  }
  if (when == Failed::kAfterTheJob) {
    EXPECT_EQ(report["steps_committed"], 100);
  }
}

// It ends the job in words and in order, wherever it strikes; what the next run then finds is what
// SIGKILL would have left, or better.
TEST(LauncherMemory, RunningOutAtAnyPhaseEndsTheJobInOrderAndLosesNothing) {
  SystemJob whole("memory-whole");
  whole.use("synthetic.toml", kJob);
  const std::string digest = whole.run()["state_digest"];
  for (const Memory& memory : kMemory) {
    SCOPED_TRACE(memory.point);
    SystemJob job("memory");
    job.use("synthetic.toml", kJob);
    setenv("OPTLEASE_KILL_POINT", (std::string("throw:") + memory.point).c_str(), 1);
    job.start();
    unsetenv("OPTLEASE_KILL_POINT");
    expect_ended_as(memory.when, job, job.wait());
    if (memory.when != Failed::kInTheStop) {
      job.start({"--resume"});
      const CommandResult resumed = job.wait();
      if (resumed.exit_code != 0) {
        EXPECT_EQ(resumed.exit_code, number_of(ExitCode::kStateAbsent)) << resumed.output;
        EXPECT_NE(memory.when, Failed::kInTheJob) << "a state was begun";
        job.run();
      }
    }
    EXPECT_EQ(job.report()["state_digest"], digest);
    EXPECT_TRUE(job.segments().empty());
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace optlease
