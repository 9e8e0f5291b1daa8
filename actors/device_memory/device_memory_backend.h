// What each kind of device memory implements. Used within this folder alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actors/device_memory/device_memory.h"

namespace optlease {

class DeviceMapping {
 public:
  virtual ~DeviceMapping() = default;
  virtual void* data() const = 0;
  virtual uint64_t bytes() const = 0;
};

class DeviceMemoryBackend {
 public:
  virtual ~DeviceMemoryBackend() = default;
  virtual uint64_t allocation_bytes(uint64_t bytes) const = 0;
  virtual Result<DeviceRoom> room() const = 0;
  virtual Result<UniqueFd> create(const std::string& name, uint64_t bytes) const = 0;
  virtual Result<std::unique_ptr<DeviceMapping>> map(int fd, uint64_t bytes) const = 0;
  virtual Status copy_to_host(void* host, const void* device, uint64_t bytes) const = 0;
  virtual Status copy_to_device(void* device, const void* host, uint64_t bytes) const = 0;
};

// In cuda_memory.cc, or in no_cuda.cc where the build has no CUDA: Unsupported with words.
Result<int> cuda_device_count();  // at least 1
Result<std::shared_ptr<DeviceMemoryBackend>> open_cuda_memory(int ordinal);

}  // namespace optlease
