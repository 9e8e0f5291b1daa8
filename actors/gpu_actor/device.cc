#include "actors/gpu_actor/device.h"

#include <cstdlib>
#include <cstring>

#include "actors/gpu_actor/cpu_device.h"
#if defined(OPTLEASE_HAVE_CUDA)
#include "actors/gpu_actor/cuda_device.h"
#endif

namespace optlease {

void prepare_device_environment() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1); }

Result<std::unique_ptr<Device>> make_device(const char* kind, [[maybe_unused]] Rank rank) {
  if (std::strcmp(kind, "cpu") == 0) return CpuDevice::create();
  if (std::strcmp(kind, "cuda") == 0) {
#if defined(OPTLEASE_HAVE_CUDA)
    return CudaDevice::create(rank);
#else
    return Status(
        StatusCode::kUnsupported,
        "ranks.device is 'cuda', and this build has no CUDA: build it where nvcc is found, "
        "or set ranks.device to 'cpu'");
#endif
  }
  return Status(StatusCode::kUnsupported,
                format("ranks.device is '%s'; known are 'cpu' and 'cuda'", kind));
}

}  // namespace optlease
