// How the update kernels see a chunk: its arrays in device memory, read and written in groups of
// eight neighbouring elements, and the sums over them. Used by adam_cuda.cu alone; it holds neither
// a formula nor a launch.
#pragma once

#include <cstdint>

#include "kernels/checksum.h"
#include "kernels/formats.h"
#include "shm/contract/remainder.h"

namespace optlease::adam_device {

constexpr uint32_t kGroup = 8;  // elements: 16 bytes of a two-byte format

template <DType kDType>
using Stored = typename Format<kDType>::Storage;

// How main weights lie in memory.
enum class Main { kF32, kHalves };

struct ChunkView {
  float* main;             // kF32
  uint16_t* main_rounded;  // kHalves, and the next
  uint16_t* main_remainder;
  float* exp_avg;
  float* exp_avg_sq;
  const void* grad;
  void* param;  // may be null
  uint64_t elements;
  uint64_t first;         // the first element's place in its chunk, as checksums count
  uint64_t stride_words;  // from one state array to the next, as checksums count
  uint64_t grad_first_word;
  bool grad_is_wide;  // 16-byte aligned
  bool param_is_wide;
};

struct Sums {
  uint64_t read;
  uint64_t written;
  uint64_t grad;
};

// Eight elements in registers: every index below is a constant once loops are unrolled.
struct Eight {
  float at[kGroup];
};

__device__ __forceinline__ Eight load_state(const float* from) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ __forceinline__ void store_state(float* to, const Eight& v) {
  reinterpret_cast<float4*>(to)[0] = make_float4(v.at[0], v.at[1], v.at[2], v.at[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(v.at[4], v.at[5], v.at[6], v.at[7]);
}

template <DType kDType>
__device__ __forceinline__ Eight load_eight(const void* array, uint64_t index, bool wide) {
  const Stored<kDType>* from = static_cast<const Stored<kDType>*>(array) + index;
  Eight out;
  if (!wide) {
#pragma unroll
    for (uint32_t j = 0; j < kGroup; ++j) out.at[j] = Format<kDType>::load(from[j]);
    return out;
  }
  if constexpr (sizeof(Stored<kDType>) == 4) {
    return load_state(reinterpret_cast<const float*>(from));
  } else {
    const uint4 packed = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (uint32_t j = 0; j < kGroup; ++j) {
      out.at[j] = Format<kDType>::load(static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16)));
    }
    return out;
  }
}

template <DType kDType>
__device__ __forceinline__ void store_eight(void* array, uint64_t index, bool wide,
                                            const Eight& values) {
  Stored<kDType>* to = static_cast<Stored<kDType>*>(array) + index;
  if (!wide) {
#pragma unroll
    for (uint32_t j = 0; j < kGroup; ++j) to[j] = Format<kDType>::store(values.at[j]);
    return;
  }
  if constexpr (sizeof(Stored<kDType>) == 4) {
    store_state(reinterpret_cast<float*>(to), values);
  } else {
    uint32_t words[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t low = Format<kDType>::store(values.at[2 * j]);
      const uint32_t high = Format<kDType>::store(values.at[2 * j + 1]);
      words[j] = low | high << 16;
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Eight 16-bit words of a 16-byte aligned array, element j in the low or high half of word j / 2.
struct EightHalves {
  uint32_t words[4];
  __device__ __forceinline__ uint16_t at(uint32_t j) const {
    return static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16));
  }
};

__device__ __forceinline__ EightHalves load_halves(const uint16_t* from) {
  const uint4 packed = *reinterpret_cast<const uint4*>(from);
  return {{packed.x, packed.y, packed.z, packed.w}};
}

__device__ __forceinline__ void store_halves(uint16_t* to, const EightHalves& v) {
  *reinterpret_cast<uint4*>(to) = make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]);
}

__device__ __forceinline__ EightHalves rounded_of(const Eight& main) {
  EightHalves rounded;
#pragma unroll
  for (uint32_t j = 0; j < kGroup / 2; ++j) {
    const uint32_t low = rounded_half(bits_of(main.at[2 * j]));
    const uint32_t high = rounded_half(bits_of(main.at[2 * j + 1]));
    rounded.words[j] = low | high << 16;
  }
  return rounded;
}

template <Main kMain>
__device__ __forceinline__ Eight load_main(const ChunkView& c, uint64_t index) {
  if constexpr (kMain == Main::kF32) {
    return load_state(c.main + index);
  } else {
    const EightHalves rounded = load_halves(c.main_rounded + index);
    const EightHalves remainder = load_halves(c.main_remainder + index);
    Eight out;
#pragma unroll
    for (uint32_t j = 0; j < kGroup; ++j) {
      out.at[j] = float_of_bits(joined_bits(rounded.at(j), remainder.at(j)));
    }
    return out;
  }
}

template <Main kMain>
__device__ __forceinline__ void store_main(const ChunkView& c, uint64_t index, const Eight& main) {
  if constexpr (kMain == Main::kF32) {
    store_state(c.main + index, main);
  } else {
    EightHalves remainder;
#pragma unroll
    for (uint32_t j = 0; j < kGroup / 2; ++j) {
      const uint32_t low = remainder_half(bits_of(main.at[2 * j]));
      const uint32_t high = remainder_half(bits_of(main.at[2 * j + 1]));
      remainder.words[j] = low | high << 16;
    }
    store_halves(c.main_rounded + index, rounded_of(main));
    store_halves(c.main_remainder + index, remainder);
  }
}

template <Main kMain>
__device__ __forceinline__ float load_one_main(const ChunkView& c, uint64_t i) {
  if constexpr (kMain == Main::kF32) {
    return c.main[i];
  } else {
    return float_of_bits(joined_bits(c.main_rounded[i], c.main_remainder[i]));
  }
}

template <Main kMain>
__device__ __forceinline__ void store_one_main(const ChunkView& c, uint64_t i, float main) {
  if constexpr (kMain == Main::kF32) {
    c.main[i] = main;
  } else {
    c.main_rounded[i] = rounded_half(bits_of(main));
    c.main_remainder[i] = remainder_half(bits_of(main));
  }
}

// The parameter of a main weight: of halves, the one that is rounded.
template <Main kMain, DType kParam>
__device__ __forceinline__ void store_one_param(const ChunkView& c, uint64_t i, float main) {
  if constexpr (kMain == Main::kF32) {
    static_cast<Stored<kParam>*>(c.param)[i] = Format<kParam>::store(main);
  } else {
    static_cast<uint16_t*>(c.param)[i] = rounded_half(bits_of(main));
  }
}

template <Main kMain, DType kParam>
__device__ __forceinline__ void store_params(const ChunkView& c, uint64_t index,
                                             const Eight& main) {
  if constexpr (kMain == Main::kF32) {
    store_eight<kParam>(c.param, index, c.param_is_wide, main);
  } else if (c.param_is_wide) {
    store_halves(static_cast<uint16_t*>(c.param) + index, rounded_of(main));
  } else {
#pragma unroll
    for (uint32_t j = 0; j < kGroup; ++j) {
      store_one_param<kMain, kParam>(c, index + j, main.at[j]);
    }
  }
}

__device__ __forceinline__ uint64_t sum_of(const Eight& values, uint64_t first_word) {
  uint64_t sum = 0;
#pragma unroll
  for (uint32_t j = 0; j < kGroup; ++j) sum += checksum_term(bits_of(values.at[j]), first_word + j);
  return sum;
}

__device__ __forceinline__ uint64_t sum_of(const ChunkView& c, uint64_t index, const Eight& main,
                                           const Eight& first, const Eight& second) {
  const uint64_t word = c.first + index;
  return sum_of(main, word) + sum_of(first, c.stride_words + word) +
         sum_of(second, 2 * c.stride_words + word);
}

__device__ __forceinline__ uint64_t sum_of(const ChunkView& c, uint64_t index, float main,
                                           float first, float second) {
  const uint64_t word = c.first + index;
  return checksum_term(bits_of(main), word) + checksum_term(bits_of(first), c.stride_words + word) +
         checksum_term(bits_of(second), 2 * c.stride_words + word);
}

}  // namespace optlease::adam_device
