// The few words that make one function run on host and device with the same bits: the qualifier
// macros, and add, multiply, fma, square root and divide that no compiler may contract or relax.
// Used by every header of kernels/ that device code includes; does no arithmetic of its own.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define OPTLEASE_HD __host__ __device__
#else
#define OPTLEASE_HD
#endif

// Always inlined: the same header is compiled for several instruction sets into one program, and an
// out-of-line copy of one of them could be picked by the linker for all.
#define OPTLEASE_HD_INLINE OPTLEASE_HD inline __attribute__((always_inline))

namespace optlease {

// a * b + c, rounded once.
OPTLEASE_HD_INLINE float fma_rn(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

OPTLEASE_HD_INLINE float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;  // -ffp-contract=off: never part of a fused operation
#endif
}

OPTLEASE_HD_INLINE float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

OPTLEASE_HD_INLINE float sub_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

OPTLEASE_HD_INLINE float div_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

OPTLEASE_HD_INLINE float sqrt_rn(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

OPTLEASE_HD_INLINE uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}

OPTLEASE_HD_INLINE float float_of_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

}  // namespace optlease
