// One accelerator as the actor sees it: staging buffers in its own memory, three in-order streams,
// tickets to order them, and the kernels. The CPU device (cpu_device.h) and the CUDA device
// implement it; everything above this line is the same code for both. Calls come from the actor's
// one thread; none of them waits for a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/adam_cpu.h"
#include "kernels/adam_math.h"
#include "shm/contract/status.h"

namespace optlease {

enum class StreamKind : uint32_t { kCopyIn = 0, kCompute = 1, kCopyOut = 2 };
inline constexpr uint32_t kStreamCount = 3;

// A place in a stream: reached when everything enqueued before it is done.
struct Ticket {
  StreamKind stream = StreamKind::kCompute;
  uint64_t value = 0;
};

struct DeviceCounters {
  uint64_t bytes_in = 0;  // host to staging, completed or running
  uint64_t bytes_out = 0;
  double kernel_seconds = 0;  // busy time of the compute stream
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;

  // `count` buffers of `bytes_each`, made once; NoSpace with numbers. Kept until destruction.
  virtual Status allocate_staging(uint32_t count, uint64_t bytes_each) = 0;
  virtual char* staging(uint32_t buffer) = 0;  // REQUIRES: buffer < count
  virtual uint64_t staging_bytes() const = 0;  // held now

  // Enqueued on `stream`. Source and destination must stay valid until a later ticket is reached.
  virtual void copy(StreamKind stream, void* destination, const void* source, uint64_t bytes) = 0;
  // Enqueued on the compute stream: the update rule over one staged chunk; *sums is written by
  // then.
  virtual void update(const AdamChunk& chunk, const AdamFactors& factors, ChunkSums* sums) = 0;
  // Enqueued on the compute stream: parameters from main weights only; sums->read covers all
  // arrays.
  virtual void republish(const AdamChunk& chunk, ChunkSums* sums) = 0;
  // Host work in stream order (initialisation).
  virtual void run_on_host(StreamKind stream, std::function<void()> work) = 0;

  virtual Ticket signal(StreamKind stream) = 0;
  // Later work of `waiter` starts only after `ticket` is reached.
  virtual void wait(StreamKind waiter, Ticket ticket) = 0;
  virtual bool reached(Ticket ticket) const = 0;
  // Readable after any ticket was reached since the last drain.
  virtual int completion_fd() const = 0;
  virtual void drain_completions() = 0;
  virtual DeviceCounters counters() const = 0;
};

// `kind` is "cpu"; Unsupported for a device that this build has not.
Result<std::unique_ptr<Device>> make_device(const char* kind);

}  // namespace optlease
