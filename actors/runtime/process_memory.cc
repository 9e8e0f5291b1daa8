#include "actors/runtime/process_memory.h"

#include <unistd.h>

#include <cstdio>

namespace optlease {

ProcessMemory own_memory() {
  FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return {};
  unsigned long long pages = 0, resident = 0, shared = 0;
  const int read = std::fscanf(file, "%llu %llu %llu", &pages, &resident, &shared);
  (void)std::fclose(file);
  if (read != 3 || shared > resident) return {};
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return {resident * page_bytes, (resident - shared) * page_bytes};
}

}  // namespace optlease
