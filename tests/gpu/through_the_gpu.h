// Collectives on host memory by way of the GPU's: copies in, calls, copies out. So the checks of
// tests/gpu_actor/group_data.h, which are the CPU collectives' too, drive those of the GPU.
#pragma once

#include <cstring>
#include <vector>

#include "actors/gpu_actor/collectives.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu_actor/group_data.h"

namespace optlease {

class ThroughTheGpu final : public Collectives {
 public:
  ThroughTheGpu(Collectives* inner, Rank rank) : inner_(inner), rank_(rank) {}
  Status connect(uint64_t epoch, Rank rank, uint32_t world, uint64_t timeout_ms) override {
    return inner_->connect(epoch, rank, world, timeout_ms);
  }
  Status reduce_scatter(const ReduceScatterCall& call) override {
    const uint64_t bytes = elements_of(*call.map) * bytes_of(call.grad_dtype);
    GpuBytes grads(bytes);
    grads.put(call.grads, bytes);
    ElementRange mine;
    for (size_t i = 0; i < call.map->members.size(); ++i)
      if (call.map->members[i] == rank_) mine = call.map->ranges[i];
    GpuBytes shard(mine.size() * 4);
    shard.put(call.shard_out, mine.size() * 4);
    ReduceScatterCall inner = call;
    inner.grads = grads.data();
    inner.shard_out = reinterpret_cast<float*>(shard.data());
    const Status status = inner_->reduce_scatter(inner);
    if (!status.is_ok()) return status;
    take(shard, call.shard_out, mine.size() * 4);
    take(grads, const_cast<void*>(call.grads), bytes);
    return status;
  }
  Status all_gather(const AllGatherCall& call) override {
    const uint64_t bytes = elements_of(*call.map) * bytes_of(call.param_dtype);
    GpuBytes params(bytes);
    params.put(call.params, bytes);
    AllGatherCall inner = call;
    inner.params = params.data();
    const Status status = inner_->all_gather(inner);
    if (status.is_ok()) take(params, call.params, bytes);
    return status;
  }
  Status all_gather_fixed(CallTag tag, const void* mine, uint32_t bytes, void* out) override {
    return inner_->all_gather_fixed(tag, mine, bytes, out);
  }
  void abort(uint64_t epoch) override { inner_->abort(epoch); }

 private:
  static void take(const GpuBytes& from, void* to, uint64_t bytes) {
    const std::vector<char> all = from.take();
    std::memcpy(to, all.data(), bytes);
  }

  Collectives* inner_;
  Rank rank_;
};

}  // namespace optlease
