// Percentiles of step times over a bounded history: the latest kStepTimesMax steps. Used by actors
// for telemetry. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace optlease {

inline constexpr size_t kStepTimesMax = 512;

struct StepTimeSummary {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;  // of the history, like the others
};

class StepTimes {
 public:
  void add(double seconds) {
    history_[next_] = seconds;
    next_ = (next_ + 1) % kStepTimesMax;
    count_ = std::min(count_ + 1, kStepTimesMax);
  }
  size_t count() const { return count_; }

  // Nearest-rank percentiles: each is a time that was measured. All zero before the first step.
  StepTimeSummary summary() const {
    if (count_ == 0) return {};
    std::array<double, kStepTimesMax> sorted = history_;
    std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count_));
    const auto at = [&](double fraction) {
      const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(count_)));
      return sorted[std::max<size_t>(rank, 1) - 1];
    };
    return {at(0.50), at(0.90), at(0.99), sorted[count_ - 1]};
  }

 private:
  std::array<double, kStepTimesMax> history_{};
  size_t next_ = 0;
  size_t count_ = 0;
};

}  // namespace optlease
