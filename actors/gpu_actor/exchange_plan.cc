#include "actors/gpu_actor/exchange_plan.h"

#include <algorithm>

#include "shm/contract/limits.h"

namespace optlease {
namespace {
constexpr uint64_t kGatherPiecesAShard = 16;
}  // namespace

ElementRange ExchangePlan::piece(uint32_t member, uint64_t index) const {
  const ElementRange& range = map->ranges[member];
  const uint64_t begin = std::min(range.end, range.begin + index * piece_elements);
  return {begin, std::min(range.end, begin + piece_elements)};
}

int member_index_in(const ShardMap& map, Rank rank) {
  const auto at = std::find(map.members.begin(), map.members.end(), rank);
  return at == map.members.end() ? -1 : static_cast<int>(at - map.members.begin());
}

ExchangePlan plan_exchange(const ShardMap& map, std::span<const uint8_t> needs, Rank rank,
                           DType dtype, uint64_t piece_bytes_max, ShardsMoved moved) {
  const auto members = map.members.size();
  OPTLEASE_CHECK(map.ranges.size() == members && needs.size() == members,
                 "%zu members, %zu ranges, %zu needs", members, map.ranges.size(), needs.size());
  const int me = member_index_in(map, rank);
  OPTLEASE_CHECK(me >= 0, "rank %u is no member", rank.value);
  const uint64_t element_bytes = bytes_of(dtype);
  OPTLEASE_CHECK(element_bytes != 0, "dtype %u", static_cast<uint32_t>(dtype));
  const uint64_t piece_elements =
      piece_bytes_max / element_bytes / kShardAlignElements * kShardAlignElements;
  OPTLEASE_CHECK(piece_elements > 0, "pieces of %llu bytes for %zu members",
                 static_cast<unsigned long long>(piece_bytes_max), members);
  uint64_t pieces = 0;
  for (size_t member = 0; member < members; ++member)
    if (moved == ShardsMoved::kAll || needs[member])
      pieces = std::max(pieces, (map.ranges[member].size() + piece_elements - 1) / piece_elements);
  return {&map, needs, static_cast<uint32_t>(me), element_bytes, piece_elements, pieces};
}

uint64_t gather_piece_bytes(const ShardMap& map, DType dtype, uint64_t least, uint64_t most) {
  uint64_t longest = 0;
  for (const ElementRange& range : map.ranges) longest = std::max(longest, range.size());
  return std::clamp(longest * bytes_of(dtype) / kGatherPiecesAShard, least, most);
}

Status await_piece(const AllGatherCall& call, const ExchangePlan& plan, uint64_t index,
                   uint64_t timeout_ms, const std::function<Status()>& check) {
  if (call.feed == nullptr) return Status::ok();
  const ElementRange piece = plan.piece(plan.me, index);
  bool sends = false;
  for (uint32_t member = 0; member < plan.member_count(); ++member)
    sends = sends || (member != plan.me && plan.needs[member] != 0);
  if (!sends || piece.size() == 0) return Status::ok();
  return call.feed->await(call.tag.space, piece.end, timeout_ms, check);
}

}  // namespace optlease
