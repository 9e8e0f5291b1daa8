// The fill of kernels/reduce_cuda.h: the synthetic gradients of kernels/random.h.
#include "kernels/pack_cuda.cuh"
#include "kernels/random.h"
#include "kernels/reduce_cuda.h"

namespace optlease {
namespace {

constexpr unsigned kThreads = 256;

template <DType kDType>
__global__ void fill_packs(uint4* out, uint64_t key, uint64_t first_element, uint64_t packs) {
  constexpr uint32_t kElements = kPackElements<kDType>;
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t p = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; p < packs;
       p += stride) {
    float values[kElements];
#pragma unroll
    for (uint32_t i = 0; i < kElements; ++i) {
      values[i] = synthetic_gradient_of(key, first_element + p * kElements + i);
    }
    out[p] = pack_of<kDType>(values);
  }
}

template <DType kDType>
__global__ void fill_elements(typename Format<kDType>::Storage* out, uint64_t key,
                              uint64_t first_element, uint64_t begin, uint64_t end) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = begin + static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < end;
       i += stride) {
    out[i] = Format<kDType>::store(synthetic_gradient_of(key, first_element + i));
  }
}

template <DType kDType>
cudaError_t launch_fill(void* out, uint64_t key, uint64_t first_element, uint64_t elements,
                        cudaStream_t stream) {
  const uint64_t packs = is_pack_aligned(out) ? elements / kPackElements<kDType> : 0;
  const uint64_t rest = packs * kPackElements<kDType>;
  if (packs > 0) {
    fill_packs<kDType><<<grid_for(packs, kThreads), kThreads, 0, stream>>>(
        static_cast<uint4*>(out), key, first_element, packs);
  }
  if (rest < elements) {
    fill_elements<kDType><<<grid_for(elements - rest, kThreads), kThreads, 0, stream>>>(
        static_cast<typename Format<kDType>::Storage*>(out), key, first_element, rest, elements);
  }
  return cudaGetLastError();
}

template <DType kDType>
cudaError_t load_fill() {
  cudaFuncAttributes attributes;
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(fill_packs<kDType>));
  if (error != cudaSuccess) return error;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(fill_elements<kDType>));
}

}  // namespace

cudaError_t fill_synthetic_gradient_cuda(void* out, DType dtype, uint64_t seed, int64_t step,
                                         uint32_t rank, uint32_t space, uint64_t first_element,
                                         uint64_t elements, cudaStream_t stream) {
  if (elements == 0) return cudaSuccess;
  const uint64_t key = gradient_key(seed, step, rank, space);
  switch (dtype) {
    case DType::kF32:
      return launch_fill<DType::kF32>(out, key, first_element, elements, stream);
    case DType::kBF16:
      return launch_fill<DType::kBF16>(out, key, first_element, elements, stream);
    case DType::kF16:
      return launch_fill<DType::kF16>(out, key, first_element, elements, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t preload_random_cuda() {
  cudaError_t error = load_fill<DType::kF32>();
  if (error == cudaSuccess) error = load_fill<DType::kBF16>();
  if (error == cudaSuccess) error = load_fill<DType::kF16>();
  return error;
}

}  // namespace optlease
