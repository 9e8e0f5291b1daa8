// The monotonic clock of the shells and a deadline on it. Pure cores take `now_ms` as an argument
// and never include this.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace optlease {

inline int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline int64_t now_ms() { return now_us() / 1000; }

// A point in time after which a wait must end.
class Deadline {
 public:
  static Deadline after_ms(int64_t ms) { return Deadline(now_ms() + std::max<int64_t>(ms, 0)); }
  static Deadline at_ms(int64_t monotonic_ms) { return Deadline(monotonic_ms); }

  bool passed() const { return now_ms() >= at_ms_; }
  // What is left for one poll call: 0 once passed, at most `cap_ms`.
  int remaining_ms(int cap_ms = std::numeric_limits<int>::max()) const {
    return static_cast<int>(std::clamp<int64_t>(at_ms_ - now_ms(), 0, cap_ms));
  }

 private:
  explicit Deadline(int64_t at_ms) : at_ms_(at_ms) {}
  int64_t at_ms_;
};

}  // namespace optlease
