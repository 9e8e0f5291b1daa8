#include "actors/gpu_actor/cuda_wait.h"

#include <sched.h>

#include <thread>

#include "actors/gpu_actor/cuda_status.h"

namespace optlease {
namespace {

constexpr std::chrono::microseconds kBusyFor{200};

// `query` says how far the GPU is.
template <class Query>
Status wait_until_done(Query query, uint64_t timeout_ms, const char* what,
                       const std::atomic<bool>* stop) {
  PatientLoop loop;
  while (true) {
    const cudaError_t state = query();
    if (state == cudaSuccess) return Status::ok();
    if (state != cudaErrorNotReady) return cuda_status(state, what);
    if (stop != nullptr && stop->load())
      return Status(StatusCode::kCancelled, format("%s: stopped while it ran", what));
    if (loop.waited_ms() > static_cast<int64_t>(timeout_ms))
      return Status(StatusCode::kInternal,
                    format("%s: the GPU has not finished after %llu ms", what,
                           static_cast<unsigned long long>(timeout_ms)));
    loop.pause();
  }
}

}  // namespace

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

Status wait_for_event(cudaEvent_t event, uint64_t timeout_ms, const char* what,
                      const std::atomic<bool>* stop) {
  return wait_until_done([event] { return query_event(event); }, timeout_ms, what, stop);
}

Status wait_for_stream(cudaStream_t stream, uint64_t timeout_ms, const char* what) {
  return wait_until_done([stream] { return query_stream(stream); }, timeout_ms, what, nullptr);
}

}  // namespace optlease
