// What every streamed run is compared with: the same updates on plain arrays that never move.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "kernels/adam_math.h"
#include "shm/contract/geometry.h"
#include "shm/contract/optimizer_params.h"
#include "shm/contract/status.h"

namespace optlease {

inline GroupParams adamw() {
  return {1e-3, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
}

inline std::vector<float> gradients(Step step, uint64_t elements) {
  std::mt19937_64 random(static_cast<uint64_t>(step) * 7919);
  std::normal_distribution<float> normal;
  std::vector<float> values(elements);
  for (float& value : values)
    value = normal(random) * std::pow(10.0f, static_cast<float>(step % 4) - 2);
  values[0] = 0;
  values[1] = 1e-39f;
  return values;
}

inline float initial_value(uint64_t element) {
  return static_cast<float>(element % 1013) * 1e-3f - 0.5f;
}

inline Status fill_initial(uint32_t, ElementRange range, float* main) {
  for (uint64_t i = range.begin; i < range.end; ++i) main[i - range.begin] = initial_value(i);
  return Status::ok();
}

struct Resident {
  std::vector<float> main, exp_avg, exp_avg_sq;
};

inline Resident resident_start(uint64_t elements) {
  Resident state{std::vector<float>(elements), std::vector<float>(elements),
                 std::vector<float>(elements)};
  for (uint64_t i = 0; i < elements; ++i) state.main[i] = initial_value(i);
  return state;
}

inline void resident_step(Resident* state, Step step) {
  const uint64_t elements = state->main.size();
  const AdamFactors factors = make_adam_factors(adamw(), step, 0.5f);
  const std::vector<float> grads = gradients(step, elements);
  for (uint64_t i = 0; i < elements; ++i) {
    adam_element(state->main[i], state->exp_avg[i], state->exp_avg_sq[i], grads[i], factors);
  }
}

inline Resident resident_run(Step steps, uint64_t elements) {
  Resident state = resident_start(elements);
  for (Step step = 1; step <= steps; ++step) resident_step(&state, step);
  return state;
}

}  // namespace optlease
