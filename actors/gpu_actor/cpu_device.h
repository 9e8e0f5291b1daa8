// The CPU device: staging buffers are private memory of the process and stand for HBM; each stream
// is a thread, so that copy-in, update and copy-out overlap as they do on a GPU. Used by the actor
// through Device only.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "actors/gpu_actor/device.h"

namespace optlease {

class CpuDevice final : public Device {
 public:
  static Result<std::unique_ptr<Device>> create();
  ~CpuDevice() override;  // finishes what is enqueued, then joins

  const char* name() const override { return "cpu"; }
  Status allocate_staging(uint32_t count, uint64_t bytes_each) override;
  char* staging(uint32_t buffer) override;
  uint64_t staging_bytes() const override { return staging_bytes_; }
  Status adopt_host_memory(const HostMemory&) override { return Status::ok(); }
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
  DeviceCounters counters() const override;
  DeviceMemoryUse memory_use() const override { return {staging_bytes_, 0}; }
  Status failure() const override { return Status::ok(); }

 private:
  struct Stream {
    std::deque<std::function<void()>> work;  // guarded by mutex_
    std::condition_variable more;
    uint64_t issued = 0;            // tickets handed out; the actor's thread only
    std::atomic<uint64_t> done{0};  // tickets reached
    std::thread thread;
  };
  explicit CpuDevice(int completion_fd);
  Status start();
  void run(Stream& stream);
  void enqueue(StreamKind stream, std::function<void()> work);
  Stream& at(StreamKind kind) { return streams_[static_cast<size_t>(kind)]; }
  const Stream& at(StreamKind kind) const { return streams_[static_cast<size_t>(kind)]; }

  mutable std::mutex mutex_;
  std::condition_variable ticket_reached_;
  std::array<Stream, kStreamCount> streams_;
  bool stopping_ = false;  // guarded by mutex_
  int completion_fd_;
  std::vector<char*> staging_;
  uint64_t staging_bytes_each_ = 0;
  uint64_t staging_bytes_ = 0;
  std::atomic<uint64_t> bytes_in_{0};
  std::atomic<uint64_t> bytes_out_{0};
  std::atomic<uint64_t> kernel_ns_{0};
};

}  // namespace optlease
