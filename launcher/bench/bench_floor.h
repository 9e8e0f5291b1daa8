// The floor of `optlease bench`: starts an optlease-floor a rank, has all of them measure at once,
// direction by direction, and ends them. A thin shell over sockets and processes; whatever happens,
// no process is left when it returns, and the floor's memory never had a name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/runtime/exit_code.h"
#include "actors/runtime/floor_messages.h"
#include "actors/runtime/job_plan.h"
#include "launcher/bench/bench_figures.h"

namespace optlease {

// What each rank's floor copies: the rank's chunks, as large as its largest, at most 1 GiB of them
// a round. `copies` is 0 for a rank without state.
std::vector<FloorSetup> floor_setups(const JobPlan& plan);

// How long the floor's processes may be silent: what starting takes, and all their bytes at a rate
// that is far below any link's.
struct FloorPatience {
  int setup_ms = 0;  // until they are ready to measure
  int order_ms = 0;  // until an order is answered
};
FloorPatience floor_patience(const std::vector<FloorSetup>& setups, uint64_t measure_ms);

struct FloorOutcome {
  ExitCode code = ExitCode::kInternal;
  std::string text;  // why it is not kOk
  std::vector<RankFloor> ranks;
};

// `measure_ms` for each of the three. Timeout, naming the processes, where one is silent for longer
// than floor_patience. Interrupted by a stop signal. REQUIRES: the stop signals are
// blocked (block_stop_signals); called on the main thread.
FloorOutcome measure_floor(const std::vector<FloorSetup>& setups, uint64_t measure_ms,
                           const std::string& program_directory);

}  // namespace optlease
