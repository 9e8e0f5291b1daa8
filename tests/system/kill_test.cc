// Kill anything, anywhere: the state at the end is that of the undisturbed run, bit for bit.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

#include "shm/contract/status.h"
#include "tests/support/system_job.h"
#include "tests/support/test_seed.h"

namespace optlease {
namespace {

// Small, several windows a rank, fast: a step takes milliseconds. No skipped step: nothing streams
// in it.
const std::vector<std::string> kSynthetic = {
    "gradients.nonfinite_steps=[]", "job.steps=40",
    "model.elements=60000",         "offload.chunk_size_mb=0.0625",
    "offload.window_chunks=2",      "restart.intensity=1000",
    "restart.backoff_ms=1"};
const std::vector<std::string> kLanguage = {"job.steps=40", "restart.intensity=1000",
                                            "restart.backoff_ms=1"};
const std::vector<std::string> kMoe = {"job.steps=20", "restart.intensity=1000",
                                       "restart.backoff_ms=1"};

std::string digest_of(const Json& report) {
  if (!report.contains("state_digest") || !report["state_digest"].is_string()) return "none";
  return report["state_digest"].get<std::string>();
}

// The undisturbed run of a configuration, once a process.
std::string oracle(const std::string& config, const std::vector<std::string>& overrides) {
  static std::map<std::string, std::string> known;
  std::string key = config;
  for (const std::string& each : overrides) key += " " + each;
  std::string& digest = known[key];
  if (digest.empty()) {
    SystemJob job("oracle");
    job.use(config, overrides);
    digest = digest_of(job.run());
    EXPECT_NE(digest, "none");
  }
  return digest;
}

int deaths_of(const Json& report, const std::string& role) {
  int deaths = 0;
  for (const Json& death : report["restarts"]) deaths += death["role"] == role ? 1 : 0;
  return deaths;
}

struct Aim {
  std::string role;
  int rank;
};
const std::vector<std::string> kPhases = {
    "before_lease", "copy_in",       "update",   "copy_out", "before_commit",
    "after_commit", "between_steps", "prepared", "answered", "gather"};

// Every phase of one role and rank in one run: a kill every fourth step.
void kill_at_every_phase(const std::string& config, const std::vector<std::string>& overrides,
                         const Aim& aim) {
  SystemJob job("phases");
  job.use(config, overrides);
  int64_t step = 3;
  for (const std::string& phase : kPhases) {
    job.rehearse(aim.role, aim.rank, step, phase, aim.rank);
    step += 4;
  }
  const Json report = job.run();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(digest_of(report), oracle(config, overrides));
  EXPECT_EQ(report["rehearsals"]["done"], static_cast<int>(kPhases.size()));
  EXPECT_GE(deaths_of(report, aim.role), static_cast<int>(kPhases.size()));
  expect_passed(report);
}

TEST(Kill, AnActorAtEveryPhase) {
  kill_at_every_phase("synthetic.toml", kSynthetic, {"gpu_actor", 1});
}
TEST(Kill, TheFirstRanksActorAtEveryPhase) {
  kill_at_every_phase("synthetic.toml", kSynthetic, {"gpu_actor", 0});
}
TEST(Kill, TheHostStoreAtEveryPhase) {
  kill_at_every_phase("synthetic.toml", kSynthetic, {"host_store", 0});
}
TEST(Kill, AnActorUnderATrainerAtEveryPhase) {
  kill_at_every_phase("quickstart.toml", kLanguage, {"gpu_actor", 1});
}
TEST(Kill, TheHostStoreUnderTrainersAtEveryPhase) {
  kill_at_every_phase("quickstart.toml", kLanguage, {"host_store", 0});
}
TEST(Kill, ATrainerAtEveryPhase) {
  kill_at_every_phase("quickstart.toml", kLanguage, {"trainer", 1});
}

TEST(Kill, TrainerAndActorOfOneRankTogether) {
  SystemJob job("together");
  job.use("quickstart.toml", kLanguage);
  job.rehearse("trainer", 0, 10, "copy_in", 0);
  job.rehearse("gpu_actor", 0, 10, "update", 0);
  job.rehearse("host_store", 0, 20, "before_commit", 0);
  job.rehearse("gpu_actor", 1, 20, "after_commit", 1);
  // Of one moment all happen, whatever their order: also the end of the actor that comes to it.
  job.rehearse("gpu_actor", 0, 30, "between_steps", 0);
  job.rehearse("trainer", 0, 30, "between_steps", 0);
  job.rehearse("host_store", 0, 30, "between_steps", 0);
  const Json report = job.run();
  EXPECT_EQ(digest_of(report), oracle("quickstart.toml", kLanguage));
  EXPECT_EQ(report["rehearsals"]["done"], 7);
}

// Between its answer and its commit a step is known to trainers and not yet to the segment.
TEST(Kill, EverybodyBetweenAnswerAndCommit) {
  SystemJob job("answered");
  job.use("quickstart.toml", kLanguage);
  job.rehearse("gpu_actor", 0, 8, "answered", 0);
  job.rehearse("trainer", 0, 8, "answered", 1);
  job.rehearse("host_store", 0, 16, "answered", 0);
  job.rehearse("trainer", 1, 16, "answered", 1);
  job.rehearse("gpu_actor", 1, 24, "answered", 0);
  job.rehearse("gpu_actor", 0, 24, "answered", 1);
  job.rehearse("host_store", 0, 40, "answered", 1);  // the job's last step
  const Json report = job.run();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(digest_of(report), oracle("quickstart.toml", kLanguage));
  EXPECT_EQ(report["rehearsals"]["done"], 7);
  expect_passed(report);
}

// Windows of the next step are leased and in staging, and its gradients are still being made.
TEST(Kill, EverybodyAfterPrepare) {
  SystemJob job("prepared");
  job.use("quickstart.toml", kLanguage);
  job.rehearse("trainer", 0, 8, "prepared", 0);
  job.rehearse("gpu_actor", 1, 8, "prepared", 1);
  job.rehearse("host_store", 0, 16, "prepared", 0);
  job.rehearse("gpu_actor", 0, 24, "prepared", 1);
  job.rehearse("trainer", 1, 24, "prepared", 0);
  const Json report = job.run();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(digest_of(report), oracle("quickstart.toml", kLanguage));
  EXPECT_EQ(report["rehearsals"]["done"], 5);
  expect_passed(report);
}

// Pieces of parameters have moved under the windows when a sender, a receiver or the store dies:
// the next group gathers them all again. What trainers read of it is in the digest.
void kill_while_gathering(const std::string& world, int last) {
  std::vector<std::string> overrides = kLanguage;
  overrides.push_back("ranks.world_size=" + world);
  SystemJob job("gathering");
  job.use("quickstart.toml", overrides);
  job.rehearse("gpu_actor", 0, 3, "gather", 0);
  job.rehearse("gpu_actor", last, 6, "gather", 0);
  job.rehearse("host_store", 0, 9, "gather", last);
  job.rehearse("gpu_actor", 0, 12, "after_commit", last);
  job.rehearse("gpu_actor", 1, 15, "before_commit", 0);
  job.rehearse("gpu_actor", 0, 18, "gather", last);  // and one of the group after that:
  job.rehearse("gpu_actor", last, 19, "gather", 0);
  job.rehearse("host_store", 0, 21, "update", 0);
  job.rehearse("gpu_actor", last, 21, "gather", last);
  job.rehearse("trainer", 0, 24, "gather", last);
  job.rehearse("gpu_actor", 0, 24, "gather", 0);
  const Json report = job.run();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(digest_of(report), oracle("quickstart.toml", overrides));
  EXPECT_EQ(report["status"], "passed") << report["checks"].dump(1);
  EXPECT_EQ(report["rehearsals"]["done"], 11);
}
TEST(Kill, AnybodyWhileTwoRanksGather) { kill_while_gathering("2", 1); }
TEST(Kill, AnybodyWhileThreeRanksGather) { kill_while_gathering("3", 2); }

TEST(Kill, AnActorOfThreeAtEveryPhase) {
  std::vector<std::string> overrides = kSynthetic;
  overrides.push_back("ranks.world_size=3");
  kill_at_every_phase("synthetic.toml", overrides, {"gpu_actor", 2});
}

// The windows of a step that turns out to be skipped are given back.
TEST(Kill, AStepThatIsSkippedAfterItWasPrepared) {
  const std::vector<std::string> skipping = {
      "gradients.nonfinite_steps=[5, 6, 11]", "job.steps=16",           "model.elements=60000",
      "offload.chunk_size_mb=0.0625",         "restart.intensity=1000", "restart.backoff_ms=1"};
  SystemJob job("skipped");
  job.use("synthetic.toml", skipping);
  job.rehearse("gpu_actor", 0, 5, "prepared", 0);
  job.rehearse("host_store", 0, 6, "prepared", 1);
  job.rehearse("gpu_actor", 1, 12, "prepared", 1);
  const Json report = job.run();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(digest_of(report), oracle("synthetic.toml", skipping));
  EXPECT_EQ(report["rehearsals"]["done"], 3);
}

TEST(Kill, InAJobWithDenseAndExpertSpaces) {
  SystemJob job("moe");
  job.use("moe.toml", kMoe);
  job.rehearse("gpu_actor", 0, 5, "copy_out", 0);
  job.rehearse("gpu_actor", 1, 8, "gather", 1);
  job.rehearse("host_store", 0, 10, "before_commit", 1);
  job.rehearse("gpu_actor", 0, 12, "gather", 1);
  job.rehearse("gpu_actor", 1, 15, "between_steps", 1);
  const Json report = job.run();
  EXPECT_EQ(digest_of(report), oracle("moe.toml", kMoe));
  EXPECT_EQ(report["rehearsals"]["done"], 5);
}

// SIGKILL to a random child of `job` at a random moment, up to `kills` times. Returns how often.
int kill_children(SystemJob& job, std::mt19937_64& random, int kills) {
  int killed = 0;
  while (killed < kills && job.launcher_alive()) {
    poll(nullptr, 0, static_cast<int>(random() % 100));
    const Json status = job.status();
    if (!status.contains("processes")) break;
    std::vector<pid_t> targets;
    for (const Json& process : status["processes"]) {
      const bool child = process["role"] != "launcher" && process["pid"].is_number();
      if (child && process["pid"] > 0) targets.push_back(process["pid"]);
    }
    if (targets.empty()) continue;
    killed += kill(targets[random() % targets.size()], SIGKILL) == 0 ? 1 : 0;
  }
  return killed;
}

// One run with kills at random times. How long a step takes differs by two orders of magnitude
// between machines: a job that was over before two kills is repeated with more steps.
int kill_at_random(const std::string& config, const std::vector<std::string>& overrides,
                   uint64_t seed, int kills) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (int steps = 100; steps <= 3200; steps *= 2) {
    std::mt19937_64 random(seed);
    std::vector<std::string> longer = overrides;
    longer.push_back("job.steps=" + std::to_string(steps));  // the last word counts
    SystemJob job("random");
    job.use(config, longer);
    job.start();
    EXPECT_TRUE(job.wait_for_step(0, 30));
    const int killed = kill_children(job, random, kills);
    const CommandResult result = job.wait(180);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    const Json report = job.report();
    EXPECT_EQ(report["steps_committed"], steps);
    EXPECT_EQ(digest_of(report), oracle(config, longer));
    // A kill may hit a process that had already ended by itself, or a corpse twice.
    EXPECT_TRUE(killed == 0 || !report["restarts"].empty()) << killed << " killed, none noticed";
    if (killed >= 2 || testing::Test::HasFailure()) return killed;
  }
  ADD_FAILURE() << config << " with 3200 steps was over before two kills";
  return 0;
}

TEST(Kill, AnyProcessAtRandomTimes) {
  const uint64_t seed = test_seed();
  const int runs = long_tests() ? 200 : 12;
  std::cout << "seed " << seed << ", " << runs << " runs (replay: tests/run.sh --seed " << seed
            << ")\n";
  int killed = 0;
  for (int run = 0; run < runs && !HasFailure(); ++run) {
    const uint64_t run_seed = seed + static_cast<uint64_t>(run);
    if (run % 3 == 0) killed += kill_at_random("synthetic.toml", kSynthetic, run_seed, 4);
    if (run % 3 == 1) killed += kill_at_random("quickstart.toml", kLanguage, run_seed, 4);
    if (run % 3 == 2) killed += kill_at_random("moe.toml", kMoe, run_seed, 4);
  }
  std::cout << killed << " processes killed\n";
}

}  // namespace
}  // namespace optlease
