// What kind of job and world a seed makes. Every number is drawn, so that the seed alone repeats a
// world.
#pragma once

#include <cstdint>
#include <set>

#include "actors/runtime/job_plan.h"
#include "shm/contract/geometry.h"
#include "shm/contract/ids.h"

namespace optlease {

struct SimOptions {
  uint64_t seed = 0;
  // The job.
  uint32_t ranks = 1;
  uint32_t chunks = 1;       // of each rank's shard of the space that all share
  uint32_t more_chunks = 0;  // of the last rank alone, in a space of its own
  uint32_t window_chunks = 1;
  uint32_t prefetch_windows = 1;
  uint32_t staging_buffers = 2;
  Step steps = 1;
  bool trainers = true;            // else actors make their gradients
  bool restless = false;           // a restarted trainer's gradients are other bits
  std::set<Step> nonfinite_steps;  // rank 0 finds a NaN
  uint64_t in_flight_bytes = 0;    // StoreOptions: ceiling of leased bytes
  RestartPlan restart;
  uint64_t collective_timeout_ms = 0;
  // The store counts whole milliseconds: that much of the grace period is certain.
  uint64_t grace_us() const { return (restart.quarantine_grace_ms - 1) * 1000; }

  // The world.
  bool streams_stop_too =
      false;                 // a stopped process' streams stand still (threads), or go on (GPU)
  uint64_t fault_every = 0;  // events between two faults, about; 0: none
  uint64_t faults_end = 0;   // the last event that may be one
  bool launcher_dies = false;
  bool stops_midway = false;  // asked to stop, kept, and resumed
};

// `faults`: whether anything goes wrong in that world.
SimOptions draw_options(uint64_t seed, bool faults);

// The job's segments: chunks of one alignment unit, the last of a shard shorter.
SegmentPlan segment_plan_of(const SimOptions& options);

}  // namespace optlease
