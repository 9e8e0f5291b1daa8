// A CUDA runtime error as a Status: the call, its numbers, CUDA's words, what to do. Every call of
// the runtime whose error is reported goes through here, which also clears CUDA's last error: a
// later launch would report it as its own. Who ignores an error on purpose clears it himself. Used
// by the .cc files of the CUDA device and its collectives.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "shm/contract/status.h"

namespace optlease {

inline std::string cuda_words(cudaError_t error) {
  return format("%s (%s, %d)", cudaGetErrorString(error), cudaGetErrorName(error),
                static_cast<int>(error));
}

// NoSpace: the GPU's or the host's memory is too small. Unsupported: no GPU, or none that this
// build or driver can use. Internal: CUDA has failed in this process, and only its successor can go
// on. `call` with its numbers; `advice` may be empty.
inline Status cuda_status(cudaError_t error, const std::string& call, const char* advice = "") {
  if (error == cudaSuccess) return Status::ok();
  (void)cudaGetLastError();
  StatusCode code = StatusCode::kInternal;
  if (error == cudaErrorMemoryAllocation) {
    code = StatusCode::kNoSpace;
    if (*advice == '\0') advice = "leave the GPU more free memory";
  }
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
      error == cudaErrorNoKernelImageForDevice) {
    code = StatusCode::kUnsupported;
  }
  return {code, call + ": " + cuda_words(error) + (*advice == '\0' ? "" : "; ") + advice};
}

#define OPTLEASE_CUDA_TRY(expression)                               \
  do {                                                              \
    const cudaError_t cuda_error_here = (expression);               \
    if (cuda_error_here != cudaSuccess)                             \
      return ::optlease::cuda_status(cuda_error_here, #expression); \
  } while (false)

// Success, NotReady or an error. NotReady is an answer, which some versions of CUDA keep as their
// last error all the same.
inline cudaError_t query_event(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaErrorNotReady) (void)cudaGetLastError();
  return state;
}
inline cudaError_t query_stream(cudaStream_t stream) {
  const cudaError_t state = cudaStreamQuery(stream);
  if (state == cudaErrorNotReady) (void)cudaGetLastError();
  return state;
}

}  // namespace optlease
