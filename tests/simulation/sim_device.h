// A device whose three streams run in virtual time, one piece of work an event, as fast or slow as
// the dice say and in any order that the tickets allow. It goes on after its process was killed, as
// kernels and copies do, up to the times it is given; a copy that a death or a stop interrupts has
// written a part.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "actors/gpu_actor/device.h"
#include "tests/simulation/sim_context.h"

namespace optlease {

class SimDevice final : public Device {
 public:
  // Told of before a copy out writes: `bytes` may be a part.
  using Writes = std::function<void(const void* destination, uint64_t bytes)>;

  // `completed` is called when a ticket was reached, `wrote` after other host work ran.
  SimDevice(SimContext& context, Writes writes, std::function<void()> completed,
            std::function<void()> wrote);

  // Its process is dead: copies out may go on for `copies_us`, all else for `rest_us`.
  void die(uint64_t rest_us, uint64_t copies_us);
  // Its process is stopped, and its streams with it.
  void freeze();
  void thaw();
  bool writes_pending() const { return !at(StreamKind::kCopyOut).work.empty(); }

  const char* name() const override { return "simulated"; }
  Status allocate_staging(uint32_t count, uint64_t bytes_each) override;
  char* staging(uint32_t buffer) override { return staging_[buffer].data(); }
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
  bool reached(Ticket ticket) override { return at(ticket.stream).done >= ticket.value; }
  int completion_fd() const override { return -1; }
  void drain_completions() override {}
  DeviceCounters counters() const override { return {}; }
  DeviceMemoryUse memory_use() const override { return {staging_bytes_, 0}; }
  Status failure() const override { return Status::ok(); }

 private:
  struct Work {
    enum class Kind { kRun, kCopy, kSignal, kWait };
    Kind kind = Kind::kRun;
    Ticket ticket = {};
    void* destination = nullptr;
    const void* source = nullptr;
    uint64_t bytes = 0;
    std::function<void()> run = {};
  };
  struct Stream {
    std::deque<Work> work;
    bool busy = false;  // an event for the first piece of work is due
    bool owed = false;  // that event came while the streams stood still
    uint64_t issued = 0, done = 0;
    uint64_t ends_us = UINT64_MAX;
  };
  Stream& at(StreamKind kind) { return streams_[static_cast<uint32_t>(kind)]; }
  const Stream& at(StreamKind kind) const { return streams_[static_cast<uint32_t>(kind)]; }
  void enqueue(StreamKind kind, Work work);
  void run(StreamKind kind, std::function<void()> work);
  void pump_all();
  bool pump(StreamKind kind);
  void step(StreamKind kind);
  void execute(StreamKind kind, const Work& work);
  void tear();

  SimContext& context_;
  Writes writes_;
  std::function<void()> completed_, wrote_;
  Stream streams_[kStreamCount];
  bool frozen_ = false;
  std::vector<std::vector<char>> staging_;
  uint64_t staging_bytes_ = 0;
};

}  // namespace optlease
