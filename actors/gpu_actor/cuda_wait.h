// Waiting for the GPU without trusting it: polls with a short sleep instead of a blocking
// synchronisation, so that a deadline and a reason to stop are always heard. Used on the collective
// worker's thread by the CUDA collectives and gradient math; never on the actor's own thread.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "shm/contract/status.h"

namespace optlease {

// cuda_status() with Internal instead of Io: a process whose context has failed only ends.
Status cuda_failure(cudaError_t error, const std::string& call);

#define OPTLEASE_CUDA_TRY(expression)                                \
  do {                                                               \
    const cudaError_t cuda_error_here = (expression);                \
    if (cuda_error_here != cudaSuccess)                              \
      return ::optlease::cuda_failure(cuda_error_here, #expression); \
  } while (false)

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

// Until everything before `event` is done. Internal, with `what` and the time, where it never is.
Status wait_for_event(cudaEvent_t event, uint64_t timeout_ms, const char* what);

}  // namespace optlease
