// One accelerator as the actor sees it: staging buffers in its own memory, three in-order streams,
// tickets to order them, and the kernels. The CPU device (cpu_device.h) and the CUDA device
// implement it; everything above this line is the same code for both. Calls come from the actor's
// one thread; none of them waits for a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/runtime/life_figures.h"
#include "kernels/adam_cpu.h"
#include "kernels/adam_math.h"
#include "shm/contract/ids.h"
#include "shm/contract/status.h"

namespace optlease {

enum class StreamKind : uint32_t { kCopyIn = 0, kCompute = 1, kCopyOut = 2 };
inline constexpr uint32_t kStreamCount = 3;

// A place in a stream: reached when everything enqueued before it is done.
struct Ticket {
  StreamKind stream = StreamKind::kCompute;
  uint64_t value = 0;
};

// What has become of the adopted memory so far; all zero where nothing is ever pinned.
struct HostPins {
  uint64_t pinned_bytes = 0;
  uint64_t refused_bytes = 0;  // copies of them go through a bounce buffer
};

struct DeviceCounters {
  uint64_t bytes_in = 0;  // host to staging, completed or running
  uint64_t bytes_out = 0;
  uint64_t bounced_bytes = 0;  // of both, those that went through a bounce buffer
  double kernel_seconds = 0;   // the update rule's own time on the compute stream
};

// The accelerator's own memory.
struct DeviceMemoryUse {
  uint64_t used_bytes = 0;   // by every process together
  uint64_t total_bytes = 0;  // 0: not known
};

// Memory that copies will name, in slots of equal size: a rank's arena.
struct HostMemory {
  char* base = nullptr;  // page-aligned
  uint64_t slot_bytes = 0;
  uint32_t slot_count = 0;
  std::vector<uint32_t> order;  // slots, soonest wanted first; those not named come last
};

class Device {
 public:
  virtual ~Device() = default;
  // Counts every later copy between host and device in `figures`, too, before it is enqueued.
  // They outlive the device.
  void count_copies_in(LifeFigures* figures) { figures_ = figures; }
  virtual const char* name() const = 0;

  // `count` buffers of `bytes_each`, made once; NoSpace with numbers. Kept until destruction.
  virtual Status allocate_staging(uint32_t count, uint64_t bytes_each) = 0;
  virtual char* staging(uint32_t buffer) = 0;  // REQUIRES: buffer < count
  virtual uint64_t staging_bytes() const = 0;  // held now

  // Makes copies of these slots as fast as they can be (pins them), in the background; copies work
  // before it is done, or where it cannot be. The memory outlives the device. Once.
  virtual Status adopt_host_memory(const HostMemory& memory) = 0;

  // Enqueued on `stream`: kCopyIn from host memory to the device's, kCopyOut the other way.
  // Source and destination must stay valid until a later ticket is reached. A range lies in one
  // slot of the adopted memory, or outside it.
  virtual void copy(StreamKind stream, void* destination, const void* source, uint64_t bytes) = 0;
  // Enqueued on the compute stream: between two places of the device's own memory.
  virtual void copy_within(void* destination, const void* source, uint64_t bytes) = 0;
  // Enqueued on the compute stream: the update rule over a chunk in the device's memory, or over a
  // range of one. Its sums are added to *sums by the time that reached() is first true of a compute
  // ticket taken later, or of one that waited for that.
  virtual void update(const AdamChunk& chunk, const AdamFactors& factors, ChunkSums* sums) = 0;
  // Enqueued on the compute stream: parameters from main weights only; what is added to sums->read
  // covers all arrays, and so does what is added to sums->written.
  virtual void republish(const AdamChunk& chunk, ChunkSums* sums) = 0;
  // Enqueued on the compute stream: reads FP32 gradients and adds their checksum to sums->grad, as
  // an update does that is made with them.
  virtual void sum_gradient(const float* grad, uint64_t elements, uint64_t first_word,
                            ChunkSums* sums) = 0;
  // Host work in stream order (initialisation). It calls nothing of the device.
  virtual void run_on_host(StreamKind stream, std::function<void()> work) = 0;

  virtual Ticket signal(StreamKind stream) = 0;
  // Later work of `waiter` starts only after `ticket` is reached.
  virtual void wait(StreamKind waiter, Ticket ticket) = 0;
  virtual bool reached(Ticket ticket) = 0;
  // Readable after any ticket was reached since the last drain.
  virtual int completion_fd() const = 0;
  virtual void drain_completions() = 0;
  virtual DeviceCounters counters() const = 0;
  virtual HostPins host_pins() const { return {}; }
  // Now. Of the CPU device it is what stands for such memory: its staging. Up to a fraction of a
  // millisecond: not something to ask window by window.
  virtual DeviceMemoryUse memory_use() const = 0;
  // The first thing that went wrong on the device. Nothing is reached any more after that, and
  // nothing that was enqueued may be trusted: the process ends and its successor begins anew.
  virtual Status failure() const = 0;
  // "0000:3b:00.0", as CUDA writes it; empty where it is no PCI device.
  virtual std::string pci_address() const { return {}; }

 protected:
  // What copy() begins with, where it copies anything.
  void count_copy(bool in, uint64_t bytes) {
    if (figures_ != nullptr) figures_->add_copy(in, bytes);
  }
  // Of these, what goes through a bounce buffer.
  void count_bounce(uint64_t bytes) {
    if (figures_ != nullptr) figures_->add_bounce(bytes);
  }

 private:
  LifeFigures* figures_ = nullptr;
};

// What the CUDA driver reads from the environment when it makes a context; first thing in main,
// before any thread. Eight hardware queues, the driver's own default: each more costs the start and
// the teardown of a process (with 32 of them a successor had its context 1.0 s after a kill, with 8
// after 0.4 s). The actor has more streams than that (six of the device, two of the collectives,
// one of the gradient math, and NCCL's own), so some share a queue, and which ones is the driver's
// choice: whatever is in one may wait for what came into it earlier. A trainer's setting, often 1,
// is not the actor's.
void prepare_device_environment();

// `kind` is "cpu" or "cuda"; Unsupported, with words, for a device that this build or this machine
// has not. Ranks of a node take its GPUs in turn.
Result<std::unique_ptr<Device>> make_device(const char* kind, Rank rank);

}  // namespace optlease
