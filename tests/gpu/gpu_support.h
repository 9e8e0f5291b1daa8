// What GPU tests share: memory on the device, and waiting for a ticket with a deadline. Every
// failure of CUDA here ends the test program: nothing after it would mean anything.
#pragma once

#include <cuda_runtime_api.h>
#include <poll.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "actors/gpu_actor/cuda_device.h"
#include "actors/runtime/clock.h"

namespace optlease {

inline void must(cudaError_t error, const char* what) {
  OPTLEASE_CHECK(error == cudaSuccess, "%s: %s", what, cudaGetErrorString(error));
}

class GpuBytes {
 public:
  explicit GpuBytes(size_t bytes, int fill = 0xee) : bytes_(bytes) {
    must(cudaMalloc(&data_, bytes + 1), "cudaMalloc");
    must(cudaMemset(data_, fill, bytes + 1), "cudaMemset");
    settle();
  }
  ~GpuBytes() { (void)cudaFree(data_); }
  GpuBytes(const GpuBytes&) = delete;
  GpuBytes& operator=(const GpuBytes&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  void put(const void* from, size_t bytes, size_t at = 0) {
    must(cudaMemcpy(data() + at, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    settle();
  }
  std::vector<char> take() const {
    std::vector<char> bytes(bytes_);
    must(cudaMemcpy(bytes.data(), data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return bytes;
  }

 private:
  // The device's streams do not wait for the one that these calls use.
  static void settle() { must(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"); }

  void* data_ = nullptr;
  size_t bytes_;
};

inline std::unique_ptr<CudaDevice> make_cuda_device() {
  Result<std::unique_ptr<Device>> made = CudaDevice::create(Rank(0));
  OPTLEASE_CHECK(made.is_ok(), "%s", made.status().text().c_str());
  return std::unique_ptr<CudaDevice>(static_cast<CudaDevice*>(made.value().release()));
}

// True when the ticket was reached within `seconds`, asleep on the device's descriptor meanwhile.
inline bool wait_for(Device& device, Ticket ticket, int seconds = 30) {
  const Deadline deadline = Deadline::after_ms(seconds * 1000);
  while (!device.reached(ticket)) {
    if (deadline.passed() || !device.failure().is_ok()) return false;
    pollfd waiting{device.completion_fd(), POLLIN, 0};
    poll(&waiting, 1, 20);
    device.drain_completions();
  }
  return true;
}

}  // namespace optlease
