// Sixteen bytes of stored elements as device code moves them, and the elements of such a pack as
// floats. Used by kernels that pass over memory in 16-byte accesses; only nvcc compiles it. The
// conversions themselves are those of kernels/formats.h.
#pragma once

#include <cstdint>

#include "kernels/formats.h"
#include "kernels/host_device.h"
#include "shm/contract/dtype.h"

namespace optlease {

inline constexpr uint64_t kPackBytes = 16;

template <DType kDType>
inline constexpr uint32_t kPackElements = kDType == DType::kF32 ? 4 : 8;

template <DType kDType>
__device__ inline void unpack(float (&values)[kPackElements<kDType>], const uint4& pack) {
  const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
  for (uint32_t i = 0; i < kPackElements<kDType>; ++i) {
    if constexpr (kDType == DType::kF32) {
      values[i] = float_of_bits(words[i]);
    } else {
      values[i] = Format<kDType>::load(static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))));
    }
  }
}

template <DType kDType>
__device__ inline uint4 pack_of(const float (&values)[kPackElements<kDType>]) {
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (uint32_t i = 0; i < kPackElements<kDType>; ++i) {
    if constexpr (kDType == DType::kF32) {
      words[i] = bits_of(values[i]);
    } else {
      words[i / 2] |= static_cast<uint32_t>(Format<kDType>::store(values[i])) << (16 * (i % 2));
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

inline bool is_pack_aligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % kPackBytes == 0;
}

// The grid of a kernel whose threads stride over `work` items.
inline unsigned grid_for(uint64_t work, unsigned threads_each) {
  constexpr uint64_t kBlocksMax = 2048;  // a few times what the largest GPU holds at once
  const uint64_t blocks = (work + threads_each - 1) / threads_each;
  return static_cast<unsigned>(blocks < kBlocksMax ? blocks : kBlocksMax);
}

}  // namespace optlease
