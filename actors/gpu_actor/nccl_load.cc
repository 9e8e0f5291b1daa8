#include <dlfcn.h>

#include "actors/gpu_actor/nccl_library.h"

namespace optlease {
namespace {

// Where the loader looks first, then where the build found one (may be empty).
constexpr const char* kNames[] = {"libnccl.so.2", OPTLEASE_NCCL_FOUND_AT};

struct Loaded {
  NcclLibrary nccl{};
  Status status;
};

template <class Function>
void find(void* library, const char* symbol, Function* out, Status* status) {
  *out = reinterpret_cast<Function>(::dlsym(library, symbol));
  if (*out != nullptr || !status->is_ok()) return;
  *status = {StatusCode::kUnsupported,
             format("libnccl.so.2 has no %s: install NCCL 2.19 or later", symbol)};
}

Loaded load() {
  Loaded loaded;
  void* library = nullptr;
  std::string why;
  for (const char* name : kNames) {
    if (library != nullptr || *name == '\0') continue;
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char* error = library == nullptr ? ::dlerror() : nullptr;
    if (error != nullptr) why += std::string(why.empty() ? "" : "; ") + error;
  }
  if (library == nullptr) {
    loaded.status = {StatusCode::kUnsupported,
                     "ranks on several GPUs need NCCL, which cannot be loaded: " + why +
                         "; install it (libnccl2), or put its folder into LD_LIBRARY_PATH"};
    return loaded;
  }
  NcclLibrary& nccl = loaded.nccl;
  Status* status = &loaded.status;
  find(library, "ncclGetVersion", &nccl.get_version, status);
  find(library, "ncclGetErrorString", &nccl.get_error_string, status);
  find(library, "ncclGetLastError", &nccl.get_last_error, status);
  find(library, "ncclGetUniqueId", &nccl.get_unique_id, status);
  find(library, "ncclCommInitRankConfig", &nccl.comm_init_rank_config, status);
  find(library, "ncclCommGetAsyncError", &nccl.comm_get_async_error, status);
  find(library, "ncclCommAbort", &nccl.comm_abort, status);
  find(library, "ncclGroupStart", &nccl.group_start, status);
  find(library, "ncclGroupEnd", &nccl.group_end, status);
  find(library, "ncclSend", &nccl.send, status);
  find(library, "ncclRecv", &nccl.recv, status);
  return loaded;
}

}  // namespace

Result<const NcclLibrary*> load_nccl() {
  // Never unloaded or destroyed: a thread that NCCL does not let go of may still be in it.
  static const Loaded* loaded = new Loaded(load());
  if (!loaded->status.is_ok()) return loaded->status;
  return &loaded->nccl;
}

}  // namespace optlease
