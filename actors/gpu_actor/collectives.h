// What the ranks of a job exchange: gradients to the owners of shards, updated parameters back, and
// small facts that all must know. The GPU actor calls it from one thread; implementations are
// gloo_collectives.h (CPU device) and, for GPUs, NCCL.
//
// A group epoch is one set of incarnations. Any failure breaks the whole epoch: from then on every
// call fails until the ranks connect under a later one. All ranks make the same calls in the same
// order. Results are combined in member order, never in order of arrival: ((m0 + m1) + m2) + ...,
// so the bits depend on no timing. It decides nothing about steps and retries nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "actors/gpu_actor/gather_feed.h"
#include "shm/contract/dtype.h"
#include "shm/contract/geometry.h"
#include "shm/contract/ids.h"
#include "shm/contract/status.h"

namespace optlease {

// One space as the collectives see it. Equal on every member.
struct ShardMap {
  std::vector<Rank> members;         // ascending
  std::vector<ElementRange> ranges;  // by member: its shard; may be empty
};
ShardMap shard_map_of(const SpaceSpec& space);

// The entries of `needs_by_rank` (one byte a rank, as GoReduce and GoGather carry them) that belong
// to the space's members.
std::vector<uint8_t> needs_of_members(const SpaceSpec& space,
                                      std::span<const uint8_t> needs_by_rank);

// Names one call, equal on every rank and unlike any other call's of the same kind and group epoch.
// A call never takes another call's bytes.
struct CallTag {
  Step step = 0;
  uint32_t space = 0;  // < kSpaceCountMax; for all_gather_fixed any small number
};

struct ReduceScatterCall {
  CallTag tag;
  const ShardMap* map = nullptr;
  std::span<const uint8_t> needs;  // by member: 1 = it receives its shard's sum; others only send
  DType grad_dtype = DType::kF32;
  const void* grads = nullptr;  // the whole space; read only
  float* shard_out = nullptr;   // this member's shard; may be null where it needs nothing
};

struct AllGatherCall {
  CallTag tag;
  const ShardMap* map = nullptr;
  std::span<const uint8_t> needs;  // by member: 1 = it receives the others' shards
  DType param_dtype = DType::kF32;
  void* params = nullptr;  // the whole space; this member's own range is the input, and not written
  // Says how far the own range is final: each piece waits for its part. Null: all of it is.
  GatherFeed* feed = nullptr;
};

// One thread calls; abort() alone may come from any thread.
class Collectives {
 public:
  virtual ~Collectives() = default;

  // Leaves the current group, if any, and joins `group_epoch` as `rank` of `world`. Epochs never
  // repeat. `timeout_ms` limits the connecting itself and, in every later call, the time in which
  // nothing arrives; where a call has a feed, since it last moved or was renewed. Timeout,
  // PeerLost, Cancelled.
  virtual Status connect(uint64_t group_epoch, Rank rank, uint32_t world, uint64_t timeout_ms) = 0;

  // REQUIRES: connect() was called. A rank that is no member returns at once, as does one that has
  // nothing to send or receive. A space of one member, like a world of one, uses no network.
  virtual Status reduce_scatter(const ReduceScatterCall& call) = 0;
  virtual Status all_gather(const AllGatherCall& call) = 0;

  // `bytes` (1..kFixedBytesMax) from each rank of the group, in rank order, into `out`
  // (world x bytes). `mine` may not overlap `out`.
  static constexpr uint32_t kFixedBytesMax = 4096;
  virtual Status all_gather_fixed(CallTag tag, const void* mine, uint32_t bytes, void* out) = 0;

  // Every call of `group_epoch` or an earlier one, blocked now or still to come, returns Cancelled
  // promptly (connect included). Returns at once; any thread. A call that waits for its feed looks
  // at the feed's next look_now().
  virtual void abort(uint64_t group_epoch) = 0;
};

}  // namespace optlease
