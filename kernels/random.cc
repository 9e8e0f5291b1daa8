#include "kernels/random.h"

#include <algorithm>

#include "kernels/reduce_cpu.h"

namespace optlease {

void fill_synthetic_gradient(void* out, DType dtype, uint64_t seed, int64_t step, uint32_t rank,
                             uint32_t space, uint64_t first_element, uint64_t elements) {
  constexpr uint64_t kBlock = 1024;
  const uint64_t key = gradient_key(seed, step, rank, space);
  float block[kBlock];
  for (uint64_t at = 0; at < elements; at += kBlock) {
    const uint64_t count = std::min(kBlock, elements - at);
    for (uint64_t i = 0; i < count; ++i) {
      block[i] = synthetic_gradient_of(key, first_element + at + i);
    }
    convert_from_f32(static_cast<char*>(out) + at * bytes_of(dtype), block, dtype, count);
  }
}

void fill_normal(float* out, uint64_t seed, uint32_t space, uint64_t first_element,
                 uint64_t elements, float standard_deviation) {
  const uint64_t key = normal_key(seed, space);
  for (uint64_t i = 0; i < elements; ++i) {
    out[i] = mul_rn(normal_value_of(key, first_element + i), standard_deviation);
  }
}

}  // namespace optlease
