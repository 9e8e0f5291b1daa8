// The element-wise work of kernels/reduce_cpu.h and kernels/random.h on the GPU: the FP32 sum of
// gradient shards in a fixed order, the norm's block sums, synthetic gradients. The first is for
// the CUDA device's collectives, the others are for its gradient math. Every function enqueues on
// `stream` of the current device and returns at once; it allocates nothing. Pointers are the
// device's; those that are 16-byte aligned are read and written 16 bytes at a time, others element
// by element. The bits are those of the CPU functions of the same name, but for the payload of a
// NaN that an addition or multiplication makes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/reduce_cpu.h"
#include "shm/contract/dtype.h"

namespace optlease {

// As sum_shards. `inputs` itself is host memory and read before the call returns.
cudaError_t sum_shards_cuda(float* out, const void* const* inputs, uint32_t input_count,
                            DType dtype, uint64_t elements, cudaStream_t stream);

// As grad_block_sums: `sums` takes grad_block_count() values, to be added in ascending order;
// *nonfinite, which must be 8-byte aligned device memory, is increased. Where into.sums is not
// null, the chunks' checksums are increased there, in device memory, as by add_grad_stats.
cudaError_t grad_block_sums_cuda(double* sums, uint64_t* nonfinite, const float* grad,
                                 uint64_t first_element, uint64_t elements, float pre_scale,
                                 const GradSums& into, cudaStream_t stream);

cudaError_t fill_synthetic_gradient_cuda(void* out, DType dtype, uint64_t seed, int64_t step,
                                         uint32_t rank, uint32_t space, uint64_t first_element,
                                         uint64_t elements, cudaStream_t stream);

// Loads all of the above into the current device's context. Loading a kernel may wait for running
// ones, so whoever runs kernels that wait for other processes calls this before the first of them.
cudaError_t preload_reduce_cuda();
cudaError_t preload_norm_cuda();    // grad_block_sums_cuda alone; part of the former
cudaError_t preload_random_cuda();  // the fill alone; the same

}  // namespace optlease
