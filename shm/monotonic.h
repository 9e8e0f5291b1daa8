// The clock of the waits in shm, for its shells: the job lock and the vault's client. The pure
// parts take `now_ms` as an argument and never include this.
#pragma once

#include <time.h>

#include <cstdint>

namespace optlease {

// Milliseconds of CLOCK_MONOTONIC.
inline uint64_t monotonic_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

}  // namespace optlease
