// Element-wise work on ranges on the CPU: the FP32 sum of gradient shards in a fixed order, the
// gradient norm's sum of squares with the checksums of what it reads, and conversions of whole
// ranges. Used by the CPU device's
// collectives, by the norm and by tools; single-threaded and thread-safe. Results do not depend on
// the instruction set, nor on how callers cut their ranges where a function says so.
#pragma once

#include <cstdint>

#include "shm/contract/dtype.h"

namespace optlease {

// out[i] = ((in0[i] + in1[i]) + in2[i]) + ..., each term converted to FP32 first, each sum rounded
// to FP32. Inputs hold `elements` of `dtype`. Cutting the range changes no bit. `out` may be one of
// the inputs only if it is inputs[0] and dtype is F32; no other overlap.
// REQUIRES: input_count >= 1.
void sum_shards(float* out, const void* const* inputs, uint32_t input_count, DType dtype,
                uint64_t elements);

struct GradStats {
  double sum_squares = 0;  // of grad * pre_scale; NaN or infinite where nonfinite > 0
  uint64_t nonfinite = 0;  // elements that are infinite or NaN
};

// The unit of the norm's summation order: blocks begin at multiples of it, counted from the space's
// first element.
inline constexpr uint64_t kGradBlockElements = 4096;
inline constexpr uint64_t kGradFirstElementAlign = 64;

// Where the checksums (kernels/checksum.h) of a shard's chunks go, made by the pass that reads the
// shard for its norm. `sums` null: they are not wanted.
struct GradSums {
  uint64_t* sums = nullptr;     // one a chunk, from grad[0]'s on; increased
  uint64_t chunk_elements = 0;  // of each chunk but the last; a multiple of kGradFirstElementAlign
  uint64_t skip = 0;            // elements of its chunk before grad[0]: a multiple of it, too
  uint64_t first_word = 0;      // grad[0]'s word index
};

// Sum of squares in double over fixed blocks, added in ascending order. Products of two floats are
// exact in double; relative error of the sum at most (elements / 16 + 20) * 2^-53 within a block
// and 2^-53 a block after it. `first_element` is grad[0]'s index in its space.
// REQUIRES: first_element is a multiple of kGradFirstElementAlign.
GradStats grad_stats(const float* grad, uint64_t first_element, uint64_t elements, float pre_scale,
                     const GradSums& into = {});

// The same, continuing *total: walking a shard in pieces gives the bits of one call as long as the
// pieces ascend and every cut between them is at a multiple of kGradBlockElements.
void add_grad_stats(GradStats* total, const float* grad, uint64_t first_element, uint64_t elements,
                    float pre_scale, const GradSums& into = {});

// For threads: each thread fills its own blocks' sums; adding them in ascending order gives the
// bits of grad_stats. sums holds grad_block_count() values. Returns the non-finite elements.
uint64_t grad_block_count(uint64_t first_element, uint64_t elements);
uint64_t grad_block_sums(double* sums, const float* grad, uint64_t first_element, uint64_t elements,
                         float pre_scale);

// Whole ranges between `dtype` and FP32 (kernels/formats.h). No overlap.
void convert_to_f32(float* out, const void* in, DType dtype, uint64_t elements);
void convert_from_f32(void* out, const float* in, DType dtype, uint64_t elements);

}  // namespace optlease
