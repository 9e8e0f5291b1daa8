#include "tests/simulation/sim_options.h"

#include "shm/contract/limits.h"
#include "tests/simulation/sim_clock.h"

namespace optlease {
namespace {

constexpr uint64_t kSalt = 0x5157a7e5;  // options and events of one seed are different numbers

void draw_job(Dice* dice, SimOptions* out) {
  out->ranks = static_cast<uint32_t>(dice->within(1, 3));
  out->chunks = static_cast<uint32_t>(dice->within(1, 7));
  out->more_chunks = dice->one_in(3) ? static_cast<uint32_t>(dice->within(1, 5)) : 0;
  out->window_chunks = static_cast<uint32_t>(dice->within(1, 3));
  out->prefetch_windows = static_cast<uint32_t>(dice->within(1, 3));
  out->staging_buffers = static_cast<uint32_t>(dice->within(2, 3));
  out->steps = static_cast<Step>(dice->within(4, 16));
  out->trainers = !dice->one_in(4);
  out->restless = out->trainers && dice->one_in(2);
  for (Step step = 1; step <= out->steps; ++step) {
    if (dice->one_in(8)) out->nonfinite_steps.insert(step);
  }
  const uint64_t slot_bytes = kPageBytes;
  if (dice->one_in(3)) out->in_flight_bytes = dice->within(1, 6) * slot_bytes;
}

void draw_times(Dice* dice, SimOptions* out) {
  RestartPlan& restart = out->restart;
  restart.intensity = 1u << 30;
  restart.backoff_ms = 2;
  restart.backoff_ms_max = 40;
  restart.lease_ms = dice->spread(150, 1500);
  restart.heartbeat_timeout_ms = dice->spread(400, 2500);
  restart.start_timeout_ms = 8000;
  restart.quarantine_grace_ms = dice->within(2, 60);
  restart.stop_timeout_ms = 3000;
  out->collective_timeout_ms = dice->spread(500, 4000);
}

}  // namespace

SimOptions draw_options(uint64_t seed, bool faults) {
  Dice dice(seed ^ kSalt);
  SimOptions out;
  out.seed = seed;
  draw_job(&dice, &out);
  draw_times(&dice, &out);
  out.streams_stop_too = dice.one_in(2);
  const uint64_t fault_every = dice.spread(100, 3000);
  const uint64_t faults_end = dice.within(8, 20) * 1000;
  out.launcher_dies = dice.one_in(2);
  out.stops_midway = dice.one_in(3);
  if (!faults) {
    out.launcher_dies = out.stops_midway = false;
    return out;
  }
  out.fault_every = fault_every;
  out.faults_end = faults_end;
  return out;
}

SegmentPlan segment_plan_of(const SimOptions& options) {
  SegmentPlan plan;
  plan.job_name = "simulated";
  plan.world_size = options.ranks;
  plan.window_chunks = options.window_chunks;
  plan.prefetch_windows = options.prefetch_windows;
  SpaceSpec dense;
  dense.name = "dense";
  for (uint32_t r = 0; r < options.ranks; ++r) dense.members.push_back(Rank{r});
  TensorSpec weight;
  weight.name = "weight";
  weight.shape = {uint64_t{options.ranks} * options.chunks * kShardAlignElements - 7};
  dense.tensors.push_back(weight);
  plan.spaces.push_back(dense);
  if (options.more_chunks > 0) {
    SpaceSpec expert;
    expert.name = "expert";
    expert.members = {Rank{options.ranks - 1}};
    weight.name = "expert.weight";
    weight.shape = {uint64_t{options.more_chunks} * kShardAlignElements};
    expert.tensors.push_back(weight);
    plan.spaces.push_back(expert);
  }
  const Status laid_out = lay_out(&plan, chunk_bytes(kShardAlignElements));
  OPTLEASE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
  return plan;
}

}  // namespace optlease
