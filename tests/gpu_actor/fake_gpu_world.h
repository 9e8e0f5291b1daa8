// What the parts of the fake GPU share (fake_gpu.h). No test includes it.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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

namespace optlease::fake {

struct World {
  std::recursive_mutex mutex;
  std::mt19937_64 random{1};
  bool hangs = false;
  std::set<cudaStream_t> streams;
  std::set<ncclComm*> comms;
  std::vector<std::unique_ptr<ncclComm>> aborted;  // operations may still name them
  std::map<std::tuple<std::string, int, int>, std::deque<std::vector<char>>> mail;  // id, from, to
  std::map<std::string, cudaError_t> failing;                                       // by call
  std::map<const char*, size_t> registered;  // host memory: begin, bytes
  uint64_t ids = 0;
};

inline World& world() {
  static World* the_world = new World;
  return *the_world;
}

using Guard = std::lock_guard<std::recursive_mutex>;

inline void enqueue(cudaStream_t stream, std::function<bool()> operation) {
  const Guard guard(world().mutex);
  stream->queue.push_back(std::move(operation));
}

// As the runtime keeps it: the thread's last error, until somebody asks for it.
inline cudaError_t& last_error() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

// What a call returns before it does anything: success, unless it is to fail.
inline cudaError_t fate(const char* call) {
  const Guard guard(world().mutex);
  const auto found = world().failing.find(call);
  if (found == world().failing.end()) return cudaSuccess;
  return last_error() = found->second;
}

// What a launch returns: an error that somebody left behind passes for its own.
inline cudaError_t after_launch(const char* call) {
  const cudaError_t error = fate(call);
  if (error != cudaSuccess) return error;
  return std::exchange(last_error(), cudaSuccess);
}

}  // namespace optlease::fake
