// Ends communicators without being stopped by them: ncclCommAbort waits for the device to leave its
// kernels and may take long, so it runs on a thread of its own, and everybody else waits for that
// thread with a deadline. Used by nccl_collectives.cc, from one thread.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstdint>
#include <memory>

#include "shm/contract/status.h"

namespace optlease {

class NcclTeardown {
 public:
  explicit NcclTeardown(int device) : device_(device) {}
  // Waits a while for what is under way; then leaves its thread to itself.
  ~NcclTeardown();
  NcclTeardown(const NcclTeardown&) = delete;
  NcclTeardown& operator=(const NcclTeardown&) = delete;

  // Starts to abort `comm` (may be null) and then waits for what `streams` still hold, so that
  // afterwards nothing of the epoch touches memory any more. REQUIRES: finished().
  void start(ncclComm_t comm, const std::array<cudaStream_t, 2>& streams);

  // True where nothing is under way.
  bool finished();
  // Ok once finished; Timeout.
  Status wait(uint64_t timeout_ms);
  // How the last one went.
  Status outcome() const;

 private:
  struct Work;

  const int device_;
  std::shared_ptr<Work> work_;  // shared with the thread, which may outlive this
};

}  // namespace optlease
