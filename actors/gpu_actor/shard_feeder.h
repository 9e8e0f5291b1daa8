// Tells a GatherFeed, chunk by chunk in their order, what of a rank's shards is final. The GPU
// actor asks it each turn. Pure but for the feed: it knows neither windows nor devices.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "actors/gpu_actor/gather_feed.h"
#include "shm/contract/geometry.h"
#include "shm/contract/ids.h"

namespace optlease {

class ShardFeeder {
 public:
  // `arena` outlives the feeder.
  ShardFeeder(const SegmentPlan& plan, Rank rank, const ArenaSpec& arena);

  // A gather of `step` is about to be posted, and none is under way.
  void begin(Step step, GatherFeed* feed);
  // `published(chunk)`: the step whose parameters of it are in the buffer and stay there.
  void advance(const std::function<Step(uint32_t chunk)>& published, GatherFeed* feed);
  // Of the gather begun last; kNoStep before the first.
  Step step() const { return step_; }
  // All shards are final.
  bool through() const { return next_ == arena_.chunks.size(); }

 private:
  const ArenaSpec& arena_;
  std::vector<uint64_t> shard_begins_;  // by space
  Step step_ = kNoStep;
  uint32_t next_ = 0;  // the first chunk that is not final
};

}  // namespace optlease
