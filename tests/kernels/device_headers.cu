// Compiles every header that device code may include, in a kernel that uses each of them; it is not
// run. The device's copy of a formula and the host's are the same text: this keeps it so.
#include <cstdint>

#include "kernels/adam_math.h"
#include "kernels/checksum.h"
#include "kernels/formats.h"
#include "kernels/random.h"

namespace optlease {

__global__ void use_every_header(float* main, float* exp_avg, float* exp_avg_sq,
                                 const uint16_t* grad, uint16_t* param, uint8_t* narrow,
                                 unsigned long long* sum, AdamFactors factors, uint64_t elements) {
  const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  const float synthetic = synthetic_gradient(1, 1, 0, 0, i) + normal_value(1, 0, i);
  const float raw = Format<DType::kBF16>::load(grad[i]) + f32_from_f16(grad[i]) + synthetic;
  adam_element(main[i], exp_avg[i], exp_avg_sq[i], raw, factors);
  param[i] = Format<DType::kF16>::store(main[i]) ^ bf16_from_f32(main[i]);
  narrow[i] = e4m3_from_f32(main[i]) ^ e5m2_from_f32(main[i]);
  atomicAdd(sum, static_cast<unsigned long long>(checksum_term(bits_of(main[i]), i)));
}

}  // namespace optlease
