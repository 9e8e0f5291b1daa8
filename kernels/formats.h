// Conversions between FP32 and the narrower formats, on host and device, in integer arithmetic and
// one exact addition, so that every machine gives the same bits. Rounding is to nearest, ties to
// even; a NaN stays a NaN (made quiet); denormals of either side are exact or correctly rounded.
// Free of branches, so that loops over them vectorise. Does not convert ranges:
// kernels/reduce_cpu.h.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "shm/contract/dtype.h"

namespace optlease {

// Exact.
OPTLEASE_HD_INLINE float f32_from_bf16(uint16_t value) {
  return float_of_bits(static_cast<uint32_t>(value) << 16);
}

// Error at most half a unit in the last place; overflow to infinity.
OPTLEASE_HD_INLINE uint16_t bf16_from_f32(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

// Exact (a signalling NaN keeps its payload).
OPTLEASE_HD_INLINE float f32_from_f16(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  const uint32_t magnitude = value & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = (magnitude << 13) + (224u << 23);
  // 2^-24 units, at most 1023 of them: the product is exact and a normal float.
  const uint32_t denormal = bits_of(
      mul_rn(static_cast<float>(static_cast<int32_t>(magnitude)), float_of_bits(103u << 23)));
  const uint32_t finite = magnitude < 0x400u ? denormal : normal;
  return float_of_bits(sign | (magnitude >= 0x7c00u ? special : finite));
}

// The magnitude bits of |value| in a format of 1 sign bit, kExponentBits and kMantissaBits with the
// IEEE bias, rounded to nearest even as if the exponent had no upper bound; the result may exceed
// the format's largest finite value. REQUIRES: magnitude_bits are those of a finite |value|.
template <uint32_t kExponentBits, uint32_t kMantissaBits>
OPTLEASE_HD_INLINE uint32_t narrow_magnitude(uint32_t magnitude_bits) {
  constexpr uint32_t kBias = (1u << (kExponentBits - 1)) - 1;
  constexpr uint32_t kShift = 23 - kMantissaBits;
  constexpr uint32_t kSmallestNormal = (127 + 1 - kBias) << 23;
  // A power of two whose last place is the format's denormal unit: adding it rounds there.
  constexpr uint32_t kRounder = (127 + 1 - kBias - kMantissaBits + 23) << 23;
  const uint32_t odd = (magnitude_bits >> kShift) & 1u;
  const uint32_t normal =
      (magnitude_bits - ((127 - kBias) << 23) + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
  const uint32_t denormal =
      bits_of(add_rn(float_of_bits(magnitude_bits), float_of_bits(kRounder))) - kRounder;
  return magnitude_bits < kSmallestNormal ? denormal : normal;
}

// Error at most half a unit in the last place; 65520 and above overflow to infinity.
OPTLEASE_HD_INLINE uint16_t f16_from_f32(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t finite = narrow_magnitude<5, 10>(magnitude);
  const uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  const uint32_t bounded = magnitude >= 0x477ff000u ? 0x7c00u : finite;
  const uint32_t result = magnitude > 0x7f800000u ? quiet_nan : bounded;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | result);
}

// FP8 E4M3 in its finite form (OCP OFP8): no infinity, largest 448; what rounds beyond is NaN 0x7f.
OPTLEASE_HD_INLINE uint8_t e4m3_from_f32(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t finite = narrow_magnitude<4, 3>(magnitude);
  const uint32_t result = magnitude >= 0x43f00000u ? 0x7fu : finite;  // 480 and above, inf, NaN
  return static_cast<uint8_t>(((bits >> 24) & 0x80u) | result);
}

// FP8 E5M2 (OCP OFP8): what rounds beyond 57344 is infinity 0x7c; NaN is 0x7f.
OPTLEASE_HD_INLINE uint8_t e5m2_from_f32(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t finite = narrow_magnitude<5, 2>(magnitude);
  const uint32_t bounded = magnitude >= 0x47800000u ? 0x7cu : finite;  // 65536 and above
  const uint32_t result = magnitude > 0x7f800000u ? 0x7fu : bounded;
  return static_cast<uint8_t>(((bits >> 24) & 0x80u) | result);
}

// Main weights in two halves are in shm/contract/remainder.h, for readers of segments too: their
// BF16 is rounded to nearest, ties away from zero, so that 16 more bits restore the number.

// How an array of kDType is held in memory, and one element of it as a float. Raw pointers to
// Storage may alias anything: buffers arrive as bytes.
template <DType kDType>
struct Format;

template <>
struct Format<DType::kF32> {
  using Storage = float __attribute__((may_alias));
  static OPTLEASE_HD_INLINE float load(float stored) { return stored; }
  static OPTLEASE_HD_INLINE float store(float value) { return value; }
};
template <>
struct Format<DType::kBF16> {
  using Storage = uint16_t __attribute__((may_alias));
  static OPTLEASE_HD_INLINE float load(uint16_t stored) { return f32_from_bf16(stored); }
  static OPTLEASE_HD_INLINE uint16_t store(float value) { return bf16_from_f32(value); }
};
template <>
struct Format<DType::kF16> {
  using Storage = uint16_t __attribute__((may_alias));
  static OPTLEASE_HD_INLINE float load(uint16_t stored) { return f32_from_f16(stored); }
  static OPTLEASE_HD_INLINE uint16_t store(float value) { return f16_from_f32(value); }
};

}  // namespace optlease
