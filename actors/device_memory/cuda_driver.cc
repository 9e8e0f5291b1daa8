#include "actors/device_memory/cuda_driver.h"

#include <cuda_runtime_api.h>

namespace optlease {
namespace {

// The functions are looked up as CUDA 12.0 had them: the signatures of the types in cuda_driver.h.
constexpr unsigned int kCudaVersion = 12000;

template <class Function>
Status find(const char* symbol, Function* out) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(symbol, &address, kCudaVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return {StatusCode::kUnsupported,
            format("CUDA driver function %s cannot be asked for: %s; is a driver installed? "
                   "`nvidia-smi` tells",
                   symbol, cudaGetErrorString(error))};
  }
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    return {StatusCode::kUnsupported,
            format("the CUDA driver has no %s as of CUDA %u.%u: install a newer driver", symbol,
                   kCudaVersion / 1000, kCudaVersion % 1000 / 10)};
  }
  *out = reinterpret_cast<Function>(address);
  return Status::ok();
}

Status find_context_functions(CudaDriver* d) {
  OPTLEASE_TRY(find("cuGetErrorName", &d->get_error_name));
  OPTLEASE_TRY(find("cuGetErrorString", &d->get_error_string));
  OPTLEASE_TRY(find("cuDeviceGet", &d->device_get));
  OPTLEASE_TRY(find("cuDeviceGetAttribute", &d->device_get_attribute));
  OPTLEASE_TRY(find("cuDevicePrimaryCtxRetain", &d->primary_context_retain));
  OPTLEASE_TRY(find("cuDevicePrimaryCtxRelease", &d->primary_context_release));
  OPTLEASE_TRY(find("cuCtxPushCurrent", &d->context_push));
  OPTLEASE_TRY(find("cuCtxPopCurrent", &d->context_pop));
  return find("cuStreamSynchronize", &d->stream_synchronize);
}

Status find_memory_functions(CudaDriver* d) {
  OPTLEASE_TRY(find("cuMemGetInfo", &d->mem_get_info));
  OPTLEASE_TRY(find("cuMemsetD8", &d->memset_d8));
  OPTLEASE_TRY(find("cuMemcpyDtoH", &d->memcpy_to_host));
  OPTLEASE_TRY(find("cuMemcpyHtoD", &d->memcpy_to_device));
  OPTLEASE_TRY(find("cuMemGetAllocationGranularity", &d->mem_granularity));
  OPTLEASE_TRY(find("cuMemCreate", &d->mem_create));
  OPTLEASE_TRY(find("cuMemRelease", &d->mem_release));
  OPTLEASE_TRY(find("cuMemGetAllocationPropertiesFromHandle", &d->mem_properties));
  OPTLEASE_TRY(find("cuMemExportToShareableHandle", &d->mem_export));
  OPTLEASE_TRY(find("cuMemImportFromShareableHandle", &d->mem_import));
  OPTLEASE_TRY(find("cuMemAddressReserve", &d->address_reserve));
  OPTLEASE_TRY(find("cuMemAddressFree", &d->address_free));
  OPTLEASE_TRY(find("cuMemMap", &d->mem_map));
  OPTLEASE_TRY(find("cuMemUnmap", &d->mem_unmap));
  return find("cuMemSetAccess", &d->mem_set_access);
}

struct Found {
  CudaDriver driver{};
  Status status;
};

Found find_all() {
  Found found;
  found.status = find_context_functions(&found.driver);
  if (found.status.is_ok()) found.status = find_memory_functions(&found.driver);
  return found;
}

}  // namespace

Result<const CudaDriver*> cuda_driver() {
  // Never destroyed: mappings that outlive static objects still call through it.
  static const Found* found = new Found(find_all());
  if (!found->status.is_ok()) return found->status;
  return &found->driver;
}

Status driver_status(const CudaDriver& driver, CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return Status::ok();
  const char* name = nullptr;
  const char* sentence = nullptr;
  if (driver.get_error_name(result, &name) != CUDA_SUCCESS) name = "an unknown error";
  if (driver.get_error_string(result, &sentence) != CUDA_SUCCESS) sentence = "no description";
  StatusCode code = StatusCode::kInternal;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) code = StatusCode::kNoSpace;
  if (result == CUDA_ERROR_INVALID_VALUE) code = StatusCode::kInvalidArgument;
  if (result == CUDA_ERROR_NOT_SUPPORTED) code = StatusCode::kUnsupported;
  return {code, format("%s: %s (%s)", what.c_str(), name, sentence)};
}

}  // namespace optlease
