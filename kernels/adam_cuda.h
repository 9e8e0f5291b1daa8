// The Adam update of a chunk on the GPU: one launch reads gradients, updates the state in place,
// writes parameters, and sums what it read and what it wrote (kernels/checksum.h), gradients by
// themselves. Same formulas, same bits as kernels/adam_cpu.h, whatever the grid. Used by the CUDA
// device of the GPU actor. Enqueues only: no call waits for the GPU or allocates, once
// preload_adam_cuda() has run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/adam_cpu.h"
#include "kernels/adam_math.h"

namespace optlease {

// What a launch leaves in pinned host memory; valid once an event recorded after it has passed.
struct AdamCudaResult {
  uint64_t read;
  uint64_t written;
  uint64_t grad;
  uint64_t kernel_ns;  // from the first block's start to the last block's end
};

// In device memory. The last block of a launch takes the sums and leaves it as it was, so one
// serves all launches of one stream.
struct AdamCudaScratch {
  unsigned long long read;
  unsigned long long written;
  unsigned long long grad;
  unsigned long long started_ns;
  unsigned int blocks_done;
  unsigned int reserved_zero;
};

// Where a launch goes. `scratch` belongs to `stream` alone.
struct AdamCudaTarget {
  cudaStream_t stream;
  AdamCudaScratch* scratch;
  uint32_t multiprocessors;
};

// Makes the scratch usable; in stream order. Once.
cudaError_t prepare_adam_cuda(const AdamCudaTarget& target);

// Loads every kernel of this file now: a first launch would otherwise allocate and wait.
cudaError_t preload_adam_cuda();

// REQUIRES: state arrays are 16-byte aligned device memory; gradients and parameters are aligned to
// their own elements (16 bytes is faster). cudaErrorInvalidValue where a dtype or pointer is none.
cudaError_t adam_update_cuda(const AdamCudaTarget& target, const AdamChunk& chunk,
                             const AdamFactors& factors, AdamCudaResult* result);

// Parameters from main weights; the state's two sums are of what was read. REQUIRES: chunk.param is
// not null.
cudaError_t republish_cuda(const AdamCudaTarget& target, const AdamChunk& chunk,
                           AdamCudaResult* result);

// Reads FP32 gradients and leaves their checksum in result->grad, their first word's index being
// `first_word`: as an update that reads the same would. cudaErrorInvalidValue where `grad` is not
// aligned to its elements (16 bytes is faster).
cudaError_t sum_gradient_cuda(const AdamCudaTarget& target, const float* grad, uint64_t elements,
                              uint64_t first_word, AdamCudaResult* result);

}  // namespace optlease
