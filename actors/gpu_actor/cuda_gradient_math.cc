#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>

#include "actors/gpu_actor/cuda_status.h"
#include "actors/gpu_actor/cuda_wait.h"
#include "actors/gpu_actor/gradient_math.h"
#include "actors/gpu_actor/leave_process.h"
#include "kernels/reduce_cuda.h"

namespace optlease {
namespace {

constexpr uint64_t kStagingBytes = 4u << 20;
constexpr uint64_t kBlockSumsMax = 64u << 10;  // of one launch: 256 Mi elements
// Of work that takes milliseconds; a GPU that needs longer does not answer any more.
constexpr uint64_t kTimeoutMs = 60000;
constexpr uint64_t kLastWaitMs = 2000;  // when the process ends anyway

constexpr uint64_t kChunkSumsMax = 64u << 10;

// What one launch leaves: the sums of squares of its blocks, the checksums of its chunks, the
// count.
struct BlockSums {
  double sum[kBlockSumsMax];
  uint64_t chunk[kChunkSumsMax];
  uint64_t nonfinite;
};

class CudaGradientMath final : public GradientMath {
 public:
  explicit CudaGradientMath(int device) : device_(device) {}
  ~CudaGradientMath() override;
  Status open();

  Status fill_synthetic(void* out, DType dtype, const SyntheticKey& key,
                        uint64_t elements) override;
  std::span<std::byte> staging() override { return {staging_, kStagingBytes}; }
  Status put(void* out, const void* host, uint64_t bytes) override;
  Result<GradStats> stats(const float* shard, uint64_t first_element, uint64_t elements,
                          float pre_scale, const GradSums& into) override;
  void stop() override { stopped_ = true; }

 private:
  Status finish(const char* what);
  Status stats_of_piece(const float* grad, uint64_t first_element, uint64_t elements,
                        float pre_scale, const GradSums& into, GradStats* total);

  const int device_;
  std::atomic<bool> stopped_{false};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
  std::byte* staging_ = nullptr;  // pinned
  BlockSums* h_sums_ = nullptr;   // pinned
  BlockSums* d_sums_ = nullptr;
};

// Pieces of every launch but the last end where a block of the norm does. They touch at most
// kChunkSumsMax chunks: two beside those that are whole.
uint64_t piece_elements(uint64_t first_element, uint64_t elements, const GradSums& into) {
  uint64_t blocks = kBlockSumsMax;
  if (into.sums != nullptr) {
    static_assert((kChunkSumsMax - 2) * kGradFirstElementAlign > 2 * kGradBlockElements);
    const uint64_t chunk = std::min(into.chunk_elements, kBlockSumsMax * kGradBlockElements);
    blocks = std::min(blocks, (kChunkSumsMax - 2) * chunk / kGradBlockElements);
  }
  const uint64_t head = kGradBlockElements - first_element % kGradBlockElements;
  return std::min(elements, head + (blocks - 1) * kGradBlockElements);
}

uint64_t chunks_touched(const GradSums& into, uint64_t elements) {
  return into.sums == nullptr ? 0 : (into.skip + elements - 1) / into.chunk_elements + 1;
}

CudaGradientMath::~CudaGradientMath() {
  (void)cudaSetDevice(device_);
  // Freeing waits for the GPU, for ever where it hangs.
  if (stream_ != nullptr) {
    const Status idle = wait_for_stream(stream_, kLastWaitMs, "the end of the gradients' work");
    if (!idle.is_ok()) leave_process(idle);
  }
  if (done_ != nullptr) (void)cudaEventDestroy(done_);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  if (staging_ != nullptr) (void)cudaFreeHost(staging_);
  if (h_sums_ != nullptr) (void)cudaFreeHost(h_sums_);
  if (d_sums_ != nullptr) (void)cudaFree(d_sums_);
}

Status CudaGradientMath::open() {
  OPTLEASE_CUDA_TRY(cudaSetDevice(device_));
  OPTLEASE_CUDA_TRY(preload_reduce_cuda());
  OPTLEASE_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  OPTLEASE_CUDA_TRY(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
  void* memory = nullptr;
  OPTLEASE_CUDA_TRY(cudaHostAlloc(&memory, kStagingBytes, cudaHostAllocDefault));
  staging_ = static_cast<std::byte*>(memory);
  OPTLEASE_CUDA_TRY(cudaHostAlloc(&memory, sizeof(BlockSums), cudaHostAllocDefault));
  h_sums_ = static_cast<BlockSums*>(memory);
  OPTLEASE_CUDA_TRY(cudaMalloc(&memory, sizeof(BlockSums)));
  d_sums_ = static_cast<BlockSums*>(memory);
  return Status::ok();
}

Status CudaGradientMath::finish(const char* what) {
  OPTLEASE_CUDA_TRY(cudaEventRecord(done_, stream_));
  return wait_for_event(done_, kTimeoutMs, what, &stopped_);
}

Status CudaGradientMath::fill_synthetic(void* out, DType dtype, const SyntheticKey& key,
                                        uint64_t elements) {
  OPTLEASE_CUDA_TRY(cudaSetDevice(device_));
  OPTLEASE_CUDA_TRY(fill_synthetic_gradient_cuda(out, dtype, key.seed, key.step, key.rank.value,
                                                 key.space, 0, elements, stream_));
  return finish("filling a synthetic gradient");
}

Status CudaGradientMath::put(void* out, const void* host, uint64_t bytes) {
  OPTLEASE_CUDA_TRY(cudaSetDevice(device_));
  OPTLEASE_CUDA_TRY(cudaMemcpyAsync(out, host, bytes, cudaMemcpyHostToDevice, stream_));
  return finish("copying into gradient memory");
}

Result<GradStats> CudaGradientMath::stats(const float* shard, uint64_t first_element,
                                          uint64_t elements, float pre_scale,
                                          const GradSums& into) {
  OPTLEASE_CHECK(first_element % kGradFirstElementAlign == 0, "first element %llu",
                 static_cast<unsigned long long>(first_element));
  OPTLEASE_CUDA_TRY(cudaSetDevice(device_));
  GradStats total;
  for (uint64_t at = 0; at < elements;) {
    const uint64_t count = piece_elements(first_element + at, elements - at, into);
    GradSums piece = into;
    if (into.sums != nullptr) {
      piece.sums += (into.skip + at) / into.chunk_elements;
      piece.skip = (into.skip + at) % into.chunk_elements;
      piece.first_word += at;
    }
    OPTLEASE_TRY(stats_of_piece(shard + at, first_element + at, count, pre_scale, piece, &total));
    at += count;
  }
  return total;
}

Status CudaGradientMath::stats_of_piece(const float* grad, uint64_t first_element,
                                        uint64_t elements, float pre_scale, const GradSums& into,
                                        GradStats* total) {
  const uint64_t blocks = grad_block_count(first_element, elements);
  const uint64_t chunks = chunks_touched(into, elements);
  OPTLEASE_CHECK(blocks <= kBlockSumsMax && chunks <= kChunkSumsMax, "%llu blocks, %llu chunks",
                 static_cast<unsigned long long>(blocks), static_cast<unsigned long long>(chunks));
  GradSums on_device = into;
  if (into.sums != nullptr) {
    on_device.sums = d_sums_->chunk;
    OPTLEASE_CUDA_TRY(cudaMemsetAsync(d_sums_->chunk, 0, chunks * sizeof(uint64_t), stream_));
  }
  OPTLEASE_CUDA_TRY(cudaMemsetAsync(&d_sums_->nonfinite, 0, sizeof d_sums_->nonfinite, stream_));
  OPTLEASE_CUDA_TRY(grad_block_sums_cuda(d_sums_->sum, &d_sums_->nonfinite, grad, first_element,
                                         elements, pre_scale, on_device, stream_));
  if (into.sums != nullptr) {
    OPTLEASE_CUDA_TRY(cudaMemcpyAsync(h_sums_->chunk, d_sums_->chunk, chunks * sizeof(uint64_t),
                                      cudaMemcpyDeviceToHost, stream_));
  }
  OPTLEASE_CUDA_TRY(cudaMemcpyAsync(h_sums_->sum, d_sums_->sum, blocks * sizeof(double),
                                    cudaMemcpyDeviceToHost, stream_));
  OPTLEASE_CUDA_TRY(cudaMemcpyAsync(&h_sums_->nonfinite, &d_sums_->nonfinite,
                                    sizeof h_sums_->nonfinite, cudaMemcpyDeviceToHost, stream_));
  OPTLEASE_TRY(finish("the sum of squares of a gradient shard"));
  for (uint64_t block = 0; block < blocks; ++block) total->sum_squares += h_sums_->sum[block];
  total->nonfinite += h_sums_->nonfinite;
  for (uint64_t chunk = 0; chunk < chunks; ++chunk) into.sums[chunk] += h_sums_->chunk[chunk];
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<GradientMath>> make_cuda_gradient_math(int device) {
  auto math = std::make_unique<CudaGradientMath>(device);
  OPTLEASE_TRY(math->open());
  return std::unique_ptr<GradientMath>(std::move(math));
}

}  // namespace optlease
