// One pass over a gradient shard: the norm's block sums, its non-finite elements, and the checksums
// of the chunks that the shard is cut into.
#include "kernels/checksum.h"
#include "kernels/pack_cuda.cuh"
#include "kernels/reduce_cuda.h"

namespace optlease {
namespace {

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

// One thread's share of the checksum of the chunk in hand, over words of one block: with j a word's
// place in the block, the sum of word and that of word * j, so that a word costs no 64-bit product.
struct ChunkShare {
  uint64_t chunk;  // which one, counted from the launch's first
  uint64_t plain;
  uint64_t weighted;

  __device__ __forceinline__ void add(float value, uint32_t place) {
    const uint32_t word = bits_of(value);
    plain += word;
    weighted += static_cast<uint64_t>(word) * place;
  }
  __device__ __forceinline__ uint64_t sum(uint64_t first_word) const {
    return plain * (2 * first_word + 1) + 2 * weighted;
  }
};

template <bool kAligned>
__device__ inline float4 four_floats(const float* at) {
  if constexpr (kAligned) return *reinterpret_cast<const float4*>(at);
  return make_float4(at[0], at[1], at[2], at[3]);
}

__device__ __forceinline__ void add_four(double (&lanes)[kLanesEach], uint32_t* nonfinite,
                                         ChunkShare* share, const float4& values, double scale,
                                         uint32_t place) {
  share->add(values.x, place);
  share->add(values.y, place + 1);
  share->add(values.z, place + 2);
  share->add(values.w, place + 3);
  add_square(&lanes[0], nonfinite, values.x, scale);
  add_square(&lanes[1], nonfinite, values.y, scale);
  add_square(&lanes[2], nonfinite, values.z, scale);
  add_square(&lanes[3], nonfinite, values.w, scale);
}

// Rows [row, end) of a block, this thread's four lanes of them.
template <bool kAligned>
__device__ __forceinline__ void add_rows(double (&lanes)[kLanesEach], uint32_t* nonfinite,
                                         ChunkShare* share, const float* block, double scale,
                                         uint32_t row, uint32_t end) {
  constexpr uint32_t kRowsAtOnce = 8;  // loads in flight
  const uint32_t mine = threadIdx.x % kThreadsABlock * kLanesEach;
  for (; row + kRowsAtOnce <= end; row += kRowsAtOnce) {
    float4 values[kRowsAtOnce];
#pragma unroll
    for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
      values[r] = four_floats<kAligned>(block + (row + r) * kLanes + mine);
    }
#pragma unroll
    for (uint32_t r = 0; r < kRowsAtOnce; ++r) {
      add_four(lanes, nonfinite, share, values[r], scale, (row + r) * kLanes + mine);
    }
  }
  for (; row < end; ++row) {
    const uint32_t place = row * kLanes + mine;
    add_four(lanes, nonfinite, share, four_floats<kAligned>(block + place), scale, place);
  }
}

// The tree over the lanes: 8 (threads 2 and 3 to 0 and 1), 4 (thread 1 to 0), 2, 1. All threads of
// the block take part; the first one returns the sum.
__device__ __forceinline__ double sum_of_lanes(double (&lanes)[kLanesEach]) {
#pragma unroll
  for (uint32_t half = kThreadsABlock / 2; half != 0; half /= 2) {
#pragma unroll
    for (uint32_t l = 0; l < kLanesEach; ++l) {
      lanes[l] = __dadd_rn(lanes[l], __shfl_down_sync(0xffffffffu, lanes[l], half, kThreadsABlock));
    }
  }
  return __dadd_rn(__dadd_rn(lanes[0], lanes[2]), __dadd_rn(lanes[1], lanes[3]));
}

struct ChunkSumsTarget {
  unsigned long long* sums;  // null: not wanted
  uint64_t chunk_elements;
  uint64_t skip;
  uint64_t first_word;
};

// A block's lanes. Rows go chunk by chunk: chunks begin at multiples of kGradFirstElementAlign, so
// that a chunk's end within the block is a row's. The share of the last chunk is left in *share.
template <bool kAligned>
__device__ inline double sum_of_block(const float* block, uint32_t count, double scale,
                                      uint32_t* nonfinite, const ChunkSumsTarget& into,
                                      uint64_t begin, ChunkShare* share) {
  double lanes[kLanesEach] = {0, 0, 0, 0};
  const uint64_t place = into.skip + begin;
  share->chunk = place / into.chunk_elements;
  uint64_t chunk_end = (share->chunk + 1) * into.chunk_elements - place;  // within the block
  const uint32_t rows = count / kLanes;
  for (uint32_t row = 0;;) {
    const bool is_last = chunk_end >= count;
    const uint32_t end = is_last ? rows : static_cast<uint32_t>(chunk_end) / kLanes;
    add_rows<kAligned>(lanes, nonfinite, share, block, scale, row, end);
    if (is_last) break;
    atomicAdd(&into.sums[share->chunk], share->sum(into.first_word + begin));
    *share = {share->chunk + 1, 0, 0};
    row = end;
    chunk_end += into.chunk_elements;
  }
#pragma unroll
  for (uint32_t l = 0; l < kLanesEach; ++l) {
    const uint32_t element = rows * kLanes + threadIdx.x % kThreadsABlock * kLanesEach + l;
    if (element >= count) continue;
    share->add(block[element], element);
    add_square(&lanes[l], nonfinite, block[element], scale);
  }
  return sum_of_lanes(lanes);
}

// A warp's blocks are mostly of one chunk: then it adds to memory once. All threads take part.
__device__ __forceinline__ void add_to_chunks(const ChunkSumsTarget& into, uint64_t chunk,
                                              uint64_t sum) {
  int all_the_same = 0;
  __match_all_sync(0xffffffffu, chunk, &all_the_same);
  if (all_the_same != 0) {
#pragma unroll
    for (uint32_t lanes = 16; lanes != 0; lanes /= 2) {
      sum += __shfl_down_sync(0xffffffffu, sum, lanes);
    }
    if (threadIdx.x % 32 != 0) return;
  }
  if (sum != 0) atomicAdd(&into.sums[chunk], sum);
}

// `head`: elements of the first block, which may begin within a block of the space.
template <bool kAligned>
__global__ void __launch_bounds__(kNormThreads)
    norm_blocks(double* sums, unsigned long long* nonfinite, const float* grad, uint64_t head,
                uint64_t elements, uint64_t blocks, float pre_scale, ChunkSumsTarget into) {
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
  ChunkShare share = {0, 0, 0};
  const double sum =
      sum_of_block<kAligned>(grad + begin, static_cast<uint32_t>(count),
                             static_cast<double>(pre_scale), &bad, into, begin, &share);
  if (block < blocks && threadIdx.x % kThreadsABlock == 0) sums[block] = sum;
  bad = __reduce_add_sync(0xffffffffu, bad);
  if (threadIdx.x % 32 == 0 && bad != 0) atomicAdd(nonfinite, bad);
  if (into.sums != nullptr) {
    add_to_chunks(into, share.chunk, share.sum(into.first_word + begin));
  }
}

bool usable(const GradSums& into) {
  return into.sums == nullptr ||
         (into.chunk_elements != 0 && into.chunk_elements % kGradFirstElementAlign == 0 &&
          into.skip % kGradFirstElementAlign == 0);
}

// Where they are not wanted, all is one chunk that nobody stores.
ChunkSumsTarget target_of(const GradSums& into) {
  constexpr uint64_t kNeverEnds = 1ull << 62;
  if (into.sums == nullptr) return {nullptr, kNeverEnds, 0, 0};
  return {reinterpret_cast<unsigned long long*>(into.sums), into.chunk_elements, into.skip,
          into.first_word};
}

}  // namespace

cudaError_t grad_block_sums_cuda(double* sums, uint64_t* nonfinite, const float* grad,
                                 uint64_t first_element, uint64_t elements, float pre_scale,
                                 const GradSums& into, cudaStream_t stream) {
  if (first_element % kGradFirstElementAlign != 0 || !usable(into)) return cudaErrorInvalidValue;
  if (elements == 0) return cudaSuccess;
  const uint64_t head = kGradBlockElements - first_element % kGradBlockElements;
  const uint64_t blocks =
      elements <= head ? 1 : 1 + (elements - head + kGradBlockElements - 1) / kGradBlockElements;
  const uint64_t grid = (blocks + kBlocksALaunchBlock - 1) / kBlocksALaunchBlock;
  if (grid > 0x7fffffffu) return cudaErrorInvalidValue;  // 2^48 elements
  auto* counter = reinterpret_cast<unsigned long long*>(nonfinite);
  const auto kernel = is_pack_aligned(grad) ? norm_blocks<true> : norm_blocks<false>;
  kernel<<<static_cast<unsigned>(grid), kNormThreads, 0, stream>>>(
      sums, counter, grad, head, elements, blocks, pre_scale, target_of(into));
  return cudaGetLastError();
}

cudaError_t preload_norm_cuda() {
  cudaFuncAttributes ignored;
  const cudaError_t error = cudaFuncGetAttributes(&ignored, norm_blocks<true>);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&ignored, norm_blocks<false>);
}

}  // namespace optlease
