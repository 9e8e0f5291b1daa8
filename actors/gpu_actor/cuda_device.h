// The CUDA device: staging in one allocation of HBM, three non-blocking streams, one kernel launch
// a chunk. Copy streams carry copies and events only, so that they stay busy back to back: news of
// reached tickets travels on streams of its own. All is made at the start, but for events where
// more tickets are under way than were foreseen. No call waits for the GPU; the destructor does,
// for a while, and ends the process where the GPU does not answer or has failed (leave_process.h).
// Used by the actor through Device only.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "actors/gpu_actor/device.h"
#include "actors/gpu_actor/host_calls.h"
#include "actors/gpu_actor/pin_plan.h"
#include "actors/gpu_actor/pinned_arena.h"
#include "kernels/adam_cuda.h"

namespace optlease {

struct CudaDeviceOptions {
  PinLimits pins;
  uint64_t finish_ms = 10'000;  // how long the destructor waits for what is enqueued
};

class CudaDevice final : public Device {
 public:
  static Result<std::unique_ptr<Device>> create(Rank rank, const CudaDeviceOptions& options = {});
  ~CudaDevice() override;  // finishes what is enqueued

  const char* name() const override { return "cuda"; }
  Status allocate_staging(uint32_t count, uint64_t bytes_each) override;
  char* staging(uint32_t buffer) override;
  uint64_t staging_bytes() const override { return staging_stride_ * staging_count_; }
  Status adopt_host_memory(const HostMemory& memory) override;
  void copy(StreamKind stream, void* destination, const void* source, uint64_t bytes) override;
  void copy_within(void* destination, const void* source, uint64_t bytes) override;
  void update(const AdamChunk& chunk, const AdamFactors& factors, ChunkSums* sums) override;
  void republish(const AdamChunk& chunk, ChunkSums* sums) override;
  void sum_gradient(const float* grad, uint64_t elements, uint64_t first_word,
                    ChunkSums* sums) override;
  void run_on_host(StreamKind stream, std::function<void()> work) override;
  Ticket signal(StreamKind stream) override;
  void wait(StreamKind waiter, Ticket ticket) override;
  bool reached(Ticket ticket) override;
  int completion_fd() const override { return completion_fd_; }
  void drain_completions() override;
  DeviceCounters counters() const override { return counters_; }
  DeviceMemoryUse memory_use() const override;
  Status failure() const override { return failure_; }
  std::string pci_address() const override { return pci_address_; }

  // How far pinning is; all zero before adopt_host_memory.
  PinProgress pinning() const;
  HostPins host_pins() const override;

 private:
  struct Stream {
    cudaStream_t work = nullptr;
    cudaStream_t news = nullptr;       // waits for events of `work`, then wakes the actor
    uint64_t issued = 0;               // tickets handed out
    uint64_t done = 0;                 // tickets seen reached
    std::deque<cudaEvent_t> recorded;  // of tickets done + 1, ...
  };
  // Sums that a launch will leave in results_[slot], to be added.
  struct Awaited {
    uint64_t ticket;  // of the compute stream
    uint32_t slot;
    ChunkSums* into;
  };

  explicit CudaDevice(const CudaDeviceOptions& options) : options_(options) {}
  Status open(Rank rank);
  Status open_streams();
  Status open_memory();
  Status finish();
  void copy_piece(StreamKind kind, char* destination, const char* source, uint64_t bytes);
  void look(Stream& stream);
  void deliver_sums();
  AdamCudaResult* await(ChunkSums* sums);
  AdamCudaTarget target();
  bool works(cudaError_t error, const char* call);
  Stream& at(StreamKind kind) { return streams_[static_cast<size_t>(kind)]; }

  const CudaDeviceOptions options_;
  int device_ = -1;
  std::string pci_address_;
  uint32_t multiprocessors_ = 0;
  int completion_fd_ = -1;
  std::array<Stream, kStreamCount> streams_;
  std::vector<cudaEvent_t> spare_events_;
  char* staging_ = nullptr;
  uint64_t staging_stride_ = 0;
  uint32_t staging_count_ = 0;
  AdamCudaScratch* scratch_ = nullptr;  // the compute stream's
  AdamCudaResult* results_ = nullptr;   // pinned, kResultCount of them, used in turn
  uint64_t launches_ = 0;
  std::deque<Awaited> awaited_;
  HostCalls host_calls_;
  BounceBuffer bounce_in_, bounce_out_;
  std::unique_ptr<PinnedArena> arena_;
  DeviceCounters counters_;
  Status failure_;
};

}  // namespace optlease
