#include <cmath>

#include "kernels/adam_math.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

// base^exponent by squaring: std::pow differs between math libraries, and then bits would differ
// between nodes.
double power(double base, int64_t exponent) {
  double result = 1.0;
  for (double square = base; exponent != 0; exponent >>= 1, square *= square) {
    if ((exponent & 1) != 0) result *= square;
  }
  return result;
}

}  // namespace

AdamFactors make_adam_factors(const GroupParams& params, int64_t update_count,
                              float grad_coefficient) {
  const char* broken = why_invalid(params);
  OPTLEASE_CHECK(broken == nullptr, "%s", broken);
  OPTLEASE_CHECK(update_count >= 1, "update count %lld", static_cast<long long>(update_count));
  OPTLEASE_CHECK(std::isfinite(grad_coefficient), "gradient coefficient %g",
                 static_cast<double>(grad_coefficient));
  const bool decoupled = static_cast<Rule>(params.rule) == Rule::kAdamW;
  const double bias1 = 1.0 - power(params.beta1, update_count);
  const double bias2 = 1.0 - power(params.beta2, update_count);
  AdamFactors factors{};
  factors.grad_coefficient = grad_coefficient;
  factors.l2 = decoupled ? 0.0f : static_cast<float>(params.weight_decay);
  factors.decay = decoupled ? static_cast<float>(1.0 - params.lr * params.weight_decay) : 1.0f;
  factors.one_minus_beta1 = static_cast<float>(1.0 - params.beta1);
  factors.beta2 = static_cast<float>(params.beta2);
  factors.one_minus_beta2 = static_cast<float>(1.0 - params.beta2);
  factors.inverse_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(bias2));
  factors.eps = static_cast<float>(params.eps);
  factors.minus_step_size = static_cast<float>(-params.lr / bias1);
  return factors;
}

double clip_coefficient(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0;
  return std::fmin(1.0, max_norm / (norm + 1e-6));
}

}  // namespace optlease
