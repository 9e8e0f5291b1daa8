#include "actors/gpu_actor/host_calls.h"

#include <algorithm>
#include <cstring>

namespace optlease {

cudaError_t HostCalls::enqueue(cudaStream_t stream, std::function<void()> work) {
  while (!calls_.empty() && calls_.front()->done.load(std::memory_order_acquire)) {
    calls_.pop_front();
  }
  calls_.push_back(std::make_unique<Call>());
  Call* call = calls_.back().get();
  call->work = std::move(work);
  const auto run = [](void* given) {
    Call* mine = static_cast<Call*>(given);
    mine->work();
    mine->done.store(true, std::memory_order_release);  // the last touch: it may be freed now
  };
  return cudaLaunchHostFunc(stream, run, call);
}

BounceBuffer::~BounceBuffer() {
  if (pinned_ != nullptr) (void)cudaFreeHost(pinned_);
}

cudaError_t BounceBuffer::allocate(uint64_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  if (error != cudaSuccess) return error;
  pinned_ = static_cast<char*>(memory);
  bytes_ = bytes;
  return cudaSuccess;
}

cudaError_t BounceBuffer::copy_in(cudaStream_t stream, HostCalls& calls, char* device,
                                  const char* host, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += bytes_) {
    const uint64_t part = std::min(bytes_, bytes - at);
    cudaError_t error =
        calls.enqueue(stream, [this, host, at, part] { std::memcpy(pinned_, host + at, part); });
    if (error != cudaSuccess) return error;
    error = cudaMemcpyAsync(device + at, pinned_, part, cudaMemcpyHostToDevice, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t BounceBuffer::copy_out(cudaStream_t stream, HostCalls& calls, char* host,
                                   const char* device, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += bytes_) {
    const uint64_t part = std::min(bytes_, bytes - at);
    cudaError_t error = cudaMemcpyAsync(pinned_, device + at, part, cudaMemcpyDeviceToHost, stream);
    if (error != cudaSuccess) return error;
    error =
        calls.enqueue(stream, [this, host, at, part] { std::memcpy(host + at, pinned_, part); });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace optlease
