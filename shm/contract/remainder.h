// The exact split of an FP32 number into a BF16 and 16 further bits: how main weights lie in memory
// in their remainder form (state_split.h). The BF16 is the number rounded to nearest, ties away
// from zero; it is the parameter that the forward pass reads. Used by kernels on host and device
// and by readers of segments.
//
// Rounding to nearest even could not be undone with 16 bits: a BF16 whose last bit is 0 is the
// image of 65537 numbers (both halfway neighbours round to it). Ties away give each BF16 exactly
// 65536: the remainder's own top bit says whether the upper half was counted up.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define OPTLEASE_SPLIT_INLINE __host__ __device__ inline __attribute__((always_inline))
#else
#define OPTLEASE_SPLIT_INLINE inline __attribute__((always_inline))
#endif

namespace optlease {

// The BF16 of an FP32's bits. Infinities stay, and so does the one NaN that is ever stored
// (0x7fc00000); another NaN might read as a number, although it is restored.
OPTLEASE_SPLIT_INLINE uint16_t rounded_half(uint32_t bits) {
  return static_cast<uint16_t>((bits + 0x8000u) >> 16);
}

OPTLEASE_SPLIT_INLINE uint16_t remainder_half(uint32_t bits) {
  return static_cast<uint16_t>(bits & 0xffffu);
}

// The bits that the two halves came from, whichever they were.
OPTLEASE_SPLIT_INLINE uint32_t joined_bits(uint16_t rounded, uint16_t remainder) {
  return ((static_cast<uint32_t>(rounded) << 16) | remainder) -
         (static_cast<uint32_t>(remainder & 0x8000u) << 1);
}

}  // namespace optlease
