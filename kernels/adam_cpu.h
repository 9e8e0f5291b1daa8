// The Adam update of a chunk on the CPU: one pass over memory that reads gradients, updates the
// state in place, writes parameters and sums what it read and what it wrote (kernels/checksum.h),
// gradients by themselves.
// Used by the CPU device of the GPU actor, by the self-test and by benchmarks; single-threaded and
// thread-safe: callers split a chunk by ranges. Owns no memory; checks no checksum itself.
#pragma once

#include <cstdint>

#include "kernels/adam_math.h"
#include "shm/contract/dtype.h"

namespace optlease {

// A chunk, or a range of its elements, in memory of the device. No array may overlap another.
struct AdamChunk {
  float* main = nullptr;  // FP32; null where it is in halves
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const void* grad = nullptr;
  DType grad_dtype = DType::kF32;
  void* param = nullptr;  // null: no parameters are written
  DType param_dtype = DType::kF32;
  uint64_t elements = 0;  // here
  // Where it is a range of a chunk: its first element's place, and the chunk's elements (0: these
  // are all). They decide the words' places in checksums.
  uint64_t first = 0;
  uint64_t chunk_elements = 0;
  // Main weights in halves (shm/contract/remainder.h). The parameters are then the rounded ones,
  // and param_dtype is BF16.
  uint16_t* main_rounded = nullptr;
  uint16_t* main_remainder = nullptr;

  // grad[0]'s word index where gradients are summed.
  uint64_t grad_first_word = 0;

  bool is_in_halves() const { return main_rounded != nullptr; }
};

// Checksums of the chunk before and after, and of the gradients that the update was made with: of
// the very words that entered it, where they are FP32, and 0 where they are not. Sums over ranges
// of one chunk add up, modulo 2^64.
struct ChunkSums {
  uint64_t read = 0;
  uint64_t written = 0;
  uint64_t grad = 0;
};

ChunkSums adam_update(const AdamChunk& chunk, const AdamFactors& factors);

// The same for elements [begin, end) of `chunk`, whose pointers still name its first element.
ChunkSums adam_update_range(const AdamChunk& chunk, const AdamFactors& factors, uint64_t begin,
                            uint64_t end);

// Writes param from main and changes nothing else; returns the checksum of the chunk read (all
// three arrays, so that it can be compared with the slot's). `grad` is not used.
// REQUIRES: param is not null.
uint64_t republish(const AdamChunk& chunk);
uint64_t republish_range(const AdamChunk& chunk, uint64_t begin, uint64_t end);

}  // namespace optlease
