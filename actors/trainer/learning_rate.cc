#include "actors/trainer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace optlease {

double learning_rate_at(const LearningRate& rate, int64_t step) {
  if (step <= rate.warmup_steps)
    return rate.peak * static_cast<double>(step) / static_cast<double>(rate.warmup_steps);
  if (!rate.cosine) return rate.peak;
  const int64_t length = std::max<int64_t>(rate.total_steps - rate.warmup_steps, 1);
  const int64_t done = std::min(step - rate.warmup_steps, length);
  const double phase = std::numbers::pi * static_cast<double>(done) / static_cast<double>(length);
  return rate.final + 0.5 * (rate.peak - rate.final) * (1.0 + std::cos(phase));
}

}  // namespace optlease
