// The terminal view of a job: state -> lines. Pure; escape sequences are the program's business.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/monitor/monitor_state.h"

namespace optlease {

// A head line, a line of column names, one line a rank, and a note for each rank that needs one.
std::vector<std::string> render(const MonitorState& state, int64_t now_ms);

// "1.50 GiB", "17 B"; four significant places at most.
std::string bytes_text(uint64_t bytes);
// "12.3 ms", "4.56 s", "-" for NaN.
std::string seconds_text(double seconds);

}  // namespace optlease
