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
  // Waits for what is under way until it has had its time; then leaves its thread to itself.
  ~NcclTeardown();
  NcclTeardown(const NcclTeardown&) = delete;
  NcclTeardown& operator=(const NcclTeardown&) = delete;

  // Starts to abort `comm` (may be null) and then waits for what `streams` still hold, so that
  // afterwards nothing of the epoch touches memory any more. REQUIRES: finished().
  void start(ncclComm_t comm, const std::array<cudaStream_t, 2>& streams);

  // A teardown that takes longer never ends, as far as anybody can tell: NCCL's abort is known to
  // hang. Then nothing in this process may use that device, or end what it uses, any more.
  static constexpr uint64_t kLongestMs = 5000;
  bool is_stuck() const { return running_ms() >= kLongestMs; }
  // Since the one under way was started; 0 where none is.
  uint64_t running_ms() const;

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
