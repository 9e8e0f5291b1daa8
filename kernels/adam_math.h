// Adam and AdamW for one element, on host and device: the only copy of the update formula. The
// bias corrections and every other factor are made once a step, on the host, in double. Used by the
// CPU loops and by the CUDA kernel; does not walk arrays, convert formats or sum anything.
//
// Sources. Adam: Kingma & Ba 2015, algorithm 1, with L2 decay added to the gradient. AdamW:
// Loshchilov & Hutter 2019, algorithm 2 (decoupled; the decay is multiplied by lr, as torch.optim
// does). Operation order follows torch.optim's single-tensor form, where eps is added after the
// bias correction of the second moment.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "shm/contract/optimizer_params.h"

namespace optlease {

struct AdamFactors {
  float grad_coefficient;  // multiplies every raw gradient: average, loss scale and clip
  float l2;                // weight_decay for Adam; 0 for AdamW
  float decay;             // 1 - lr * weight_decay for AdamW; 1 for Adam
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_sqrt_bias2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float minus_step_size;  // -lr / (1 - beta1^t)
};

// Factors of update number `update_count` (t above; skipped steps do not count). The same bits on
// every IEEE host: powers are taken by squaring, not by a math library; relative error of each
// factor at most 2^-24 (its rounding to float) + 2^-44.
// REQUIRES: why_invalid(params) is null; update_count >= 1; grad_coefficient is finite.
AdamFactors make_adam_factors(const GroupParams& params, int64_t update_count,
                              float grad_coefficient);

// min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it; 1 where max_norm is 0
// (no clipping). REQUIRES: norm is finite.
double clip_coefficient(double norm, double max_norm);

// Which NaN an operation gives is the machine's choice (x86 and GPUs differ); what is stored is
// one.
OPTLEASE_HD_INLINE float one_nan(float value) {
  return value == value ? value : float_of_bits(0x7fc00000u);
}

// One element, in place; no value is flushed to zero, every NaN is 0x7fc00000. Largest errors
// against exact arithmetic with the same factors, where u = 2^-24, c raw and l2 main are the
// gradient's terms and G the sum of their magnitudes, each plus 2^-148, for values that do not
// overflow:
//   exp_avg     5 u max(|exp_avg|, G)
//   exp_avg_sq  8 u (beta2 exp_avg_sq + (1 - beta2) G^2)
//   main        2 u |main| + 5 u |step taken|, from the moments as they were stored
OPTLEASE_HD_INLINE void adam_element(float& main, float& exp_avg, float& exp_avg_sq, float raw_grad,
                                     const AdamFactors& f) {
  // g = c * raw + l2 * main; for AdamW l2 is 0 and adds nothing to a finite main.
  const float grad = fma_rn(f.l2, main, mul_rn(raw_grad, f.grad_coefficient));
  // m = m + (1 - beta1) * (g - m)
  const float first = fma_rn(f.one_minus_beta1, sub_rn(grad, exp_avg), exp_avg);
  // v = beta2 * v + ((1 - beta2) * g) * g
  const float second = fma_rn(f.beta2, exp_avg_sq, mul_rn(mul_rn(f.one_minus_beta2, grad), grad));
  // w = w * decay - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
  const float denominator = fma_rn(sqrt_rn(second), f.inverse_sqrt_bias2, f.eps);
  const float direction = div_rn(first, denominator);
  main = one_nan(fma_rn(f.minus_step_size, direction, mul_rn(main, f.decay)));
  exp_avg = one_nan(first);
  exp_avg_sq = one_nan(second);
}

}  // namespace optlease
