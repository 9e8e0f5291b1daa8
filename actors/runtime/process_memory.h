// How much host memory this process has. Used by actors, for their telemetry.
#pragma once

#include <cstdint>

namespace optlease {

struct ProcessMemory {
  uint64_t rss_bytes = 0;      // resident: private, shared and of files
  uint64_t private_bytes = 0;  // of it, what neither shared memory nor a file is behind
};

// All zero where /proc cannot be read. Some 10 microseconds.
ProcessMemory own_memory();

}  // namespace optlease
