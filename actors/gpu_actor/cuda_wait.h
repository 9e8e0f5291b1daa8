// Waiting for the GPU without trusting it: polls with a short sleep instead of a blocking
// synchronisation, so that a deadline and a reason to stop are always heard. Used by the CUDA
// collectives and gradient math on the collective worker's thread, and where a device ends.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "shm/contract/status.h"

namespace optlease {

// One wait: busy for the first moment, because most waits are short, then asleep between looks.
class PatientLoop {
 public:
  explicit PatientLoop(std::chrono::microseconds sleep = std::chrono::microseconds(20))
      : sleep_(sleep), started_(Clock::now()) {}
  void pause();
  int64_t waited_ms() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::microseconds sleep_;
  Clock::time_point started_;
};

// Until everything before `event`, or in `stream`, is done. Internal, with `what` and the time,
// where it never is; Cancelled once `*stop` is true (null: nobody stops it).
Status wait_for_event(cudaEvent_t event, uint64_t timeout_ms, const char* what,
                      const std::atomic<bool>* stop = nullptr);
Status wait_for_stream(cudaStream_t stream, uint64_t timeout_ms, const char* what);

}  // namespace optlease
