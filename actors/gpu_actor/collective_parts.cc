#include "actors/gpu_actor/collective_parts.h"

#include "actors/device_memory/device_memory.h"
#include "actors/gpu_actor/gloo_collectives.h"
#if defined(OPTLEASE_HAVE_CUDA)
#include "actors/gpu_actor/nccl_collectives.h"
#endif

namespace optlease {

void prepare_collectives_environment() {
#if defined(OPTLEASE_HAVE_CUDA)
  set_nccl_defaults();
#endif
}

Result<CollectiveParts> make_collective_parts(const std::string& device, Rank rank,
                                              const std::string& group_directory) {
  CollectiveParts parts;
  if (device == "cpu") {
    parts.collectives = make_gloo_collectives(group_directory);
    parts.math = make_cpu_gradient_math();
    return parts;
  }
  if (device != "cuda")
    return Status(StatusCode::kUnsupported,
                  format("ranks.device is '%s'; known are 'cpu' and 'cuda'", device.c_str()));
  const Result<DevicePlace> place = device_of_rank(DeviceKind::kCuda, rank.value);
  if (!place) return place.status();
#if defined(OPTLEASE_HAVE_CUDA)
  NcclOptions options;
  options.group_directory = group_directory;
  options.device = place.value().ordinal;
  Result<std::unique_ptr<Collectives>> collectives = make_nccl_collectives(options);
  if (!collectives) return collectives.status();
  Result<std::unique_ptr<GradientMath>> math = make_cuda_gradient_math(options.device);
  if (!math) return math.status();
  parts.collectives = std::move(collectives).value();
  parts.math = std::move(math).value();
#endif
  return parts;
}

bool collectives_can_recover(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInternal:     // the device has failed in this process
    case StatusCode::kNoSpace:      // not enough of its memory
    case StatusCode::kUnsupported:  // two ranks on one GPU
      return false;
    case StatusCode::kOk:
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kAlreadyExists:
    case StatusCode::kPermission:
    case StatusCode::kCorrupt:
    case StatusCode::kWrongVersion:
    case StatusCode::kStaleEpoch:
    case StatusCode::kStaleIncarnation:
    case StatusCode::kStaleLease:
    case StatusCode::kStaleStep:
    case StatusCode::kTimeout:
    case StatusCode::kBusy:
    case StatusCode::kPeerLost:
    case StatusCode::kIo:
    case StatusCode::kCancelled:
      return true;
  }
  return true;
}

}  // namespace optlease
