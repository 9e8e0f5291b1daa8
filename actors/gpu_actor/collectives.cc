#include "actors/gpu_actor/collectives.h"

namespace optlease {

ShardMap shard_map_of(const SpaceSpec& space) {
  ShardMap map;
  map.members = space.members;
  for (uint32_t member = 0; member < space.members.size(); ++member)
    map.ranges.push_back(shard_range(space, member));
  return map;
}

std::vector<uint8_t> needs_of_members(const SpaceSpec& space,
                                      std::span<const uint8_t> needs_by_rank) {
  std::vector<uint8_t> needs;
  for (const Rank member : space.members) {
    OPTLEASE_CHECK(member.value < needs_by_rank.size(), "rank %u of %zu", member.value,
                   needs_by_rank.size());
    needs.push_back(needs_by_rank[member.value] != 0);
  }
  return needs;
}

}  // namespace optlease
