// From what actors measured of their steps and what floor processes measured of their links to the
// figures that `optlease bench` prints. Pure: no clock, no process. docs/OPERATING.md explains
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/runtime/step_figures.h"
#include "shm/contract/status.h"

namespace optlease {

// One rank's link, all ranks measured at once. In bytes a second; 0: a rank without state.
struct RankFloor {
  double in_alone = 0;  // host to device, nothing the other way
  double out_alone = 0;
  double both = 0;  // each way, both directions at once
  uint64_t bounced_bytes = 0;
  double pin_seconds = 0;
};

struct BenchInput {
  uint64_t parameters = 0;                      // of the whole job
  uint64_t warm_up = 0;                         // first steps that do not count
  std::vector<std::vector<StepFigures>> steps;  // by rank, ascending
  std::vector<RankFloor> before, after;         // by rank
};

// Medians over the measured steps, but for bytes and memory.
struct RankBench {
  uint64_t bytes_in = 0;  // a step
  uint64_t bytes_out = 0;
  uint64_t read_ahead_bytes = 0;  // of bytes_in: before the step was open
  double stream_seconds = 0;
  double best_stream_seconds = 0;
  double in_bytes_per_second = 0;
  double out_bytes_per_second = 0;
  double floor_bytes_per_second = 0;  // each way, mean of before and after
  double of_floor = 0;                // 0: no floor
  double first_window_seconds = 0;
  double in_busy = 0;   // share of the stream's time after the first window
  double out_busy = 0;  // that copies of this direction took
  double stall_seconds = 0;
  double lease_wait_seconds = 0;
  double kernel_seconds = 0;
  double gather_exposed_seconds = 0;
  double cpu_seconds = 0;
  uint64_t bounced_bytes = 0;  // all measured steps
  uint64_t staging_bytes = 0;
  uint64_t device_bytes_before = 0;
  uint64_t device_bytes_peak = 0;
  uint64_t device_bytes_after = 0;
  uint64_t device_buffer_bytes = 0;
  int64_t device_bytes_beyond = 0;  // peak, less before, buffers and staging

  double exposed_seconds() const { return stall_seconds + lease_wait_seconds; }
  double slower_direction_busy() const { return in_busy > out_busy ? in_busy : out_busy; }
};

struct BenchFigures {
  uint64_t steps_measured = 0;
  uint64_t steps_left_out = 0;
  double step_seconds = 0;    // reduction to gathered parameters, of the slowest rank
  double stream_seconds = 0;  // the step's opening to the last rank's last commit
  double ns_per_parameter = 0;
  double step_ns_per_parameter = 0;  // of step_seconds
  double of_floors = 0;              // all ranks' bytes a second, of all floors'
  double finish_spread = 0;  // between the first and the last rank to finish, of stream_seconds
  std::vector<RankBench> ranks;
};

// The steps that every rank with state has streamed; of these the first `warm_up` are left out, and
// those after them in which copies still bounced (pinning goes on in the background), as long as a
// step remains. NotFound where none does.
Result<BenchFigures> bench_figures(const BenchInput& input);

double median_of(std::vector<double> values);  // of none: 0

}  // namespace optlease
