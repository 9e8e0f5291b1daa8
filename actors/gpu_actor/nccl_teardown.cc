#include "actors/gpu_actor/nccl_teardown.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "actors/gpu_actor/cuda_status.h"
#include "actors/gpu_actor/nccl_library.h"

namespace optlease {
namespace {

using Clock = std::chrono::steady_clock;

Status abort_and_drain(int device, ncclComm_t comm, const std::array<cudaStream_t, 2>& streams) {
  OPTLEASE_CUDA_TRY(cudaSetDevice(device));
  Status status;
  if (comm != nullptr) {
    const NcclLibrary& nccl = *nccl_library().value();  // it made the communicator
    const Status aborted = nccl_status(nccl, nccl.comm_abort(comm), "ncclCommAbort", nullptr);
    if (!aborted.is_ok()) status = Status(StatusCode::kInternal, aborted.message());
  }
  for (const cudaStream_t stream : streams) {
    const cudaError_t error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) status = cuda_status(error, "draining the collectives' streams");
  }
  return status;
}

}  // namespace

struct NcclTeardown::Work {
  std::mutex mutex;
  std::condition_variable ended;
  bool is_done = false;  // guarded by mutex
  Status status;         // guarded by mutex
  std::thread thread;    // the owner's; joined once is_done
  const Clock::time_point started = Clock::now();
};

NcclTeardown::~NcclTeardown() {
  if (wait(kLongestMs - std::min(kLongestMs, running_ms())).is_ok()) return;
  work_->thread.detach();  // holds its own reference to *work_
}

void NcclTeardown::start(ncclComm_t comm, const std::array<cudaStream_t, 2>& streams) {
  OPTLEASE_CHECK(finished(), "a communicator is being aborted");
  auto work = std::make_shared<Work>();
  work_ = work;
  // The thread is stored under the mutex that it takes before it reports.
  const std::lock_guard lock(work->mutex);
  work->thread = std::thread([work, device = device_, comm, streams] {
    Status status = abort_and_drain(device, comm, streams);
    const std::lock_guard guard(work->mutex);
    work->status = std::move(status);
    work->is_done = true;
    work->ended.notify_all();
  });
}

bool NcclTeardown::finished() { return wait(0).is_ok(); }

uint64_t NcclTeardown::running_ms() const {
  if (!work_ || !work_->thread.joinable()) return 0;
  const auto running =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - work_->started);
  return static_cast<uint64_t>(running.count());
}

Status NcclTeardown::wait(uint64_t timeout_ms) {
  if (!work_ || !work_->thread.joinable()) return Status::ok();
  {
    std::unique_lock lock(work_->mutex);
    const bool done = work_->ended.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                            [&] { return work_->is_done; });
    if (!done)
      return Status(StatusCode::kTimeout,
                    format("NCCL has not ended the group before in %llu ms: the GPU may hang; "
                           "see its state with nvidia-smi",
                           static_cast<unsigned long long>(running_ms())));
  }
  work_->thread.join();
  return Status::ok();
}

Status NcclTeardown::outcome() const {
  if (!work_) return Status::ok();
  const std::lock_guard lock(work_->mutex);
  return work_->status;
}

}  // namespace optlease
