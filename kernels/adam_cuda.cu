// Indexing, launch numbers and sums; the formulas are in the headers. A thread handles groups of
// eight neighbouring elements, so that every array, FP32 or two bytes an element, is read and
// written in 16-byte accesses; the last elements of a chunk go one by one.
#include <cstdint>

#include "kernels/adam_cuda.h"
#include "kernels/checksum.h"
#include "kernels/formats.h"

namespace optlease {

// Of shm/contract/geometry.h, which is C++20.
uint64_t array_stride_bytes(uint64_t elements);

namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kBlocksAMultiprocessor = 2;  // as registers allow
constexpr uint32_t kGroup = 8;                  // elements: 16 bytes of a two-byte format
constexpr uint32_t kWide = 16;                  // bytes

template <DType kDType>
using Stored = typename Format<kDType>::Storage;

struct ChunkView {
  float* main;
  float* exp_avg;
  float* exp_avg_sq;
  const void* grad;
  void* param;  // may be null
  uint64_t elements;
  uint64_t stride_words;  // from one state array to the next, as checksums count
  bool grad_is_wide;      // 16-byte aligned
  bool param_is_wide;
};

struct Sums {
  uint64_t read;
  uint64_t written;
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

__device__ __forceinline__ uint64_t sum_of(const Eight& values, uint64_t first_word) {
  uint64_t sum = 0;
#pragma unroll
  for (uint32_t j = 0; j < kGroup; ++j) sum += checksum_term(bits_of(values.at[j]), first_word + j);
  return sum;
}

__device__ __forceinline__ uint64_t sum_of(const ChunkView& c, uint64_t index, const Eight& main,
                                           const Eight& first, const Eight& second) {
  return sum_of(main, index) + sum_of(first, c.stride_words + index) +
         sum_of(second, 2 * c.stride_words + index);
}

__device__ __forceinline__ uint64_t sum_of(const ChunkView& c, uint64_t index, float main,
                                           float first, float second) {
  return checksum_term(bits_of(main), index) +
         checksum_term(bits_of(first), c.stride_words + index) +
         checksum_term(bits_of(second), 2 * c.stride_words + index);
}

__device__ __forceinline__ uint64_t global_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__device__ __forceinline__ uint64_t sum_over_warp(uint64_t value) {
#pragma unroll
  for (uint32_t lanes = 16; lanes != 0; lanes /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, lanes);
  }
  return value;
}

// Adds up the block's sums; the last block to come hands the total to the host and leaves the
// scratch for the next launch. Called by all threads of the block.
__device__ __forceinline__ void finish(Sums sums, uint64_t started_ns, AdamCudaScratch* scratch,
                                       AdamCudaResult* result) {
  __shared__ Sums of_warp[kWarps];
  sums.read = sum_over_warp(sums.read);
  sums.written = sum_over_warp(sums.written);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sums;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Sums total = {0, 0};
  for (uint32_t w = 0; w < kWarps; ++w) {
    total.read += of_warp[w].read;
    total.written += of_warp[w].written;
  }
  atomicAdd(&scratch->read, total.read);
  atomicAdd(&scratch->written, total.written);
  atomicMin(&scratch->started_ns, started_ns);
  __threadfence();
  if (atomicAdd(&scratch->blocks_done, 1u) + 1 != gridDim.x) return;
  __threadfence();
  result->read = atomicExch(&scratch->read, 0ull);
  result->written = atomicExch(&scratch->written, 0ull);
  const uint64_t first_start = atomicExch(&scratch->started_ns, ~0ull);
  const uint64_t now = global_ns();
  result->kernel_ns = now > first_start ? now - first_start : 0;
  atomicExch(&scratch->blocks_done, 0u);
}

template <DType kGrad, DType kParam>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    update_kernel(ChunkView c, AdamFactors factors, AdamCudaScratch* scratch,
                  AdamCudaResult* result) {
  const uint64_t started_ns = global_ns();
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  const uint64_t whole = c.elements / kGroup * kGroup;
  Sums sums = {0, 0};
  for (uint64_t i = thread * kGroup; i < whole; i += threads * kGroup) {
    Eight main = load_state(c.main + i);
    Eight first = load_state(c.exp_avg + i);
    Eight second = load_state(c.exp_avg_sq + i);
    const Eight grad = load_eight<kGrad>(c.grad, i, c.grad_is_wide);
    sums.read += sum_of(c, i, main, first, second);
#pragma unroll
    for (uint32_t j = 0; j < kGroup; ++j) {
      adam_element(main.at[j], first.at[j], second.at[j], grad.at[j], factors);
    }
    sums.written += sum_of(c, i, main, first, second);
    store_state(c.main + i, main);
    store_state(c.exp_avg + i, first);
    store_state(c.exp_avg_sq + i, second);
    if (c.param != nullptr) store_eight<kParam>(c.param, i, c.param_is_wide, main);
  }
  if (const uint64_t i = whole + thread; i < c.elements) {
    float main = c.main[i], first = c.exp_avg[i], second = c.exp_avg_sq[i];
    sums.read += sum_of(c, i, main, first, second);
    adam_element(main, first, second,
                 Format<kGrad>::load(static_cast<const Stored<kGrad>*>(c.grad)[i]), factors);
    sums.written += sum_of(c, i, main, first, second);
    c.main[i] = main;
    c.exp_avg[i] = first;
    c.exp_avg_sq[i] = second;
    if (c.param != nullptr) {
      static_cast<Stored<kParam>*>(c.param)[i] = Format<kParam>::store(main);
    }
  }
  finish(sums, started_ns, scratch, result);
}

template <DType kParam>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    republish_kernel(ChunkView c, AdamCudaScratch* scratch, AdamCudaResult* result) {
  const uint64_t started_ns = global_ns();
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  const uint64_t whole = c.elements / kGroup * kGroup;
  uint64_t read = 0;
  for (uint64_t i = thread * kGroup; i < whole; i += threads * kGroup) {
    const Eight main = load_state(c.main + i);
    read += sum_of(c, i, main, load_state(c.exp_avg + i), load_state(c.exp_avg_sq + i));
    store_eight<kParam>(c.param, i, c.param_is_wide, main);
  }
  if (const uint64_t i = whole + thread; i < c.elements) {
    read += sum_of(c, i, c.main[i], c.exp_avg[i], c.exp_avg_sq[i]);
    static_cast<Stored<kParam>*>(c.param)[i] = Format<kParam>::store(c.main[i]);
  }
  finish({read, read}, started_ns, scratch, result);
}

__global__ void prepare_kernel(AdamCudaScratch* scratch) { *scratch = {0, 0, ~0ull, 0, 0}; }

bool aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

bool is_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

uintptr_t element_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

ChunkView view_of(const AdamChunk& chunk) {
  return {chunk.main,
          chunk.exp_avg,
          chunk.exp_avg_sq,
          chunk.grad,
          chunk.param,
          chunk.elements,
          array_stride_bytes(chunk.elements) / 4,
          aligned(chunk.grad, kWide),
          aligned(chunk.param, kWide)};
}

bool usable_state(const AdamChunk& chunk) {
  return chunk.elements == 0 || (chunk.main != nullptr && chunk.exp_avg != nullptr &&
                                 chunk.exp_avg_sq != nullptr && aligned(chunk.main, kWide) &&
                                 aligned(chunk.exp_avg, kWide) && aligned(chunk.exp_avg_sq, kWide));
}

bool usable_param(const AdamChunk& chunk) {
  return is_dtype(chunk.param_dtype) && aligned(chunk.param, element_bytes(chunk.param_dtype));
}

uint32_t blocks_for(uint64_t elements, const AdamCudaTarget& target) {
  const uint64_t wanted = (elements / kGroup + kThreads) / kThreads;
  const uint64_t most = static_cast<uint64_t>(target.multiprocessors) * kBlocksAMultiprocessor;
  return static_cast<uint32_t>(wanted < 1 ? 1 : wanted > most && most > 0 ? most : wanted);
}

using UpdateKernel = void (*)(ChunkView, AdamFactors, AdamCudaScratch*, AdamCudaResult*);
using RepublishKernel = void (*)(ChunkView, AdamCudaScratch*, AdamCudaResult*);

template <DType kGrad>
UpdateKernel update_kernel_to(DType param) {
  switch (param) {
    case DType::kF32:
      return update_kernel<kGrad, DType::kF32>;
    case DType::kBF16:
      return update_kernel<kGrad, DType::kBF16>;
    case DType::kF16:
      return update_kernel<kGrad, DType::kF16>;
  }
  return nullptr;
}

UpdateKernel update_kernel_of(DType grad, DType param) {
  switch (grad) {
    case DType::kF32:
      return update_kernel_to<DType::kF32>(param);
    case DType::kBF16:
      return update_kernel_to<DType::kBF16>(param);
    case DType::kF16:
      return update_kernel_to<DType::kF16>(param);
  }
  return nullptr;
}

RepublishKernel republish_kernel_of(DType param) {
  switch (param) {
    case DType::kF32:
      return republish_kernel<DType::kF32>;
    case DType::kBF16:
      return republish_kernel<DType::kBF16>;
    case DType::kF16:
      return republish_kernel<DType::kF16>;
  }
  return nullptr;
}

}  // namespace

cudaError_t prepare_adam_cuda(const AdamCudaTarget& target) {
  prepare_kernel<<<1, 1, 0, target.stream>>>(target.scratch);
  return cudaGetLastError();
}

cudaError_t preload_adam_cuda() {
  constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16};
  cudaFuncAttributes ignored;
  cudaError_t error = cudaFuncGetAttributes(&ignored, prepare_kernel);
  for (DType param : kAll) {
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&ignored, republish_kernel_of(param));
    for (DType grad : kAll) {
      if (error != cudaSuccess) return error;
      error = cudaFuncGetAttributes(&ignored, update_kernel_of(grad, param));
    }
  }
  return error;
}

cudaError_t adam_update_cuda(const AdamCudaTarget& target, const AdamChunk& chunk,
                             const AdamFactors& factors, AdamCudaResult* result) {
  const bool has_grad = chunk.elements == 0 || chunk.grad != nullptr;
  if (!usable_state(chunk) || !usable_param(chunk) || !is_dtype(chunk.grad_dtype) || !has_grad ||
      !aligned(chunk.grad, element_bytes(chunk.grad_dtype))) {
    return cudaErrorInvalidValue;
  }
  const UpdateKernel kernel = update_kernel_of(chunk.grad_dtype, chunk.param_dtype);
  kernel<<<blocks_for(chunk.elements, target), kThreads, 0, target.stream>>>(
      view_of(chunk), factors, target.scratch, result);
  return cudaGetLastError();
}

cudaError_t republish_cuda(const AdamCudaTarget& target, const AdamChunk& chunk,
                           AdamCudaResult* result) {
  const bool has_param = chunk.elements == 0 || chunk.param != nullptr;
  if (!usable_state(chunk) || !usable_param(chunk) || !has_param) return cudaErrorInvalidValue;
  const RepublishKernel kernel = republish_kernel_of(chunk.param_dtype);
  kernel<<<blocks_for(chunk.elements, target), kThreads, 0, target.stream>>>(
      view_of(chunk), target.scratch, result);
  return cudaGetLastError();
}

}  // namespace optlease
