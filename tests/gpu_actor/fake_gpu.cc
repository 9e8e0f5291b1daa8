#include "tests/gpu_actor/fake_gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "kernels/reduce_cpu.h"
#include "kernels/reduce_cuda.h"
#include "shm/contract/status.h"

// Handles are pointers to these.
struct CUevent_st {
  uint64_t recorded = 0;  // times it was put into a stream
  uint64_t reached = 0;
};
struct CUstream_st {
  // An operation says whether it could run; what cannot stays at the head.
  std::deque<std::function<bool()>> queue;
};
struct ncclComm {
  std::string id;
  int rank = 0;
  bool aborted = false;
  int polls_until_settled = 0;
};

namespace optlease {
namespace {

using Message = std::vector<char>;

struct World {
  std::recursive_mutex mutex;
  std::mt19937_64 random{1};
  std::set<cudaStream_t> streams;
  std::set<ncclComm*> comms;
  std::vector<std::unique_ptr<ncclComm>> aborted;  // operations may still name them
  std::map<std::tuple<std::string, int, int>, std::deque<Message>> mail;  // id, from, to
  uint64_t ids = 0;
};

World& world() {
  static World the_world;
  return the_world;
}

struct GroupState {
  int depth = 0;
  std::vector<std::function<bool()>> operations;  // of the group, in any order
  cudaStream_t stream = nullptr;
  ncclComm* comm = nullptr;
};
thread_local GroupState group;

using Guard = std::lock_guard<std::recursive_mutex>;

void enqueue(cudaStream_t stream, std::function<bool()> operation) {
  const Guard guard(world().mutex);
  stream->queue.push_back(std::move(operation));
}

// A few heads, of streams of any rank.
void run_some() {
  World& all = world();
  if (all.streams.empty()) return;
  for (uint64_t tries = all.random() % 8; tries > 0; --tries) {
    auto at = all.streams.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(all.random() % all.streams.size()));
    std::deque<std::function<bool()>>& queue = (*at)->queue;
    if (!queue.empty() && queue.front()()) queue.pop_front();
  }
}

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
    std::deque<Message>& box = world().mail[{comm->id, peer, comm->rank}];
    if (box.empty()) return false;
    OPTLEASE_CHECK(box.front().size() == bytes, "%zu bytes for a receive of %zu",
                   box.front().size(), bytes);
    std::memcpy(data, box.front().data(), bytes);
    box.pop_front();
    return true;
  });
  return ncclSuccess;
}

}  // namespace

void fake_gpu_seed(uint64_t seed) {
  const Guard guard(world().mutex);
  world().random.seed(seed);
}

uint64_t fake_gpu_leftovers() {
  const Guard guard(world().mutex);
  return world().streams.size() + world().comms.size();
}

cudaError_t sum_shards_cuda(float* out, const void* const* inputs, uint32_t input_count,
                            DType dtype, uint64_t elements, cudaStream_t stream) {
  enqueue(stream, [=, at = std::vector<const void*>(inputs, inputs + input_count)] {
    sum_shards(out, at.data(), input_count, dtype, elements);
    return true;
  });
  return cudaSuccess;
}

cudaError_t preload_reduce_cuda() { return cudaSuccess; }

}  // namespace optlease

using optlease::enqueue;
using optlease::group;
using optlease::Guard;
using optlease::world;

extern "C" {

const char* cudaGetErrorString(cudaError_t) { return "a fake error"; }
const char* cudaGetErrorName(cudaError_t) { return "fake"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof *properties);
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** at, size_t bytes) {
  *at = std::calloc(bytes, 1);
  return *at != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned) { return cudaMalloc(at, bytes); }
cudaError_t cudaFree(void* at) {
  std::free(at);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* at) { return cudaFree(at); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  enqueue(stream, [=] { return std::memcpy(to, from, bytes), true; });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const Guard guard(world().mutex);
  *stream = new CUstream_st;
  world().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Guard guard(world().mutex);
  OPTLEASE_CHECK(stream->queue.empty(), "%zu operations left", stream->queue.size());
  world().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  while (true) {
    {
      const Guard guard(world().mutex);
      if (stream->queue.empty()) return cudaSuccess;
      optlease::run_some();
    }
    std::this_thread::yield();
  }
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Guard guard(world().mutex);
  enqueue(stream, [event, number = ++event->recorded] {
    event->reached = std::max(event->reached, number);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Guard guard(world().mutex);
  optlease::run_some();
  return event->reached == event->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Guard guard(world().mutex);
  enqueue(stream, [event, number = event->recorded] { return event->reached >= number; });
  return cudaSuccess;
}

const char* ncclGetErrorString(ncclResult_t) { return "a fake error"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Guard guard(world().mutex);
  std::memset(id, 0, sizeof *id);
  const std::string name = "id" + std::to_string(++world().ids);
  std::memcpy(id, name.data(), name.size());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Guard guard(world().mutex);
  if (config->blocking != 0) return ncclInvalidUsage;
  *comm = new ncclComm{id.internal, rank, false, 3};
  world().comms.insert(*comm);
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Guard guard(world().mutex);
  *state = comm->polls_until_settled > 0 ? ncclInProgress : ncclSuccess;
  comm->polls_until_settled -= comm->polls_until_settled > 0 ? 1 : 0;
  return ncclSuccess;
}
// As the real one: comes back when the device has left its kernels; then the handle is void.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Guard guard(world().mutex);
  comm->aborted = true;
  for (const cudaStream_t stream : world().streams)
    for (uint64_t left = stream->queue.size(); left > 0 && stream->queue.front()(); --left)
      stream->queue.pop_front();
  world().comms.erase(comm);
  world().aborted.emplace_back(comm);
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
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
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return optlease::add_transfer(const_cast<void*>(data), count, peer, comm, stream, false);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return optlease::add_transfer(data, count, peer, comm, stream, true);
}

}  // extern "C"
