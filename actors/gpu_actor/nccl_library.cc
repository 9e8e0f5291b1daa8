#include "actors/gpu_actor/nccl_library.h"

namespace optlease {
namespace {

constexpr int kMajor = 10000;
constexpr int kOldest = 21900;

std::string version_text(int version) {
  return format("%d.%d.%d", version / kMajor, version % kMajor / 100, version % 100);
}

}  // namespace

Status check_nccl_version(int compiled, int found) {
  if (found >= kOldest && found / kMajor == compiled / kMajor) return Status::ok();
  return {StatusCode::kUnsupported,
          format("NCCL %s was found; this build was compiled with the headers of %s and needs %s "
                 "or later of the same major version: install that, or put its folder first in "
                 "LD_LIBRARY_PATH",
                 version_text(found).c_str(), version_text(compiled).c_str(),
                 version_text(kOldest).c_str())};
}

Status nccl_status(const NcclLibrary& nccl, ncclResult_t result, const std::string& call,
                   ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return Status::ok();
  const char* detail = nccl.get_last_error(comm);
  const bool has_detail = detail != nullptr && *detail != 0;
  return {result == ncclRemoteError ? StatusCode::kPeerLost : StatusCode::kIo,
          format("%s: %s%s%s (NCCL_DEBUG=WARN says more)", call.c_str(),
                 nccl.get_error_string(result), has_detail ? ": " : "", has_detail ? detail : "")};
}

Result<const NcclLibrary*> nccl_library() {
  const Result<const NcclLibrary*> loaded = load_nccl();
  if (!loaded) return loaded;
  int version = 0;
  const ncclResult_t asked = loaded.value()->get_version(&version);
  OPTLEASE_TRY(nccl_status(*loaded.value(), asked, "ncclGetVersion", nullptr));
  OPTLEASE_TRY(check_nccl_version(NCCL_VERSION_CODE, version));
  return loaded;
}

}  // namespace optlease
