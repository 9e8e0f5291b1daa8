// The inner loops that are compiled once for each instruction set, as a table of functions. Used by
// the .cc files of this folder and by its tests, which compare the tables; everybody else calls
// adam_cpu.h, reduce_cpu.h and checksum.h. Checks no argument.
#pragma once

#include <cstdint>

#include "kernels/adam_cpu.h"
#include "kernels/adam_math.h"
#include "kernels/cpu_isa.h"
#include "shm/contract/dtype.h"

namespace optlease {

// A range of a chunk: pointers to its first element, and that element's word index in each array.
struct AdamSpan {
  float* main;  // null: in halves
  uint16_t* main_rounded;
  uint16_t* main_remainder;
  float* exp_avg;
  float* exp_avg_sq;
  const void* grad;
  void* param;  // may be null
  DType grad_dtype;
  DType param_dtype;
  uint64_t elements;
  uint64_t first_word[3];  // of main, exp_avg, exp_avg_sq
  uint64_t grad_first_word;
};

struct CpuLoops {
  void (*adam)(const AdamSpan& span, const AdamFactors& factors, ChunkSums* sums);
  uint64_t (*republish)(const AdamSpan& span);
  uint64_t (*checksum)(const void* words, uint64_t count, uint64_t first_word_index);
  void (*sum_shards)(float* out, const void* const* inputs, uint32_t input_count, DType dtype,
                     uint64_t elements);
  // One block of the norm, at most kGradBlockElements; adds to *nonfinite.
  double (*grad_block)(const float* grad, uint64_t elements, float pre_scale, uint64_t* nonfinite);
  void (*to_f32)(float* out, const void* in, DType dtype, uint64_t elements);
  void (*from_f32)(void* out, const float* in, DType dtype, uint64_t elements);
};

// One a compilation of cpu_loops.cc; v3 and v4 exist in x86-64 builds only.
const CpuLoops& cpu_loops_generic();
const CpuLoops& cpu_loops_v3();
const CpuLoops& cpu_loops_v4();

// Null where is_supported(isa) is false.
const CpuLoops* cpu_loops_of(CpuIsa isa);

// The chosen one (kernels/cpu_isa.h).
const CpuLoops& cpu_loops();

}  // namespace optlease
