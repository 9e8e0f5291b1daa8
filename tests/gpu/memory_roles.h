// What the children of memory_test do: each touches the GPU in a process of its own. The buffers
// come from and go to the parent's vault.
#pragma once

#include <cstdint>
#include <string>

namespace optlease {

inline constexpr uint64_t kRoleTimeoutMs = 60000;

struct RoleArgs {
  std::string vault;
  std::string key;
  uint64_t bytes = 0;
  uint64_t seed = 0;
  int ordinal = 0;
};

// The child's exit code; some roles end by SIGKILL instead.
int run_role(const std::string& role, const RoleArgs& args);

}  // namespace optlease
