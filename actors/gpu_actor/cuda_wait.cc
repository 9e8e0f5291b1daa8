#include "actors/gpu_actor/cuda_wait.h"

#include <sched.h>

#include <thread>

#include "actors/gpu_actor/cuda_status.h"

namespace optlease {
namespace {

constexpr std::chrono::microseconds kBusyFor{200};

}  // namespace

Status cuda_failure(cudaError_t error, const std::string& call) {
  const Status status = cuda_status(
      error, call, error == cudaErrorMemoryAllocation ? "leave the GPU more free memory" : "");
  if (status.code() != StatusCode::kIo) return status;
  return Status(StatusCode::kInternal, status.message());
}

void PatientLoop::pause() {
  if (Clock::now() - started_ < kBusyFor) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(sleep_);
  }
}

int64_t PatientLoop::waited_ms() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_).count();
}

Status wait_for_event(cudaEvent_t event, uint64_t timeout_ms, const char* what) {
  PatientLoop loop;
  while (true) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return Status::ok();
    if (state != cudaErrorNotReady) return cuda_failure(state, what);
    if (loop.waited_ms() > static_cast<int64_t>(timeout_ms))
      return Status(StatusCode::kInternal,
                    format("%s: the GPU has not finished after %llu ms", what,
                           static_cast<unsigned long long>(timeout_ms)));
    loop.pause();
  }
}

}  // namespace optlease
