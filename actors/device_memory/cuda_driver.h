// The CUDA driver's functions that device memory needs, found at run time through the runtime
// (linked statically): programs and the client library start on machines without a driver and never
// ask for one unless a job's device is cuda. Used by cuda_memory.cc alone.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "shm/contract/status.h"

namespace optlease {

struct CudaDriver {
  PFN_cuGetErrorName_v6000 get_error_name;
  PFN_cuGetErrorString_v6000 get_error_string;
  PFN_cuDeviceGet_v2000 device_get;
  PFN_cuDeviceGetAttribute_v2000 device_get_attribute;
  PFN_cuDevicePrimaryCtxRetain_v7000 primary_context_retain;
  PFN_cuDevicePrimaryCtxRelease_v11000 primary_context_release;
  PFN_cuCtxPushCurrent_v4000 context_push;
  PFN_cuCtxPopCurrent_v4000 context_pop;
  PFN_cuStreamSynchronize_v2000 stream_synchronize;
  PFN_cuMemGetInfo_v3020 mem_get_info;
  PFN_cuMemsetD8_v3020 memset_d8;
  PFN_cuMemcpyDtoH_v3020 memcpy_to_host;
  PFN_cuMemcpyHtoD_v3020 memcpy_to_device;
  PFN_cuMemGetAllocationGranularity_v10020 mem_granularity;
  PFN_cuMemCreate_v10020 mem_create;
  PFN_cuMemRelease_v10020 mem_release;
  PFN_cuMemGetAllocationPropertiesFromHandle_v10020 mem_properties;
  PFN_cuMemExportToShareableHandle_v10020 mem_export;
  PFN_cuMemImportFromShareableHandle_v10020 mem_import;
  PFN_cuMemAddressReserve_v10020 address_reserve;
  PFN_cuMemAddressFree_v10020 address_free;
  PFN_cuMemMap_v10020 mem_map;
  PFN_cuMemUnmap_v10020 mem_unmap;
  PFN_cuMemSetAccess_v10020 mem_set_access;
};

// The table, filled on the first call; Unsupported, in words, where there is no driver, no GPU or
// too old a driver. It lives until the process ends.
Result<const CudaDriver*> cuda_driver();

// Ok for CUDA_SUCCESS; else "<what>: <name> (<sentence>)". Out of memory is NoSpace; what no other
// code fits is Internal: CUDA has failed in this process (as cuda_status.h of the actor has it).
Status driver_status(const CudaDriver& driver, CUresult result, const std::string& what);

}  // namespace optlease
