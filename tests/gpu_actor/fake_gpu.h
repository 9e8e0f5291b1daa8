// A GPU and an NCCL that are none: the calls that actors/gpu_actor/cuda_*.cc and nccl_*.cc make, on
// host memory, with streams as queues whose heads run in random order. What real hardware may do in
// any order happens here in every order, so a missing dependency between streams shows as wrong
// bits. Ranks are threads of one process. Linked instead of the CUDA runtime (fake_gpu.cc), its
// kernels (fake_kernels.cc) and NCCL (fake_nccl.cc).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace optlease {

// From which the order of everything follows, threads aside.
void fake_gpu_seed(uint64_t seed);

// Operations, streams and communicators that are still there.
uint64_t fake_gpu_leftovers();

// From now on `call` ("cudaMemcpyAsync", ...) does nothing and returns `error`; cudaSuccess: it
// works again.
void fake_gpu_fail(const std::string& call, cudaError_t error);

// While it hangs, nothing that is in a stream runs.
void fake_gpu_hang(bool hangs);

// While they are held, aborts of communicators do not come back, but those of `but_of_rank` do.
void fake_nccl_hold_aborts(bool held, int but_of_rank = -1);
// Aborts that were begun so far, and those that are held at this moment.
uint64_t fake_nccl_aborts();
uint64_t fake_nccl_aborts_held();

// What ncclGetVersion says; and whether there is an NCCL at all.
void fake_nccl_version(int version);
void fake_nccl_is_installed(bool installed);

}  // namespace optlease
