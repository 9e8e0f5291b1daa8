// The learning rate as a function of the step number alone, so that a restarted trainer asks for
// the same one. Used by the training loop; pure.
#pragma once

#include <cstdint>

namespace optlease {

struct LearningRate {
  double peak = 0;
  int64_t warmup_steps = 0;  // linear from peak / warmup_steps at step 1
  int64_t total_steps = 0;   // end of the cosine; unused without it
  bool cosine = false;       // from peak down to final at total_steps (Loshchilov & Hutter 2017)
  double final = 0;
};

// REQUIRES: step >= 1.
double learning_rate_at(const LearningRate& rate, int64_t step);

}  // namespace optlease
