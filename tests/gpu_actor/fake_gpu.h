// A GPU and an NCCL that are none: the calls that actors/gpu_actor/nccl_*.cc make, on host memory,
// with streams as queues whose heads run in random order. What real hardware may do in any order
// happens here in every order, so a missing dependency between streams shows as wrong bits. Ranks
// are threads of one process. Linked instead of the CUDA runtime and NCCL.
#pragma once

#include <cstdint>

namespace optlease {

// From which the order of everything follows, threads aside.
void fake_gpu_seed(uint64_t seed);

// Operations, streams and communicators that are still there.
uint64_t fake_gpu_leftovers();

}  // namespace optlease
