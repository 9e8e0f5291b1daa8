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

namespace optlease {
namespace {

// Small, several windows a rank, fast: a step takes milliseconds. No skipped step: nothing streams
// in it.
const std::vector<std::string> kSynthetic = {
    "gradients.nonfinite_steps=[]", "job.steps=30",
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
  std::string& digest = known[config];
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
const std::vector<std::string> kPhases = {"before_lease", "copy_in",       "update",
                                          "copy_out",     "before_commit", "after_commit",
                                          "between_steps"};

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
  EXPECT_EQ(report["status"], "passed") << report["checks"].dump(1);
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
  const Json report = job.run();
  EXPECT_EQ(digest_of(report), oracle("quickstart.toml", kLanguage));
  EXPECT_EQ(report["rehearsals"]["done"], 4);
}

TEST(Kill, InAJobWithDenseAndExpertSpaces) {
  SystemJob job("moe");
  job.use("moe.toml", kMoe);
  job.rehearse("gpu_actor", 0, 5, "copy_out", 0);
  job.rehearse("host_store", 0, 10, "before_commit", 1);
  job.rehearse("gpu_actor", 1, 15, "between_steps", 1);
  const Json report = job.run();
  EXPECT_EQ(digest_of(report), oracle("moe.toml", kMoe));
  EXPECT_EQ(report["rehearsals"]["done"], 3);
}

// One process at a random moment, again and again, until the job ends.
void kill_at_random(const std::string& config, const std::vector<std::string>& overrides,
                    uint64_t seed, int kills) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  SystemJob job("random");
  job.use(config, overrides);
  job.start();
  ASSERT_TRUE(job.wait_for_step(0, 30));
  int killed = 0;
  for (; killed < kills && job.launcher_alive(); ++killed) {
    poll(nullptr, 0, static_cast<int>(random() % 200));
    const Json status = job.status();
    if (!status.contains("processes")) break;
    std::vector<pid_t> targets;
    for (const Json& process : status["processes"]) {
      if (process["role"] != "launcher" && process["pid"].is_number())
        targets.push_back(process["pid"]);
    }
    if (targets.empty()) continue;
    const pid_t target = targets[random() % targets.size()];
    if (target > 0) kill(target, SIGKILL);
  }
  const CommandResult result = job.wait(120);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(digest_of(job.report()), oracle(config, overrides));
}

TEST(Kill, AnyProcessAtRandomTimes) {
  const uint64_t seed = test_seed();
  const int runs = long_tests() ? 200 : 12;
  std::cout << "seed " << seed << ", " << runs << " runs (replay: tests/run.sh --seed " << seed
            << ")\n";
  std::vector<std::string> synthetic = kSynthetic, language = kLanguage, moe = kMoe;
  for (int run = 0; run < runs && !HasFatalFailure(); ++run) {
    const uint64_t run_seed = seed + static_cast<uint64_t>(run);
    switch (run % 3) {
      case 0:
        kill_at_random("synthetic.toml", synthetic, run_seed, 4);
        break;
      case 1:
        kill_at_random("quickstart.toml", language, run_seed, 4);
        break;
      default:
        kill_at_random("moe.toml", moe, run_seed, 4);
        break;
    }
  }
}

}  // namespace
}  // namespace optlease
