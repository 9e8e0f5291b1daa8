// Counter-based random values: each is a pure function of a seed and of what it is for, never of a
// thread, a rank count or an order, in integer arithmetic and exact float steps, so that every
// device gives the same bits. Used for synthetic gradients and seeded initial weights. Not for
// cryptography. The finaliser is SplitMix64's (Steele, Lea & Flood 2014; Stafford's mix 13).
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "shm/contract/dtype.h"

namespace optlease {

OPTLEASE_HD_INLINE uint64_t mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ull;  // odd, 2^64 / golden ratio

// Streams of one seed that never share values.
enum class RandomStream : uint64_t { kGradient = 1, kNormal = 2 };

// The key of one stream; hoisted out of loops over elements.
OPTLEASE_HD_INLINE uint64_t stream_key(uint64_t seed, RandomStream stream, uint64_t a, uint64_t b,
                                       uint64_t c) {
  uint64_t key = mix64(seed + kGoldenGamma);
  key = mix64(key ^ (static_cast<uint64_t>(stream) * kGoldenGamma));
  key = mix64(key + (a + 1) * kGoldenGamma);
  key = mix64(key + (b + 1) * kGoldenGamma);
  return mix64(key + (c + 1) * kGoldenGamma);
}

OPTLEASE_HD_INLINE uint64_t random_bits(uint64_t key, uint64_t element) {
  return mix64(key + (element + 1) * kGoldenGamma);
}

// The sum of the four 16-bit fields of `bits`.
OPTLEASE_HD_INLINE int32_t sum_of_fields(uint64_t bits) {
  return static_cast<int32_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) +
                              (bits >> 48));
}

// A bell of four uniforms (zero mean, |value| <= 2) times a power of two between 2^-13 and 2^-6
// that also varies from element to element: magnitudes as different as those of real layers. Exact.
OPTLEASE_HD_INLINE float synthetic_gradient_of(uint64_t key, uint64_t element) {
  const uint64_t bits = random_bits(key, element);
  const int32_t centred = sum_of_fields(bits) - 2 * 65535;
  const uint32_t exponent = static_cast<uint32_t>(mix64(bits) >> 61);  // 0..7
  return mul_rn(static_cast<float>(centred), float_of_bits((127u - 16u - 13u + exponent) << 23));
}

OPTLEASE_HD_INLINE uint64_t gradient_key(uint64_t seed, int64_t step, uint32_t rank,
                                         uint32_t space) {
  return stream_key(seed, RandomStream::kGradient, static_cast<uint64_t>(step), rank, space);
}

// What rank `rank` contributes at `step` for `element` of `space`: finite, zero mean, at most 2^-5
// in magnitude.
OPTLEASE_HD_INLINE float synthetic_gradient(uint64_t seed, int64_t step, uint32_t rank,
                                            uint32_t space, uint64_t element) {
  return synthetic_gradient_of(gradient_key(seed, step, rank, space), element);
}

// The sum of twelve 16-bit uniforms, centred, over 2^16 (Irwin-Hall): every step is exact. Mean 0,
// variance 1 - 2^-32, |value| < 6; its distribution function differs from the normal one by at most
// 0.0023.
OPTLEASE_HD_INLINE float normal_value_of(uint64_t key, uint64_t element) {
  const int32_t sum = sum_of_fields(random_bits(key, 3 * element)) +
                      sum_of_fields(random_bits(key, 3 * element + 1)) +
                      sum_of_fields(random_bits(key, 3 * element + 2));
  return mul_rn(static_cast<float>(sum - 6 * 65535), float_of_bits((127u - 16u) << 23));
}

OPTLEASE_HD_INLINE uint64_t normal_key(uint64_t seed, uint32_t space) {
  return stream_key(seed, RandomStream::kNormal, space, 0, 0);
}

// For seeded initial weights with standard deviation 1.
OPTLEASE_HD_INLINE float normal_value(uint64_t seed, uint32_t space, uint64_t element) {
  return normal_value_of(normal_key(seed, space), element);
}

// Elements [first_element, first_element + elements) of the above, on the host. `out` holds them
// from its start. fill_normal multiplies by standard_deviation (one rounding).
void fill_synthetic_gradient(void* out, DType dtype, uint64_t seed, int64_t step, uint32_t rank,
                             uint32_t space, uint64_t first_element, uint64_t elements);
void fill_normal(float* out, uint64_t seed, uint32_t space, uint64_t first_element,
                 uint64_t elements, float standard_deviation);

}  // namespace optlease
