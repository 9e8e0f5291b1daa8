// A CUDA runtime error as a Status: the call, its numbers, CUDA's words, what to do. Used by the
// .cc files of the CUDA device; the only place that clears CUDA's last error, which a later launch
// would otherwise report as its own.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "shm/contract/status.h"

namespace optlease {

inline std::string cuda_words(cudaError_t error) {
  return format("%s (%s, %d)", cudaGetErrorString(error), cudaGetErrorName(error),
                static_cast<int>(error));
}

// `call` with its numbers; `advice` may be empty.
inline Status cuda_status(cudaError_t error, const std::string& call, const char* advice = "") {
  if (error == cudaSuccess) return Status::ok();
  (void)cudaGetLastError();
  StatusCode code = StatusCode::kIo;
  if (error == cudaErrorMemoryAllocation) code = StatusCode::kNoSpace;
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
      error == cudaErrorNoKernelImageForDevice) {
    code = StatusCode::kUnsupported;
  }
  return {code, call + ": " + cuda_words(error) + (*advice == '\0' ? "" : "; ") + advice};
}

}  // namespace optlease
