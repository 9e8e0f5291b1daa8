#include "actors/device_memory/device_memory.h"

#include <cstring>

#include "actors/device_memory/device_memory_backend.h"

namespace optlease {
namespace {

class HostMapping final : public DeviceMapping {
 public:
  explicit HostMapping(MappedBuffer buffer) : buffer_(std::move(buffer)) {}
  void* data() const override { return buffer_.data(); }
  uint64_t bytes() const override { return buffer_.bytes(); }

 private:
  MappedBuffer buffer_;
};

// The cpu kind: memfds, which every process maps as it is.
class HostMemory final : public DeviceMemoryBackend {
 public:
  uint64_t allocation_bytes(uint64_t bytes) const override { return bytes; }
  Result<DeviceRoom> room() const override { return DeviceRoom{UINT64_MAX, UINT64_MAX}; }
  Result<UniqueFd> create(const std::string& name, uint64_t bytes) const override {
    return create_memfd(name, bytes);
  }
  Result<std::unique_ptr<DeviceMapping>> map(int fd, uint64_t bytes) const override {
    Result<MappedBuffer> mapped = MappedBuffer::map(fd, bytes);
    if (!mapped) return mapped.status();
    return std::unique_ptr<DeviceMapping>(std::make_unique<HostMapping>(std::move(mapped).value()));
  }
  Status copy_to_host(void* host, const void* device, uint64_t bytes) const override {
    std::memcpy(host, device, bytes);
    return Status::ok();
  }
  Status copy_to_device(void* device, const void* host, uint64_t bytes) const override {
    std::memcpy(device, host, bytes);
    return Status::ok();
  }
};

}  // namespace

const char* name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "?";
}

bool parse(const std::string& text, DeviceKind* out) {
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    if (text != name_of(kind)) continue;
    *out = kind;
    return true;
  }
  return false;
}

Result<DevicePlace> device_of_rank(DeviceKind kind, uint32_t rank) {
  if (kind == DeviceKind::kCpu) return DevicePlace{};
  const Result<int> count = cuda_device_count();
  if (!count) return count.status();
  return DevicePlace{kind, static_cast<int>(rank % static_cast<uint32_t>(count.value()))};
}

Result<DevicePlace> device_of_rank(const std::string& kind, uint32_t rank) {
  DeviceKind parsed = DeviceKind::kCpu;
  if (!parse(kind, &parsed)) {
    return Status(StatusCode::kUnsupported,
                  "the device \"" + kind + "\" is none that this build knows: cpu or cuda");
  }
  return device_of_rank(parsed, rank);
}

MappedDeviceBuffer::MappedDeviceBuffer() = default;
MappedDeviceBuffer::MappedDeviceBuffer(std::unique_ptr<DeviceMapping> mapping)
    : mapping_(std::move(mapping)) {}
MappedDeviceBuffer::MappedDeviceBuffer(MappedDeviceBuffer&&) noexcept = default;
MappedDeviceBuffer& MappedDeviceBuffer::operator=(MappedDeviceBuffer&&) noexcept = default;
MappedDeviceBuffer::~MappedDeviceBuffer() = default;

void* MappedDeviceBuffer::data() const { return mapping_ ? mapping_->data() : nullptr; }
uint64_t MappedDeviceBuffer::bytes() const { return mapping_ ? mapping_->bytes() : 0; }

Result<DeviceMemory> DeviceMemory::open(DevicePlace place) {
  if (place.kind == DeviceKind::kCpu) {
    return DeviceMemory({DeviceKind::kCpu, 0}, std::make_shared<HostMemory>());
  }
  auto backend = open_cuda_memory(place.ordinal);
  if (!backend) return backend.status();
  return DeviceMemory(place, std::move(backend).value());
}

uint64_t DeviceMemory::allocation_bytes(uint64_t bytes) const {
  return backend_->allocation_bytes(bytes);
}

Result<DeviceRoom> DeviceMemory::room() const { return backend_->room(); }

Result<UniqueFd> DeviceMemory::create(const std::string& name, uint64_t bytes) const {
  if (bytes == 0) {
    return Status{StatusCode::kInvalidArgument, "device buffer " + name + " would have no bytes"};
  }
  return backend_->create(name, bytes);
}

Result<MappedDeviceBuffer> DeviceMemory::map(int fd, uint64_t bytes) const {
  if (bytes == 0) return MappedDeviceBuffer();
  auto mapping = backend_->map(fd, bytes);
  if (!mapping) return mapping.status();
  return MappedDeviceBuffer(std::move(mapping).value());
}

Status DeviceMemory::copy_to_host(void* host, const void* device, uint64_t bytes) const {
  return bytes == 0 ? Status::ok() : backend_->copy_to_host(host, device, bytes);
}

Status DeviceMemory::copy_to_device(void* device, const void* host, uint64_t bytes) const {
  return bytes == 0 ? Status::ok() : backend_->copy_to_device(device, host, bytes);
}

}  // namespace optlease
