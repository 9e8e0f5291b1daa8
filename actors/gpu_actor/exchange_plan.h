// How a collective call is cut into pieces: which elements of whose shard travel in which round.
// Pure; equal on every member but for `me`. Used by gloo_collectives.cc and nccl_collectives.cc,
// which move the pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "actors/gpu_actor/collectives.h"

namespace optlease {

struct ExchangePlan {
  const ShardMap* map = nullptr;
  std::span<const uint8_t> needs;
  uint32_t me = 0;
  uint64_t element_bytes = 0;
  uint64_t piece_elements = 0;  // a multiple of kShardAlignElements
  uint64_t piece_count = 0;     // of the longest shard that travels

  uint32_t member_count() const { return static_cast<uint32_t>(map->members.size()); }
  bool i_need() const { return needs[me] != 0; }
  // Round `index` of `member`'s shard; empty once the shard is through.
  ElementRange piece(uint32_t member, uint64_t index) const;
};

// `rank`'s place among the members, or -1.
int member_index_in(const ShardMap& map, Rank rank);

// Which shards travel: those that are needed (reduce-scatter), or all (all-gather).
enum class ShardsMoved { kNeeded, kAll };

// What a piece of an all-gather may have: a sixteenth of the longest shard, so that little is left
// to send after its last window, but within [least, most]. Equal on every member.
uint64_t gather_piece_bytes(const ShardMap& map, DType dtype, uint64_t least, uint64_t most);

// Waits until what this rank sends in round `index` is final; at once where it sends nothing, or
// where the call has no feed. The other arguments are GatherFeed::await's.
Status await_piece(const AllGatherCall& call, const ExchangePlan& plan, uint64_t index,
                   uint64_t timeout_ms, const std::function<Status()>& check);

// REQUIRES: `rank` is a member; map and needs outlive the plan; piece_bytes_max holds
// kShardAlignElements elements.
ExchangePlan plan_exchange(const ShardMap& map, std::span<const uint8_t> needs, Rank rank,
                           DType dtype, uint64_t piece_bytes_max, ShardsMoved moved);

}  // namespace optlease
