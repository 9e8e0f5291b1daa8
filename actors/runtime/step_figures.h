// What one rank's actor measured of one step: a line of its step log, which it keeps where
// telemetry.step_log is on. Used by GPU actors (writing) and by the launcher, whose report and
// `optlease bench` read it. docs/OPERATING.md explains the fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/wire/endpoints.h"
#include "shm/contract/ids.h"

namespace optlease {

// Times named _us are of the node's monotonic clock, the same for every process on it. Bytes and
// seconds are of this step's streaming alone: from the moment at which it was open to its last
// commit. What was read ahead of that moment, while its gradients were reduced, is in bytes_in and
// named by itself; no second of it is in any time but step_seconds.
struct StepFigures {
  Step step = kNoStep;
  uint64_t incarnation = 0;
  double step_seconds = 0;  // from the reduction to gathered parameters and the last commit
  uint64_t stream_begun_us = 0;
  uint64_t stream_ended_us = 0;
  double stream_seconds = 0;
  double first_window_seconds = 0;  // until the first window was updated
  uint64_t bytes_in = 0;            // host to device
  uint64_t bytes_out = 0;
  uint64_t read_ahead_bytes = 0;  // of bytes_in: before the step was open
  uint64_t bounced_bytes = 0;     // of both: not pinned, copied twice
  double in_busy_seconds = 0;     // a copy to the device was under way
  double out_busy_seconds = 0;    // one back
  double in_busy_seconds_after_first = 0;
  double stall_seconds = 0;  // windows left to start, some in flight, none being copied in
  double lease_wait_seconds = 0;
  double kernel_seconds = 0;
  double gather_exposed_seconds = 0;  // from this rank's last computed window to the gather's end
  double cpu_seconds = 0;             // of the actor's process, all threads
  // The device's own memory, in use by every process: before the actor took staging and buffers,
  // the most seen since, and at the end of this step. `buffer` is what parameters, gradients and
  // shards take of it.
  uint64_t device_bytes_before = 0;
  uint64_t device_bytes_peak = 0;
  uint64_t device_bytes = 0;
  uint64_t device_buffer_bytes = 0;
  uint64_t staging_bytes = 0;
};

std::string step_log_file(const RunDirectory& run, Rank rank);
// One line, without its end.
std::string to_json(const StepFigures& figures);
// Every whole line, the last `count_max` of them; lines cut short by a kill are skipped. Of several
// about one step the last counts. Ascending by step.
std::vector<StepFigures> step_figures_of(const std::string& text, size_t count_max);

}  // namespace optlease
