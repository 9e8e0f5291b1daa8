#include "kernels/reduce_cuda.h"

#include "kernels/pack_cuda.cuh"
#include "kernels/reduce_cpu.h"

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

// The norm. A block of kGradBlockElements belongs to four threads; thread t has the lanes 4t to
// 4t + 3 of the sixteen into which reduce_cpu.h's order of additions cuts a block, so that one
// 16-byte load brings each of its lanes the next element.
constexpr uint32_t kLanes = 16;
constexpr uint32_t kLanesEach = 4;
constexpr uint32_t kThreadsABlock = kLanes / kLanesEach;
constexpr unsigned kNormThreads = 128;
constexpr uint64_t kBlocksALaunchBlock = kNormThreads / kThreadsABlock;
static_assert(kGradFirstElementAlign % kLanes == 0 && kGradBlockElements % kLanes == 0,
              "every block starts at lane 0");

__device__ inline void add_square(double* lane, uint32_t* nonfinite, float value, double scale) {
  const double scaled = __dmul_rn(static_cast<double>(value), scale);
  *lane = __dadd_rn(*lane, __dmul_rn(scaled, scaled));
  *nonfinite += (bits_of(value) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
}

template <bool kAligned>
__device__ inline float4 four_floats(const float* at) {
  if constexpr (kAligned) return *reinterpret_cast<const float4*>(at);
  return make_float4(at[0], at[1], at[2], at[3]);
}

// The lanes of one block, added up by all its threads; the first thread returns the sum.
template <bool kAligned>
__device__ inline double sum_of_block(const float* block, uint64_t count, double scale,
                                      uint32_t* nonfinite) {
  constexpr uint32_t kRowsAtOnce = 8;  // loads in flight
  const uint32_t thread = threadIdx.x % kThreadsABlock;
  double lanes[kLanesEach] = {0, 0, 0, 0};
  const uint64_t rows = count / kLanes;
  const float* at = block + thread * kLanesEach;
  uint64_t row = 0;
  for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) {
    float4 values[kRowsAtOnce];
#pragma unroll
    for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
      values[r] = four_floats<kAligned>(at + (row + r) * kLanes);
    }
#pragma unroll
    for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
      add_square(&lanes[0], nonfinite, values[r].x, scale);
      add_square(&lanes[1], nonfinite, values[r].y, scale);
      add_square(&lanes[2], nonfinite, values[r].z, scale);
      add_square(&lanes[3], nonfinite, values[r].w, scale);
    }
  }
  for (; row < rows; ++row) {
    const float4 values = four_floats<kAligned>(at + row * kLanes);
    add_square(&lanes[0], nonfinite, values.x, scale);
    add_square(&lanes[1], nonfinite, values.y, scale);
    add_square(&lanes[2], nonfinite, values.z, scale);
    add_square(&lanes[3], nonfinite, values.w, scale);
  }
#pragma unroll
  for (uint32_t l = 0; l < kLanesEach; ++l) {
    const uint64_t element = rows * kLanes + thread * kLanesEach + l;
    if (element < count) add_square(&lanes[l], nonfinite, block[element], scale);
  }
  // The tree over the lanes: 8 (threads 2 and 3 to 0 and 1), 4 (thread 1 to 0), 2, 1.
#pragma unroll
  for (uint32_t half = kThreadsABlock / 2; half != 0; half /= 2) {
#pragma unroll
    for (uint32_t l = 0; l < kLanesEach; ++l) {
      lanes[l] = __dadd_rn(lanes[l], __shfl_down_sync(0xffffffffu, lanes[l], half, kThreadsABlock));
    }
  }
  return __dadd_rn(__dadd_rn(lanes[0], lanes[2]), __dadd_rn(lanes[1], lanes[3]));
}

// `head`: elements of the first block, which may begin within a block of the space.
template <bool kAligned>
__global__ void __launch_bounds__(kNormThreads)
    norm_blocks(double* sums, unsigned long long* nonfinite, const float* grad, uint64_t head,
                uint64_t elements, uint64_t blocks, float pre_scale) {
  const uint64_t block =
      blockIdx.x * kBlocksALaunchBlock + threadIdx.x / kThreadsABlock;  // a warp stays together
  uint64_t begin = 0;
  uint64_t count = 0;
  if (block < blocks) {
    begin = block == 0 ? 0 : head + (block - 1) * kGradBlockElements;
    const uint64_t room = block == 0 ? head : kGradBlockElements;
    count = elements - begin < room ? elements - begin : room;
  }
  uint32_t bad = 0;
  const double sum =
      sum_of_block<kAligned>(grad + begin, count, static_cast<double>(pre_scale), &bad);
  if (block < blocks && threadIdx.x % kThreadsABlock == 0) sums[block] = sum;
  bad = __reduce_add_sync(0xffffffffu, bad);
  if (threadIdx.x % 32 == 0 && bad != 0) atomicAdd(nonfinite, bad);
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

cudaError_t grad_block_sums_cuda(double* sums, uint64_t* nonfinite, const float* grad,
                                 uint64_t first_element, uint64_t elements, float pre_scale,
                                 cudaStream_t stream) {
  if (first_element % kGradFirstElementAlign != 0) return cudaErrorInvalidValue;
  if (elements == 0) return cudaSuccess;
  const uint64_t head = kGradBlockElements - first_element % kGradBlockElements;
  const uint64_t blocks =
      elements <= head ? 1 : 1 + (elements - head + kGradBlockElements - 1) / kGradBlockElements;
  const uint64_t grid = (blocks + kBlocksALaunchBlock - 1) / kBlocksALaunchBlock;
  if (grid > 0x7fffffffu) return cudaErrorInvalidValue;  // 2^48 elements
  auto* counter = reinterpret_cast<unsigned long long*>(nonfinite);
  const auto kernel = is_pack_aligned(grad) ? norm_blocks<true> : norm_blocks<false>;
  kernel<<<static_cast<unsigned>(grid), kNormThreads, 0, stream>>>(sums, counter, grad, head,
                                                                   elements, blocks, pre_scale);
  return cudaGetLastError();
}

cudaError_t preload_reduce_cuda() {
  const void* const kernels[] = {
      reinterpret_cast<const void*>(sum_packs<DType::kF32>),
      reinterpret_cast<const void*>(sum_packs<DType::kBF16>),
      reinterpret_cast<const void*>(sum_packs<DType::kF16>),
      reinterpret_cast<const void*>(sum_elements<DType::kF32>),
      reinterpret_cast<const void*>(sum_elements<DType::kBF16>),
      reinterpret_cast<const void*>(sum_elements<DType::kF16>),
      reinterpret_cast<const void*>(norm_blocks<true>),
      reinterpret_cast<const void*>(norm_blocks<false>),
  };
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return preload_random_cuda();
}

}  // namespace optlease
