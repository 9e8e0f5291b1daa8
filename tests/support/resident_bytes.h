// How much memory this process holds, for tests that something does not grow.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace optlease {

// Resident set of this process; 0 where /proc cannot be read.
inline uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// What a sanitizer's runtime keeps of memory that was freed (AddressSanitizer's quarantine, shadow
// memory), to be allowed on top.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kSanitizerKeepsBytes = 512u << 20;
#else
inline constexpr uint64_t kSanitizerKeepsBytes = 0;
#endif

}  // namespace optlease
