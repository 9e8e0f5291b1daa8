// The ranks of one group epoch on GPUs: a non-blocking NCCL communicator, point-to-point transfers
// over it, and waits that end for one of four reasons besides success: a peer is gone, nothing
// happened in time, the epoch was aborted, or CUDA failed. Used by nccl_collectives.cc alone, which
// decides what is sent. One thread calls; any failure leaves the group fit only for release().
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "actors/gpu_actor/gather_feed.h"
#include "actors/gpu_actor/nccl_library.h"
#include "actors/gpu_actor/nccl_rendezvous.h"
#include "shm/contract/status.h"

namespace optlease {

// One message to or from one peer.
struct NcclTransfer {
  uint32_t peer = 0;
  void* data = nullptr;  // read only where is_receive is false
  uint64_t bytes = 0;
  bool is_receive = false;
};

class NcclGroup {
 public:
  // `aborted_epoch` outlives the group.
  NcclGroup(const GroupPlace& place, uint64_t timeout_ms,
            const std::atomic<uint64_t>* aborted_epoch);

  // Of the current device, whose id is `gpu`. A world of one has no communicator and needs no
  // NCCL.
  Status connect(const GpuUuid& gpu);

  // Enqueues the transfers, which run together; returns when they are in the stream. Between any
  // two ranks the n-th message sent is the n-th received.
  Status exchange(std::span<const NcclTransfer> transfers, cudaStream_t stream,
                  const GatherFeed* feed = nullptr);

  // Until what was enqueued before `event` is done. `what` is for errors. With a feed, here as
  // above: time counts from when it says, and such waits may be long, so that looks are rarer.
  Status wait(cudaEvent_t event, const std::string& what, const GatherFeed* feed = nullptr);

  // Leaves the epoch, which the peers notice; the caller ends the communicator (may be null).
  ncclComm_t release();

 private:
  Status poll(std::chrono::microseconds sleep, const std::string& what, const GatherFeed* feed,
              const std::function<Result<bool>()>& is_done);
  Status meet_peers();
  Result<ncclUniqueId> agree_on_id();
  Result<bool> is_settled(const char* call);
  Status cancelled() const;

  NcclRendezvous rendezvous_;
  uint64_t timeout_ms_;
  const std::atomic<uint64_t>* aborted_epoch_;
  const NcclLibrary* nccl_ = nullptr;  // once connect() has peers to meet
  ncclComm_t comm_ = nullptr;
};

}  // namespace optlease
