// A job as every process of it sees it: the launcher resolves the configuration into this, writes
// it as JSON to the run directory, and each child reads it from there. A value type: no I/O here
// but to_json/from_json text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shm/contract/geometry.h"
#include "shm/contract/messages.h"
#include "shm/contract/status.h"

namespace optlease {

enum class InitKind { kNormal, kZeros, kOnes };  // seeded initial values of a parameter

struct TensorInit {
  InitKind kind = InitKind::kNormal;
  double std_dev = 0.02;  // kNormal
};

struct ModelPlan {
  std::string source;  // "" = seeded; else a safetensors file or a sharded directory
  uint64_t seed = 0;
  std::vector<std::vector<TensorInit>> init;  // [space][tensor]
};

enum class GradientSource { kTrainer, kReplay, kSynthetic };

struct GradientPlan {
  GradientSource source = GradientSource::kTrainer;
  std::string replay_path;  // "{step}" and "{rank}" are replaced
  uint64_t synthetic_seed = 0;
  std::vector<int64_t> synthetic_nonfinite_steps;  // rank 0 puts one NaN into these steps
  bool average = true;                             // divide the sum by the space's rank count
  double max_norm = 0;                             // 0: no clipping
  uint64_t collective_timeout_ms = 30000;
  // The summed shards are in shared memory before their step can open, so that it can be finished
  // even when every process dies at once. Always so on the cpu device.
  bool durable = true;
};

// Which NUMA node each rank's arena is to lie on.
struct NumaPlan {
  std::vector<int64_t> nodes;  // by rank; -1: not bound. Empty: no rank is
  std::string note;            // why a rank is not bound, in words; empty: nothing to say
};

struct OptimizerPlan {
  double lr = 0;                    // optimizer.lr; groups[g].lr already has the space's lr_scale.
                                    // A trainer's override replaces this one: times the scale
  std::vector<GroupParams> groups;  // space.group indexes it
};

struct TrainerPlan {
  std::vector<std::string> command;      // empty: none. argv; "{rank}" and "{job}" are replaced
  std::vector<std::string> environment;  // "NAME=value", added
  uint64_t attach_timeout_ms = 30000;
};

struct RestartPlan {  // OTP style: more than `intensity` in `period_ms` ends the job
  uint32_t intensity = 10;
  uint64_t period_ms = 60000;
  uint64_t backoff_ms = 20;  // doubled with each restart of the same process in the period
  uint64_t backoff_ms_max = 2000;
  uint64_t start_timeout_ms = 30000;      // a process must say hello within this
  uint64_t heartbeat_timeout_ms = 10000;  // an actor silent for longer is killed and restarted
  uint64_t lease_ms = 5000;
  uint64_t quarantine_grace_ms = 100;  // after a process is reaped
  uint64_t stop_timeout_ms = 10000;    // then SIGKILL
};

struct TelemetryPlan {
  uint64_t interval_ms = 200;
  bool step_log = false;  // figures of every step (step_figures.h)
};

enum class RehearsePhase {
  kBeforeLease,
  kCopyIn,
  kUpdate,
  kCopyOut,
  kBeforeCommit,
  kAfterCommit,
  kBetweenSteps,
  kPrepared,
  kAnswered,
  kGather
};
enum class Role { kLauncher, kHostStore, kGpuActor, kTrainer };

// Kill `role` (of `rank`) when rank `at_rank`'s actor reaches `phase` of `step`.
struct Rehearsal {
  Role role = Role::kGpuActor;
  uint32_t rank = 0;  // whose actor or trainer dies; unused for the store
  Step step = 1;
  RehearsePhase phase = RehearsePhase::kCopyOut;
  uint32_t at_rank = 0;  // defaults to `rank`
};

struct JobPlan {
  SegmentPlan segment;  // job name, world size, spaces, geometry
  int64_t steps = 0;    // the job is done when this step is committed
  std::string device = "cpu";
  bool keep_state = false;  // keep the segments at a clean end
  uint32_t staging_buffers = 3;
  uint64_t in_flight_bytes = 0;  // ceiling of leased bytes on the node; 0: none
  NumaPlan numa;
  ModelPlan model;
  GradientPlan gradients;
  OptimizerPlan optimizer;
  TrainerPlan trainer;
  RestartPlan restart;
  TelemetryPlan telemetry;
  std::vector<Rehearsal> rehearsals;

  // Bytes of staging a rank may hold: staging_buffers x window_chunks x slot_bytes.
  uint64_t staging_budget_bytes(Rank rank) const;
};

const char* name_of(GradientSource source);
const char* name_of(RehearsePhase phase);
const char* name_of(Role role);  // "launcher", "host_store", "gpu_actor", "trainer"
const char* name_of(InitKind kind);
bool parse(const std::string& text, GradientSource* out);
bool parse(const std::string& text, RehearsePhase* out);
bool parse(const std::string& text, Role* out);
bool parse(const std::string& text, InitKind* out);

std::string to_json(const JobPlan& plan);
Result<JobPlan> job_plan_from_json(const std::string& text);
Result<JobPlan> read_job_plan(const std::string& path);

}  // namespace optlease
