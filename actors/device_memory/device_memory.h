// Memory of a rank's device that outlives the process that made it: created, handed on as a file
// descriptor, and mapped by other processes. The cpu kind is a memfd (shm/shared_buffer.h), the
// cuda kind is cuMemCreate memory exported as a POSIX fd, which stays intact while anybody, even a
// process without a CUDA context, holds the fd. Used by the GPU actor and the client library for
// parameters, gradients and gradient shards, and by the example trainer for its copies. It knows no
// keys and no vault, and runs no kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "shm/contract/status.h"
#include "shm/shared_buffer.h"

namespace optlease {

// Frozen numbers: they cross the C interface (optlease_device).
enum class DeviceKind : uint32_t { kCpu = 0, kCuda = 1 };

const char* name_of(DeviceKind kind);                  // "cpu", "cuda"
bool parse(const std::string& text, DeviceKind* out);  // as in ranks.device

// A GPU of this process's own numbering; the cpu kind has ordinal 0 alone.
struct DevicePlace {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;
};

// Where `rank` computes: rank modulo the number of visible GPUs, in actor and client alike.
// Unsupported where the build or the machine has no such device, with words. Makes no context.
Result<DevicePlace> device_of_rank(DeviceKind kind, uint32_t rank);
Result<DevicePlace> device_of_rank(const std::string& kind, uint32_t rank);

struct DeviceRoom {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};

// What stands behind a kind (device_memory_backend.h).
class DeviceMemoryBackend;
class DeviceMapping;

// A mapping of a device buffer. data() is a host pointer on the cpu kind and a device pointer on
// the cuda kind, readable and writable by that GPU. Keeps the device's context alive. Destroying it
// REQUIRES that no stream still uses the memory.
class MappedDeviceBuffer {
 public:
  MappedDeviceBuffer();
  MappedDeviceBuffer(MappedDeviceBuffer&& other) noexcept;
  MappedDeviceBuffer& operator=(MappedDeviceBuffer&& other) noexcept;
  ~MappedDeviceBuffer();

  void* data() const;      // null where bytes() is 0
  uint64_t bytes() const;  // as asked for; the mapping may be larger

 private:
  friend class DeviceMemory;
  explicit MappedDeviceBuffer(std::unique_ptr<DeviceMapping> mapping);
  std::unique_ptr<DeviceMapping> mapping_;
};

// One device's memory, as one process sees it. A handle: copies stand for the same device. Calls
// may come from any thread and leave the caller's current device and context as they were.
class DeviceMemory {
 public:
  // The cuda kind makes (or joins) the device's primary context; it ends with the last object that
  // uses it.
  static Result<DeviceMemory> open(DevicePlace place);

  DevicePlace place() const { return place_; }
  // What a buffer of `bytes` takes of the device.
  uint64_t allocation_bytes(uint64_t bytes) const;
  // Of the device, all processes together. The cpu kind knows no limit: UINT64_MAX both.
  Result<DeviceRoom> room() const;

  // New memory of `bytes` (> 0), zeroed, as a close-on-exec fd. `name` is for /proc and errors.
  // NoSpace with numbers where the device has not enough.
  Result<UniqueFd> create(const std::string& name, uint64_t bytes) const;
  // Maps `bytes` of what `fd` stands for; the fd may be closed afterwards. Refuses memory that is
  // smaller, or that lies on another GPU. bytes == 0: data() == nullptr and no mapping.
  Result<MappedDeviceBuffer> map(int fd, uint64_t bytes) const;

  // Between the device's memory and the host's; on the cpu kind both are host memory. Done when
  // they return. They wait for no work on other streams: the caller has.
  Status copy_to_host(void* host, const void* device, uint64_t bytes) const;
  Status copy_to_device(void* device, const void* host, uint64_t bytes) const;

 private:
  DeviceMemory(DevicePlace place, std::shared_ptr<DeviceMemoryBackend> backend)
      : place_(place), backend_(std::move(backend)) {}
  DevicePlace place_;
  std::shared_ptr<DeviceMemoryBackend> backend_;
};

}  // namespace optlease
