// Stands in for cuda_memory.cc in a build without CUDA.
#include "actors/device_memory/device_memory_backend.h"

namespace optlease {
namespace {

Status not_built_in() {
  return {
      StatusCode::kUnsupported,
      "this build uses no GPU (no CUDA device): build with nvcc found and OPTLEASE_CUDA=ON, or set "
      "ranks.device = \"cpu\""};
}

}  // namespace

Result<int> cuda_device_count() { return not_built_in(); }
Result<std::shared_ptr<DeviceMemoryBackend>> open_cuda_memory(int) { return not_built_in(); }

}  // namespace optlease
