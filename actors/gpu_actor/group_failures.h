// Counts the groups in a row that had no working collectives. A peer's death breaks a group or two;
// what goes on is this process's own trouble, such as no memory for a connection: it ends, so that
// the launcher's restart policy counts it. Pure; used by GpuActor.
#pragma once

#include <cstdint>

namespace optlease {

class GroupFailures {
 public:
  static constexpr uint32_t kInARowMax = 50;

  // True where this was one too many.
  bool failed() { return ++in_a_row_ >= kInARowMax; }
  // A collective came to its end.
  void worked() { in_a_row_ = 0; }

 private:
  uint32_t in_a_row_ = 0;
};

}  // namespace optlease
