#include "tests/gpu_actor/fake_gpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "shm/contract/status.h"
#include "tests/gpu_actor/fake_gpu_world.h"

namespace optlease {
namespace fake {
namespace {

// A few heads, of streams of any rank.
void run_some() {
  World& all = world();
  if (all.streams.empty() || all.hangs) return;
  for (uint64_t tries = all.random() % 8; tries > 0; --tries) {
    auto at = all.streams.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(all.random() % all.streams.size()));
    std::deque<std::function<bool()>>& queue = (*at)->queue;
    if (!queue.empty() && queue.front()()) queue.pop_front();
  }
}

// A copy may not go over the border of what was registered at once.
bool crosses_a_border(const void* host, size_t bytes) {
  const char* begin = static_cast<const char*>(host);
  for (const auto& [base, size] : world().registered) {
    const bool begins_in = begin >= base && begin < base + size;
    const bool ends_in = begin + bytes > base && begin + bytes <= base + size;
    if (begins_in != ends_in) return true;
  }
  return false;
}

cudaError_t answer(cudaError_t state) {
  if (state != cudaSuccess) last_error() = state;
  return state;
}

cudaError_t allocate(const char* call, void** at, size_t bytes) {
  const cudaError_t failed = fate(call);
  if (failed != cudaSuccess) return failed;
  *at = std::calloc(bytes, 1);
  return *at != nullptr ? cudaSuccess : answer(cudaErrorMemoryAllocation);
}

cudaError_t make_stream(const char* call, cudaStream_t* stream) {
  const cudaError_t failed = fate(call);
  if (failed != cudaSuccess) return failed;
  const Guard guard(world().mutex);
  *stream = new CUstream_st;
  world().streams.insert(*stream);
  return cudaSuccess;
}

}  // namespace
}  // namespace fake

void fake_gpu_seed(uint64_t seed) {
  const fake::Guard guard(fake::world().mutex);
  fake::world().random.seed(seed);
}

uint64_t fake_gpu_leftovers() {
  const fake::Guard guard(fake::world().mutex);
  return fake::world().streams.size() + fake::world().comms.size();
}

void fake_gpu_fail(const std::string& call, cudaError_t error) {
  const fake::Guard guard(fake::world().mutex);
  if (error == cudaSuccess) {
    fake::world().failing.erase(call);
  } else {
    fake::world().failing[call] = error;
  }
}

void fake_gpu_hang(bool hangs) {
  const fake::Guard guard(fake::world().mutex);
  fake::world().hangs = hangs;
}

}  // namespace optlease

using optlease::fake::answer;
using optlease::fake::enqueue;
using optlease::fake::fate;
using optlease::fake::Guard;
using optlease::fake::world;

#define RETURN_IF_FAILING(call) \
  if (const cudaError_t failed = fate(call); failed != cudaSuccess) return failed

extern "C" {

const char* cudaGetErrorString(cudaError_t) { return "a fake error"; }
const char* cudaGetErrorName(cudaError_t) { return "fake"; }
cudaError_t cudaGetLastError() { return std::exchange(optlease::fake::last_error(), cudaSuccess); }
cudaError_t cudaGetDeviceCount(int* count) {
  RETURN_IF_FAILING("cudaGetDeviceCount");
  *count = 8;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return fate("cudaSetDevice"); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 4;
  return fate("cudaDeviceGetAttribute");
}
cudaError_t cudaDeviceGetPCIBusId(char* address, int bytes, int device) {
  std::snprintf(address, static_cast<size_t>(bytes), "0000:%02X:00.0", 0x3a + device);
  return fate("cudaDeviceGetPCIBusId");
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof *properties);
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = size_t{1} << 30;
  return fate("cudaMemGetInfo");
}
cudaError_t cudaMalloc(void** at, size_t bytes) {
  return optlease::fake::allocate("cudaMalloc", at, bytes);
}
cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned) {
  return optlease::fake::allocate("cudaHostAlloc", at, bytes);
}
cudaError_t cudaFree(void* at) {
  std::free(at);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* at) { return cudaFree(at); }
cudaError_t cudaHostRegister(void* base, size_t bytes, unsigned) {
  RETURN_IF_FAILING("cudaHostRegister");
  const Guard guard(world().mutex);
  world().registered[static_cast<const char*>(base)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* base) {
  const Guard guard(world().mutex);
  world().registered.erase(static_cast<const char*>(base));
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  RETURN_IF_FAILING("cudaMemcpyAsync");
  const Guard guard(world().mutex);
  if (optlease::fake::crosses_a_border(to, bytes) || optlease::fake::crosses_a_border(from, bytes))
    return answer(cudaErrorInvalidValue);
  enqueue(stream, [=] { return std::memcpy(to, from, bytes), true; });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  RETURN_IF_FAILING("cudaMemsetAsync");
  enqueue(stream, [=] { return std::memset(at, value, bytes), true; });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* given) {
  RETURN_IF_FAILING("cudaLaunchHostFunc");
  enqueue(stream, [=] { return function(given), true; });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return optlease::fake::make_stream("cudaStreamCreateWithPriority", stream);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return optlease::fake::make_stream("cudaStreamCreateWithFlags", stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Guard guard(world().mutex);
  OPTLEASE_CHECK(stream->queue.empty(), "%zu operations left", stream->queue.size());
  world().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  RETURN_IF_FAILING("cudaStreamQuery");
  const Guard guard(world().mutex);
  optlease::fake::run_some();
  return answer(stream->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    (void)cudaGetLastError();
    std::this_thread::yield();
  }
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  RETURN_IF_FAILING("cudaEventCreateWithFlags");
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  RETURN_IF_FAILING("cudaEventRecord");
  const Guard guard(world().mutex);
  enqueue(stream, [event, number = ++event->recorded] {
    event->reached = std::max(event->reached, number);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  RETURN_IF_FAILING("cudaEventQuery");
  const Guard guard(world().mutex);
  optlease::fake::run_some();
  return answer(event->reached == event->recorded ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  RETURN_IF_FAILING("cudaStreamWaitEvent");
  const Guard guard(world().mutex);
  enqueue(stream, [event, number = event->recorded] { return event->reached >= number; });
  return cudaSuccess;
}

}  // extern "C"
