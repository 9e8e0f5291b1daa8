#include "actors/gpu_actor/shard_feeder.h"

namespace optlease {

ShardFeeder::ShardFeeder(const SegmentPlan& plan, Rank rank, const ArenaSpec& arena)
    : arena_(arena), shard_begins_(plan.spaces.size(), 0) {
  for (size_t s = 0; s < plan.spaces.size(); ++s) {
    const int member = member_index(plan.spaces[s], rank);
    if (member < 0) continue;
    shard_begins_[s] = shard_range(plan.spaces[s], static_cast<uint32_t>(member)).begin;
  }
}

void ShardFeeder::begin(Step step, GatherFeed* feed) {
  step_ = step;
  next_ = 0;
  feed->begin(shard_begins_);
}

// Spaces in order and elements ascending, as the gather goes through them: a chunk that is final
// before one in front of it is told of with that one.
void ShardFeeder::advance(const std::function<Step(uint32_t)>& published, GatherFeed* feed) {
  while (!through() && published(next_) == step_) {
    const ChunkSpec& chunk = arena_.chunks[next_++];
    feed->publish(chunk.space, chunk.range.end);
  }
}

}  // namespace optlease
