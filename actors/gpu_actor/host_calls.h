// Host functions in CUDA stream order: keeps each until it has run. Used by the CUDA device, on its
// one thread; the functions run on the driver's and call nothing of CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>

namespace optlease {

class HostCalls {
 public:
  // REQUIRES (destructor): the streams are idle or dead.
  cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

 private:
  struct Call {
    std::function<void()> work;
    std::atomic<bool> done{false};
  };
  std::deque<std::unique_ptr<Call>> calls_;  // in order of enqueueing
};

// One pinned buffer through which copies of memory that is not pinned go, in the order of one
// stream: the driver would stage them too, but would keep the caller waiting. Made once.
class BounceBuffer {
 public:
  BounceBuffer() = default;
  ~BounceBuffer();  // REQUIRES: the stream is idle or dead
  BounceBuffer(const BounceBuffer&) = delete;
  BounceBuffer& operator=(const BounceBuffer&) = delete;

  cudaError_t allocate(uint64_t bytes);
  cudaError_t copy_in(cudaStream_t stream, HostCalls& calls, char* device, const char* host,
                      uint64_t bytes);
  cudaError_t copy_out(cudaStream_t stream, HostCalls& calls, char* host, const char* device,
                       uint64_t bytes);

 private:
  char* pinned_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace optlease
