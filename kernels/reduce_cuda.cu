#include "kernels/reduce_cuda.h"

#include "kernels/pack_cuda.cuh"

namespace optlease {
namespace {

constexpr unsigned kThreads = 256;
constexpr uint32_t kInputsMax = 16;  // a launch; more are added by further launches

struct ShardInputs {
  const void* at[kInputsMax];
  uint32_t count;
  bool continues;  // `out` holds the sum of the inputs before these
};

template <DType kDType>
using Stored = typename Format<kDType>::Storage;

__device__ inline uint64_t first_item() {
  return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ inline uint64_t item_stride() { return static_cast<uint64_t>(gridDim.x) * blockDim.x; }

// Not __restrict__: `out` may be the first input.
template <DType kDType>
__global__ void sum_packs(float* out, const __grid_constant__ ShardInputs inputs, uint64_t packs) {
  constexpr uint32_t kElements = kPackElements<kDType>;
  constexpr uint32_t kOutPacks = kElements / 4;
  uint4* out_packs = reinterpret_cast<uint4*>(out);
  for (uint64_t p = first_item(); p < packs; p += item_stride()) {
    float sum[kElements];
    if (inputs.continues) {
#pragma unroll
      for (uint32_t o = 0; o < kOutPacks; ++o) {
        const uint4 before = out_packs[p * kOutPacks + o];
        sum[4 * o] = float_of_bits(before.x);
        sum[4 * o + 1] = float_of_bits(before.y);
        sum[4 * o + 2] = float_of_bits(before.z);
        sum[4 * o + 3] = float_of_bits(before.w);
      }
    } else {
      unpack<kDType>(sum, static_cast<const uint4*>(inputs.at[0])[p]);
    }
    for (uint32_t k = inputs.continues ? 0 : 1; k < inputs.count; ++k) {
      float term[kElements];
      unpack<kDType>(term, static_cast<const uint4*>(inputs.at[k])[p]);
#pragma unroll
      for (uint32_t i = 0; i < kElements; ++i) sum[i] = add_rn(sum[i], term[i]);
    }
#pragma unroll
    for (uint32_t o = 0; o < kOutPacks; ++o) {
      out_packs[p * kOutPacks + o] = make_uint4(bits_of(sum[4 * o]), bits_of(sum[4 * o + 1]),
                                                bits_of(sum[4 * o + 2]), bits_of(sum[4 * o + 3]));
    }
  }
}

template <DType kDType>
__global__ void sum_elements(float* out, const __grid_constant__ ShardInputs inputs, uint64_t begin,
                             uint64_t end) {
  for (uint64_t i = begin + first_item(); i < end; i += item_stride()) {
    const auto term = [&](uint32_t k) {
      return Format<kDType>::load(static_cast<const Stored<kDType>*>(inputs.at[k])[i]);
    };
    float sum = inputs.continues ? out[i] : term(0);
    for (uint32_t k = inputs.continues ? 0 : 1; k < inputs.count; ++k) sum = add_rn(sum, term(k));
    out[i] = sum;
  }
}

template <DType kDType>
cudaError_t launch_sum(float* out, const ShardInputs& inputs, uint64_t elements,
                       cudaStream_t stream) {
  bool aligned = is_pack_aligned(out);
  for (uint32_t k = 0; k < inputs.count; ++k) aligned = aligned && is_pack_aligned(inputs.at[k]);
  const uint64_t packs = aligned ? elements / kPackElements<kDType> : 0;
  const uint64_t rest = packs * kPackElements<kDType>;
  if (packs > 0) {
    sum_packs<kDType><<<grid_for(packs, kThreads), kThreads, 0, stream>>>(out, inputs, packs);
  }
  if (rest < elements) {
    sum_elements<kDType>
        <<<grid_for(elements - rest, kThreads), kThreads, 0, stream>>>(out, inputs, rest, elements);
  }
  return cudaGetLastError();
}

cudaError_t launch_sum(float* out, const ShardInputs& inputs, DType dtype, uint64_t elements,
                       cudaStream_t stream) {
  switch (dtype) {
    case DType::kF32:
      return launch_sum<DType::kF32>(out, inputs, elements, stream);
    case DType::kBF16:
      return launch_sum<DType::kBF16>(out, inputs, elements, stream);
    case DType::kF16:
      return launch_sum<DType::kF16>(out, inputs, elements, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t sum_shards_cuda(float* out, const void* const* inputs, uint32_t input_count,
                            DType dtype, uint64_t elements, cudaStream_t stream) {
  if (input_count == 0) return cudaErrorInvalidValue;
  if (elements == 0) return cudaSuccess;
  for (uint32_t first = 0; first < input_count; first += kInputsMax) {
    ShardInputs part{};
    part.count = input_count - first < kInputsMax ? input_count - first : kInputsMax;
    part.continues = first != 0;
    for (uint32_t k = 0; k < part.count; ++k) part.at[k] = inputs[first + k];
    const cudaError_t error = launch_sum(out, part, dtype, elements, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t preload_reduce_cuda() {
  const void* const kernels[] = {
      reinterpret_cast<const void*>(sum_packs<DType::kF32>),
      reinterpret_cast<const void*>(sum_packs<DType::kBF16>),
      reinterpret_cast<const void*>(sum_packs<DType::kF16>),
      reinterpret_cast<const void*>(sum_elements<DType::kF32>),
      reinterpret_cast<const void*>(sum_elements<DType::kBF16>),
      reinterpret_cast<const void*>(sum_elements<DType::kF16>),
  };
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  const cudaError_t error = preload_norm_cuda();
  return error != cudaSuccess ? error : preload_random_cuda();
}

}  // namespace optlease
