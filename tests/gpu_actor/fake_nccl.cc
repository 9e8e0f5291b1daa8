// NCCL on the fake GPU (fake_gpu.h), in place of actors/gpu_actor/nccl_load.cc: communicators whose
// messages go through mailboxes. A group of transfers is one operation of its stream.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "actors/gpu_actor/nccl_library.h"
#include "tests/gpu_actor/fake_gpu.h"
#include "tests/gpu_actor/fake_gpu_world.h"

namespace optlease {
namespace {

using fake::enqueue;
using fake::Guard;
using fake::world;

struct GroupState {
  int depth = 0;
  std::vector<std::function<bool()>> operations;  // of the group, in any order
  cudaStream_t stream = nullptr;
  ncclComm* comm = nullptr;
};
thread_local GroupState group;

std::atomic<bool> aborts_are_held{false};
std::atomic<int> not_held{-1};  // whose rank
std::atomic<uint64_t> aborts{0};
std::atomic<uint64_t> aborts_held{0};
std::atomic<int> version{NCCL_VERSION_CODE};
std::atomic<bool> is_installed{true};

ncclResult_t add_transfer(void* data, size_t bytes, int peer, ncclComm* comm, cudaStream_t stream,
                          bool is_receive) {
  OPTLEASE_CHECK(group.depth > 0, "a transfer outside a group");
  OPTLEASE_CHECK(group.stream == nullptr || group.stream == stream, "two streams in a group");
  group.stream = stream;
  group.comm = comm;
  group.operations.push_back([=] {
    if (comm->aborted) return true;
    if (!is_receive) {
      const char* from = static_cast<const char*>(data);
      world().mail[{comm->id, comm->rank, peer}].emplace_back(from, from + bytes);
      return true;
    }
    std::deque<std::vector<char>>& box = world().mail[{comm->id, peer, comm->rank}];
    if (box.empty()) return false;
    OPTLEASE_CHECK(box.front().size() == bytes, "%zu bytes for a receive of %zu",
                   box.front().size(), bytes);
    std::memcpy(data, box.front().data(), bytes);
    box.pop_front();
    return true;
  });
  return ncclSuccess;
}

ncclResult_t get_version(int* out) {
  *out = version;
  return ncclSuccess;
}
const char* get_error_string(ncclResult_t) { return "a fake error"; }
const char* get_last_error(ncclComm_t) { return ""; }
ncclResult_t get_unique_id(ncclUniqueId* id) {
  const Guard guard(world().mutex);
  std::memset(id, 0, sizeof *id);
  const std::string name = "id" + std::to_string(++world().ids);
  std::memcpy(id, name.data(), name.size());
  return ncclSuccess;
}
ncclResult_t comm_init_rank_config(ncclComm_t* comm, int, ncclUniqueId id, int rank,
                                   ncclConfig_t* config) {
  const Guard guard(world().mutex);
  if (config->blocking != 0) return ncclInvalidUsage;
  *comm = new ncclComm{id.internal, rank, false, 3};
  world().comms.insert(*comm);
  return ncclInProgress;
}
ncclResult_t comm_get_async_error(ncclComm_t comm, ncclResult_t* state) {
  const Guard guard(world().mutex);
  *state = comm->polls_until_settled > 0 ? ncclInProgress : ncclSuccess;
  comm->polls_until_settled -= comm->polls_until_settled > 0 ? 1 : 0;
  return ncclSuccess;
}
// As the real one: comes back when the device has left its kernels; then the handle is void.
ncclResult_t comm_abort(ncclComm_t comm) {
  ++aborts;
  if (comm->rank != not_held) {
    ++aborts_held;
    while (aborts_are_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --aborts_held;
  }
  const Guard guard(world().mutex);
  comm->aborted = true;
  for (const cudaStream_t stream : world().streams)
    for (uint64_t left = stream->queue.size(); left > 0 && stream->queue.front()(); --left)
      stream->queue.pop_front();
  world().comms.erase(comm);
  world().aborted.emplace_back(comm);
  return ncclSuccess;
}
ncclResult_t group_start() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t group_end() {
  if (--group.depth > 0 || group.operations.empty()) return ncclSuccess;
  const Guard guard(world().mutex);
  // One kernel: its transfers progress independently, and it ends when all have.
  auto left = std::make_shared<std::vector<std::function<bool()>>>(std::move(group.operations));
  enqueue(group.stream, [left] {
    std::erase_if(*left, [](const std::function<bool()>& operation) { return operation(); });
    return left->empty();
  });
  group.comm->polls_until_settled = static_cast<int>(world().random() % 3);
  group.operations.clear();
  group.stream = nullptr;
  return ncclInProgress;
}
ncclResult_t send(const void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add_transfer(const_cast<void*>(data), count, peer, comm, stream, false);
}
ncclResult_t recv(void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add_transfer(data, count, peer, comm, stream, true);
}

constexpr NcclLibrary kFake{get_version,
                            get_error_string,
                            get_last_error,
                            get_unique_id,
                            comm_init_rank_config,
                            comm_get_async_error,
                            comm_abort,
                            group_start,
                            group_end,
                            send,
                            recv};

}  // namespace

Result<const NcclLibrary*> load_nccl() {
  if (!is_installed) return Status(StatusCode::kUnsupported, "libnccl.so.2 is not there");
  return &kFake;
}

void fake_nccl_hold_aborts(bool held, int but_of_rank) {
  not_held = but_of_rank;
  aborts_are_held = held;
}
uint64_t fake_nccl_aborts() { return aborts; }
uint64_t fake_nccl_aborts_held() { return aborts_held; }
void fake_nccl_version(int number) { version = number; }
void fake_nccl_is_installed(bool installed) { is_installed = installed; }

}  // namespace optlease
