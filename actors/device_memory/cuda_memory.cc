// The cuda kind of device memory. Driver calls only: the primary context is pushed for each call
// and popped again, so that the caller's current device stays what it was.
#include <cuda_runtime_api.h>
#include <fcntl.h>

#include "actors/device_memory/cuda_driver.h"
#include "actors/device_memory/device_memory_backend.h"

namespace optlease {
namespace {

unsigned long long as_ull(uint64_t value) { return static_cast<unsigned long long>(value); }

// The primary context of one GPU, held.
class PrimaryContext {
 public:
  static Result<std::shared_ptr<PrimaryContext>> retain(const CudaDriver& driver, int ordinal);
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  // At the end of a process the driver may be gone before us; its answer changes nothing.
  ~PrimaryContext() { (void)driver_.primary_context_release(device_); }

  const CudaDriver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }

 private:
  PrimaryContext(const CudaDriver& driver, int ordinal, CUdevice device, CUcontext context)
      : driver_(driver), ordinal_(ordinal), device_(device), context_(context) {}
  const CudaDriver& driver_;
  int ordinal_;
  CUdevice device_;
  CUcontext context_;
};

Result<std::shared_ptr<PrimaryContext>> PrimaryContext::retain(const CudaDriver& driver,
                                                               int ordinal) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  OPTLEASE_TRY(driver_status(driver, driver.device_get(&device, ordinal),
                             format("cuDeviceGet of GPU %d", ordinal)));
  for (const CUdevice_attribute attribute :
       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int supported = 0;
    OPTLEASE_TRY(driver_status(driver, driver.device_get_attribute(&supported, attribute, device),
                               format("cuDeviceGetAttribute of GPU %d", ordinal)));
    if (supported != 0) continue;
    return Status(StatusCode::kUnsupported,
                  format("GPU %d cannot share memory through file descriptors (attribute %d is 0): "
                         "set ranks.device = \"cpu\", or use another GPU",
                         ordinal, static_cast<int>(attribute)));
  }
  OPTLEASE_TRY(driver_status(driver, driver.primary_context_retain(&context, device),
                             format("the primary context of GPU %d", ordinal)));
  return std::shared_ptr<PrimaryContext>(new PrimaryContext(driver, ordinal, device, context));
}

// Makes the context current within a scope.
class ContextScope {
 public:
  explicit ContextScope(const PrimaryContext& context)
      : driver_(context.driver()),
        entered_(driver_status(driver_, driver_.context_push(context.context()),
                               format("cuCtxPushCurrent of GPU %d", context.ordinal()))) {}
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    CUcontext popped = nullptr;
    if (entered_.is_ok()) (void)driver_.context_pop(&popped);
  }
  const Status& entered() const { return entered_; }

 private:
  const CudaDriver& driver_;
  Status entered_;
};

// One allocation, until release: mappings and exported fds keep its memory beyond that.
class Allocation {
 public:
  Allocation(const CudaDriver& driver, CUmemGenericAllocationHandle handle)
      : driver_(driver), handle_(handle) {}
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() { (void)driver_.mem_release(handle_); }
  CUmemGenericAllocationHandle handle() const { return handle_; }

 private:
  const CudaDriver& driver_;
  CUmemGenericAllocationHandle handle_;
};

// An address range with an allocation mapped into it.
class CudaMapping final : public DeviceMapping {
 public:
  // Maps the first `mapped_bytes` (a multiple of the granularity) of `allocation`.
  static Result<std::unique_ptr<CudaMapping>> map(std::shared_ptr<PrimaryContext> context,
                                                  const Allocation& allocation, uint64_t bytes,
                                                  uint64_t mapped_bytes);
  ~CudaMapping() override;

  void* data() const override { return reinterpret_cast<void*>(address_); }
  uint64_t bytes() const override { return bytes_; }
  CUdeviceptr address() const { return address_; }

 private:
  CudaMapping(std::shared_ptr<PrimaryContext> context, uint64_t bytes, uint64_t mapped_bytes)
      : context_(std::move(context)), bytes_(bytes), mapped_bytes_(mapped_bytes) {}
  std::shared_ptr<PrimaryContext> context_;
  uint64_t bytes_;
  uint64_t mapped_bytes_;
  CUdeviceptr address_ = 0;  // reserved unless 0
  bool is_mapped_ = false;
};

Result<std::unique_ptr<CudaMapping>> CudaMapping::map(std::shared_ptr<PrimaryContext> context,
                                                      const Allocation& allocation, uint64_t bytes,
                                                      uint64_t mapped_bytes) {
  const CudaDriver& driver = context->driver();
  const int ordinal = context->ordinal();
  std::unique_ptr<CudaMapping> mapping(new CudaMapping(std::move(context), bytes, mapped_bytes));
  const std::string what = format("%llu bytes on GPU %d", as_ull(mapped_bytes), ordinal);
  OPTLEASE_TRY(driver_status(driver,
                             driver.address_reserve(&mapping->address_, mapped_bytes, 0, 0, 0),
                             "cuMemAddressReserve of " + what));
  OPTLEASE_TRY(driver_status(
      driver, driver.mem_map(mapping->address_, mapped_bytes, 0, allocation.handle(), 0),
      "cuMemMap of " + what + " (memory that was made smaller is refused)"));
  mapping->is_mapped_ = true;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OPTLEASE_TRY(driver_status(driver,
                             driver.mem_set_access(mapping->address_, mapped_bytes, &access, 1),
                             "cuMemSetAccess to " + what));
  return mapping;
}

CudaMapping::~CudaMapping() {
  if (address_ == 0) return;
  const ContextScope scope(*context_);
  if (is_mapped_) (void)context_->driver().mem_unmap(address_, mapped_bytes_);
  (void)context_->driver().address_free(address_, mapped_bytes_);
}

class CudaMemory final : public DeviceMemoryBackend {
 public:
  CudaMemory(std::shared_ptr<PrimaryContext> context, uint64_t granularity)
      : context_(std::move(context)), driver_(context_->driver()), granularity_(granularity) {}

  uint64_t allocation_bytes(uint64_t bytes) const override {
    return (bytes + granularity_ - 1) / granularity_ * granularity_;
  }
  Result<DeviceRoom> room() const override;
  Result<UniqueFd> create(const std::string& name, uint64_t bytes) const override;
  Result<std::unique_ptr<DeviceMapping>> map(int fd, uint64_t bytes) const override;
  Status copy_to_host(void* host, const void* device, uint64_t bytes) const override;
  Status copy_to_device(void* device, const void* host, uint64_t bytes) const override;

 private:
  Status out_of_memory(const std::string& name, uint64_t needed) const;
  Status zero(const Allocation& allocation, uint64_t bytes) const;
  Status check_place(CUmemGenericAllocationHandle handle) const;
  Status finish_copy() const {
    return driver_status(driver_, driver_.stream_synchronize(nullptr),
                         format("cuStreamSynchronize on GPU %d", context_->ordinal()));
  }

  std::shared_ptr<PrimaryContext> context_;
  const CudaDriver& driver_;
  uint64_t granularity_;
};

CUmemAllocationProp properties_of(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  return properties;
}

Result<DeviceRoom> CudaMemory::room() const {
  const ContextScope scope(*context_);
  if (!scope.entered().is_ok()) return scope.entered();
  size_t free_bytes = 0, total_bytes = 0;
  OPTLEASE_TRY(driver_status(driver_, driver_.mem_get_info(&free_bytes, &total_bytes),
                             format("cuMemGetInfo of GPU %d", context_->ordinal())));
  return DeviceRoom{free_bytes, total_bytes};
}

Status CudaMemory::out_of_memory(const std::string& name, uint64_t needed) const {
  const Result<DeviceRoom> left = room();
  return {StatusCode::kNoSpace,
          format("GPU %d has not the %llu bytes that '%s' needs (%llu of %llu are free): end other "
                 "programs on it, or give the job more ranks on more GPUs",
                 context_->ordinal(), as_ull(needed), name.c_str(),
                 as_ull(left ? left.value().free_bytes : 0),
                 as_ull(left ? left.value().total_bytes : 0))};
}

// Memory of the driver holds whatever was there before.
Status CudaMemory::zero(const Allocation& allocation, uint64_t bytes) const {
  auto mapping = CudaMapping::map(context_, allocation, bytes, bytes);
  if (!mapping) return mapping.status();
  OPTLEASE_TRY(driver_status(driver_, driver_.memset_d8(mapping.value()->address(), 0, bytes),
                             format("cuMemsetD8 of %llu bytes", as_ull(bytes))));
  return finish_copy();
}

Result<UniqueFd> CudaMemory::create(const std::string& name, uint64_t bytes) const {
  const ContextScope scope(*context_);
  if (!scope.entered().is_ok()) return scope.entered();
  const uint64_t rounded = allocation_bytes(bytes);
  const CUmemAllocationProp properties = properties_of(context_->ordinal());
  CUmemGenericAllocationHandle handle = 0;
  const CUresult made = driver_.mem_create(&handle, rounded, &properties, 0);
  if (made == CUDA_ERROR_OUT_OF_MEMORY) return out_of_memory(name, rounded);
  OPTLEASE_TRY(driver_status(driver_, made,
                             format("cuMemCreate of %llu bytes on GPU %d for '%s'", as_ull(rounded),
                                    context_->ordinal(), name.c_str())));
  const Allocation allocation(driver_, handle);
  OPTLEASE_TRY(zero(allocation, rounded));
  int fd = -1;
  OPTLEASE_TRY(driver_status(
      driver_, driver_.mem_export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle of '" + name + "'"));
  UniqueFd owned(fd);
  if (::fcntl(owned.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return Status(StatusCode::kIo, "FD_CLOEXEC on the descriptor of '" + name + "' was refused");
  }
  return owned;
}

// A client whose GPUs are numbered in another way than the actor's would compute across NVLink, or
// not at all.
Status CudaMemory::check_place(CUmemGenericAllocationHandle handle) const {
  CUmemAllocationProp properties{};
  OPTLEASE_TRY(driver_status(driver_, driver_.mem_properties(&properties, handle),
                             "cuMemGetAllocationPropertiesFromHandle"));
  if (properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      properties.location.id == context_->ordinal()) {
    return Status::ok();
  }
  return {StatusCode::kInvalidArgument,
          format("the memory lies on GPU %d as this process numbers them, and this rank's GPU is "
                 "%d here: give trainer and actor the same CUDA_VISIBLE_DEVICES, or the trainer "
                 "its rank's GPU alone",
                 properties.location.id, context_->ordinal())};
}

Result<std::unique_ptr<DeviceMapping>> CudaMemory::map(int fd, uint64_t bytes) const {
  const ContextScope scope(*context_);
  if (!scope.entered().is_ok()) return scope.entered();
  CUmemGenericAllocationHandle handle = 0;
  OPTLEASE_TRY(
      driver_status(driver_,
                    driver_.mem_import(&handle, reinterpret_cast<void*>(static_cast<uintptr_t>(fd)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                    format("cuMemImportFromShareableHandle of descriptor %d on GPU %d (%llu bytes)",
                           fd, context_->ordinal(), as_ull(bytes))));
  const Allocation allocation(driver_, handle);
  OPTLEASE_TRY(check_place(handle));
  auto mapping = CudaMapping::map(context_, allocation, bytes, allocation_bytes(bytes));
  if (!mapping) return mapping.status();
  return std::unique_ptr<DeviceMapping>(std::move(mapping).value());
}

Status CudaMemory::copy_to_host(void* host, const void* device, uint64_t bytes) const {
  const ContextScope scope(*context_);
  OPTLEASE_TRY(scope.entered());
  OPTLEASE_TRY(driver_status(
      driver_, driver_.memcpy_to_host(host, reinterpret_cast<CUdeviceptr>(device), bytes),
      format("cuMemcpyDtoH of %llu bytes from GPU %d", as_ull(bytes), context_->ordinal())));
  return finish_copy();
}

// From pageable memory the driver returns when it has the bytes; the GPU has them a little later.
Status CudaMemory::copy_to_device(void* device, const void* host, uint64_t bytes) const {
  const ContextScope scope(*context_);
  OPTLEASE_TRY(scope.entered());
  OPTLEASE_TRY(driver_status(
      driver_, driver_.memcpy_to_device(reinterpret_cast<CUdeviceptr>(device), host, bytes),
      format("cuMemcpyHtoD of %llu bytes to GPU %d", as_ull(bytes), context_->ordinal())));
  return finish_copy();
}

}  // namespace

Result<int> cuda_device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return Status(StatusCode::kUnsupported,
                  format("no GPU can be used: cudaGetDeviceCount: %s; `nvidia-smi` tells whether "
                         "driver and GPU are there, CUDA_VISIBLE_DEVICES may hide them",
                         cudaGetErrorString(error)));
  }
  if (count > 0) return count;
  return Status(StatusCode::kUnsupported,
                "no GPU is visible to this process; CUDA_VISIBLE_DEVICES may hide them all");
}

Result<std::shared_ptr<DeviceMemoryBackend>> open_cuda_memory(int ordinal) {
  const Result<int> count = cuda_device_count();  // initialises the driver, too
  if (!count) return count.status();
  if (ordinal < 0 || ordinal >= count.value()) {
    return Status(StatusCode::kInvalidArgument,
                  format("GPU %d of %d visible ones", ordinal, count.value()));
  }
  const Result<const CudaDriver*> driver = cuda_driver();
  if (!driver) return driver.status();
  auto context = PrimaryContext::retain(*driver.value(), ordinal);
  if (!context) return context.status();
  const CUmemAllocationProp properties = properties_of(ordinal);
  size_t granularity = 0;
  OPTLEASE_TRY(driver_status(*driver.value(),
                             driver.value()->mem_granularity(&granularity, &properties,
                                                             CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                             format("cuMemGetAllocationGranularity of GPU %d", ordinal)));
  return std::shared_ptr<DeviceMemoryBackend>(
      std::make_shared<CudaMemory>(std::move(context).value(), granularity));
}

}  // namespace optlease
