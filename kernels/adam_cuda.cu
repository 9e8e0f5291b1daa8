// Indexing, launch numbers and sums; the formulas are in the headers. A thread handles groups of
// eight neighbouring elements, so that every array, FP32 or two bytes an element, is read and
// written in 16-byte accesses; the last elements of a chunk go one by one.
#include <cstdint>

#include "kernels/adam_cuda.h"
#include "kernels/adam_device.cuh"

namespace optlease {

// Of shm/contract/geometry.h, which is C++20.
uint64_t array_stride_bytes(uint64_t elements);

namespace {

using namespace adam_device;

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kBlocksAMultiprocessor = 2;  // as registers allow
constexpr uint32_t kWide = 16;                  // bytes

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
  sums.grad = sum_over_warp(sums.grad);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sums;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Sums total = {0, 0, 0};
  for (uint32_t w = 0; w < kWarps; ++w) {
    total.read += of_warp[w].read;
    total.written += of_warp[w].written;
    total.grad += of_warp[w].grad;
  }
  atomicAdd(&scratch->read, total.read);
  atomicAdd(&scratch->written, total.written);
  atomicAdd(&scratch->grad, total.grad);
  atomicMin(&scratch->started_ns, started_ns);
  __threadfence();
  if (atomicAdd(&scratch->blocks_done, 1u) + 1 != gridDim.x) return;
  __threadfence();
  result->read = atomicExch(&scratch->read, 0ull);
  result->written = atomicExch(&scratch->written, 0ull);
  result->grad = atomicExch(&scratch->grad, 0ull);
  const uint64_t first_start = atomicExch(&scratch->started_ns, ~0ull);
  const uint64_t now = global_ns();
  result->kernel_ns = now > first_start ? now - first_start : 0;
  atomicExch(&scratch->blocks_done, 0u);
}

template <DType kGrad, DType kParam, Main kMain>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    update_kernel(ChunkView c, AdamFactors factors, AdamCudaScratch* scratch,
                  AdamCudaResult* result) {
  const uint64_t started_ns = global_ns();
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  const uint64_t whole = c.elements / kGroup * kGroup;
  Sums sums = {0, 0, 0};
  for (uint64_t i = thread * kGroup; i < whole; i += threads * kGroup) {
    Eight main = load_main<kMain>(c, i);
    Eight first = load_state(c.exp_avg + i);
    Eight second = load_state(c.exp_avg_sq + i);
    const Eight grad = load_eight<kGrad>(c.grad, i, c.grad_is_wide);
    sums.read += sum_of(c, i, main, first, second);
    if constexpr (kGrad == DType::kF32) sums.grad += sum_of(grad, c.grad_first_word + i);
#pragma unroll
    for (uint32_t j = 0; j < kGroup; ++j) {
      adam_element(main.at[j], first.at[j], second.at[j], grad.at[j], factors);
    }
    sums.written += sum_of(c, i, main, first, second);
    store_main<kMain>(c, i, main);
    store_state(c.exp_avg + i, first);
    store_state(c.exp_avg_sq + i, second);
    if (c.param != nullptr) store_params<kMain, kParam>(c, i, main);
  }
  if (const uint64_t i = whole + thread; i < c.elements) {
    float main = load_one_main<kMain>(c, i), first = c.exp_avg[i], second = c.exp_avg_sq[i];
    const float grad = Format<kGrad>::load(static_cast<const Stored<kGrad>*>(c.grad)[i]);
    sums.read += sum_of(c, i, main, first, second);
    if constexpr (kGrad == DType::kF32) {
      sums.grad += checksum_term(bits_of(grad), c.grad_first_word + i);
    }
    adam_element(main, first, second, grad, factors);
    sums.written += sum_of(c, i, main, first, second);
    store_one_main<kMain>(c, i, main);
    c.exp_avg[i] = first;
    c.exp_avg_sq[i] = second;
    if (c.param != nullptr) store_one_param<kMain, kParam>(c, i, main);
  }
  finish(sums, started_ns, scratch, result);
}

template <DType kParam, Main kMain>
__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    republish_kernel(ChunkView c, AdamCudaScratch* scratch, AdamCudaResult* result) {
  const uint64_t started_ns = global_ns();
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  const uint64_t whole = c.elements / kGroup * kGroup;
  uint64_t read = 0;
  for (uint64_t i = thread * kGroup; i < whole; i += threads * kGroup) {
    const Eight main = load_main<kMain>(c, i);
    read += sum_of(c, i, main, load_state(c.exp_avg + i), load_state(c.exp_avg_sq + i));
    store_params<kMain, kParam>(c, i, main);
  }
  if (const uint64_t i = whole + thread; i < c.elements) {
    const float main = load_one_main<kMain>(c, i);
    read += sum_of(c, i, main, c.exp_avg[i], c.exp_avg_sq[i]);
    store_one_param<kMain, kParam>(c, i, main);
  }
  finish({read, read, 0}, started_ns, scratch, result);
}

__global__ void __launch_bounds__(kThreads, kBlocksAMultiprocessor)
    sum_kernel(const float* grad, bool is_wide, uint64_t elements, uint64_t first_word,
               AdamCudaScratch* scratch, AdamCudaResult* result) {
  const uint64_t started_ns = global_ns();
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  const uint64_t whole = elements / kGroup * kGroup;
  uint64_t sum = 0;
  for (uint64_t i = thread * kGroup; i < whole; i += threads * kGroup) {
    sum += sum_of(load_eight<DType::kF32>(grad, i, is_wide), first_word + i);
  }
  if (const uint64_t i = whole + thread; i < elements) {
    sum += checksum_term(bits_of(grad[i]), first_word + i);
  }
  finish({0, 0, sum}, started_ns, scratch, result);
}

__global__ void prepare_kernel(AdamCudaScratch* scratch) { *scratch = {0, 0, 0, ~0ull, 0, 0}; }

bool aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

bool is_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

uintptr_t element_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

ChunkView view_of(const AdamChunk& chunk) {
  const uint64_t whole = chunk.chunk_elements == 0 ? chunk.elements : chunk.chunk_elements;
  return {chunk.main,
          chunk.main_rounded,
          chunk.main_remainder,
          chunk.exp_avg,
          chunk.exp_avg_sq,
          chunk.grad,
          chunk.param,
          chunk.elements,
          chunk.first,
          array_stride_bytes(whole) / 4,
          chunk.grad_first_word,
          aligned(chunk.grad, kWide),
          aligned(chunk.param, kWide)};
}

bool usable_main(const AdamChunk& chunk) {
  if (!chunk.is_in_halves()) return chunk.main != nullptr && aligned(chunk.main, kWide);
  return chunk.main == nullptr && chunk.main_remainder != nullptr &&
         aligned(chunk.main_rounded, kWide) && aligned(chunk.main_remainder, kWide) &&
         (chunk.param == nullptr || chunk.param_dtype == DType::kBF16);
}

bool usable_state(const AdamChunk& chunk) {
  return chunk.elements == 0 ||
         (usable_main(chunk) && chunk.exp_avg != nullptr && chunk.exp_avg_sq != nullptr &&
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
UpdateKernel update_kernel_to(DType param, Main main) {
  if (main == Main::kHalves) return update_kernel<kGrad, DType::kBF16, Main::kHalves>;
  switch (param) {
    case DType::kF32:
      return update_kernel<kGrad, DType::kF32, Main::kF32>;
    case DType::kBF16:
      return update_kernel<kGrad, DType::kBF16, Main::kF32>;
    case DType::kF16:
      return update_kernel<kGrad, DType::kF16, Main::kF32>;
  }
  return nullptr;
}

UpdateKernel update_kernel_of(DType grad, DType param, Main main) {
  switch (grad) {
    case DType::kF32:
      return update_kernel_to<DType::kF32>(param, main);
    case DType::kBF16:
      return update_kernel_to<DType::kBF16>(param, main);
    case DType::kF16:
      return update_kernel_to<DType::kF16>(param, main);
  }
  return nullptr;
}

RepublishKernel republish_kernel_of(DType param, Main main) {
  if (main == Main::kHalves) return republish_kernel<DType::kBF16, Main::kHalves>;
  switch (param) {
    case DType::kF32:
      return republish_kernel<DType::kF32, Main::kF32>;
    case DType::kBF16:
      return republish_kernel<DType::kBF16, Main::kF32>;
    case DType::kF16:
      return republish_kernel<DType::kF16, Main::kF32>;
  }
  return nullptr;
}

Main main_of(const AdamChunk& chunk) { return chunk.is_in_halves() ? Main::kHalves : Main::kF32; }

}  // namespace

cudaError_t prepare_adam_cuda(const AdamCudaTarget& target) {
  prepare_kernel<<<1, 1, 0, target.stream>>>(target.scratch);
  return cudaGetLastError();
}

cudaError_t preload_adam_cuda() {
  constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16};
  cudaFuncAttributes ignored;
  cudaError_t error = cudaFuncGetAttributes(&ignored, prepare_kernel);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&ignored, sum_kernel);
  for (Main main : {Main::kF32, Main::kHalves}) {
    for (DType param : kAll) {
      if (error != cudaSuccess) return error;
      error = cudaFuncGetAttributes(&ignored, republish_kernel_of(param, main));
      for (DType grad : kAll) {
        if (error != cudaSuccess) return error;
        error = cudaFuncGetAttributes(&ignored, update_kernel_of(grad, param, main));
      }
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
  const UpdateKernel kernel = update_kernel_of(chunk.grad_dtype, chunk.param_dtype, main_of(chunk));
  kernel<<<blocks_for(chunk.elements, target), kThreads, 0, target.stream>>>(
      view_of(chunk), factors, target.scratch, result);
  return cudaGetLastError();
}

cudaError_t republish_cuda(const AdamCudaTarget& target, const AdamChunk& chunk,
                           AdamCudaResult* result) {
  const bool has_param = chunk.elements == 0 || chunk.param != nullptr;
  if (!usable_state(chunk) || !usable_param(chunk) || !has_param) return cudaErrorInvalidValue;
  const RepublishKernel kernel = republish_kernel_of(chunk.param_dtype, main_of(chunk));
  kernel<<<blocks_for(chunk.elements, target), kThreads, 0, target.stream>>>(
      view_of(chunk), target.scratch, result);
  return cudaGetLastError();
}

cudaError_t sum_gradient_cuda(const AdamCudaTarget& target, const float* grad, uint64_t elements,
                              uint64_t first_word, AdamCudaResult* result) {
  if ((grad == nullptr && elements != 0) || !aligned(grad, sizeof *grad)) {
    return cudaErrorInvalidValue;
  }
  sum_kernel<<<blocks_for(elements, target), kThreads, 0, target.stream>>>(
      grad, aligned(grad, kWide), elements, first_word, target.scratch, result);
  return cudaGetLastError();
}

}  // namespace optlease
