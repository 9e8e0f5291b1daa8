// What `optlease monitor` and optlease-monitor take where nothing else is asked for: one number
// each, so that the help of both is right.
#pragma once

namespace optlease {

inline constexpr int kMonitorIntervalMs = 500;  // between redraws
inline constexpr int kMonitorTimeoutMs = 3000;  // for a first answer

}  // namespace optlease
