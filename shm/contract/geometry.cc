#include "shm/contract/geometry.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr uint64_t divide_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit; }

// What one rank holds: elements of each of its shards.
struct RankShards {
  std::vector<uint64_t> elements;
  uint64_t total = 0;
  uint64_t largest = 0;
  auto operator<=>(const RankShards&) const = default;
};

// The ranks' holdings, each kind once: most ranks of a job hold the same.
std::set<RankShards> distinct_holdings(const SegmentPlan& plan) {
  std::vector<RankShards> ranks(plan.world_size);
  for (const SpaceSpec& space : plan.spaces) {
    for (uint32_t m = 0; m < space.members.size(); ++m) {
      const uint32_t rank = space.members[m].value;
      const uint64_t n = shard_range(space, m).size();
      if (n == 0 || rank >= ranks.size()) continue;
      ranks[rank].elements.push_back(n);
      ranks[rank].total += n;
      ranks[rank].largest = std::max(ranks[rank].largest, n);
    }
  }
  std::set<RankShards> kinds;
  for (RankShards& rank : ranks) {
    std::sort(rank.elements.begin(), rank.elements.end());
    if (rank.total != 0) kinds.insert(std::move(rank));
  }
  return kinds;
}

// The largest share of its state that any rank's slots leave unused with chunks of `chunk`
// elements.
double unused_share(const std::set<RankShards>& holdings, uint64_t chunk) {
  double worst = 0;
  for (const RankShards& rank : holdings) {
    uint64_t slots = 0;
    for (uint64_t n : rank.elements) slots += divide_up(n, chunk);
    const uint64_t slot = round_up(chunk_bytes(std::min(chunk, rank.largest)), kPageBytes);
    const double state = static_cast<double>(rank.total) * kAdamArrayCount * 4;
    worst = std::max(worst, static_cast<double>(slots) * static_cast<double>(slot) / state - 1);
  }
  return worst;
}

// Candidates: the even divisions of every shard size, down to a sixteenth of chunk_max, which leave
// that shard's slots full; each also rounded up to whole pages of slot.
std::set<uint64_t, std::greater<>> chunk_candidates(const std::set<RankShards>& holdings,
                                                    uint64_t chunk_max) {
  constexpr uint64_t kSizesMax = 64;      // more distinct sizes than this add nothing
  constexpr uint64_t kDivisionsMax = 64;  // a shard size
  constexpr uint64_t kPageElements = kPageBytes / 4;
  std::set<uint64_t, std::greater<>> sizes, candidates;
  for (const RankShards& rank : holdings) sizes.insert(rank.elements.begin(), rank.elements.end());
  uint64_t used = 0;
  for (uint64_t n : sizes) {
    if (++used > kSizesMax) break;
    const uint64_t first = divide_up(n, chunk_max), last = first * 16;
    const uint64_t stride = std::max<uint64_t>(1, (last - first) / kDivisionsMax);
    for (uint64_t k = first; k <= last; k += k < first + 8 ? 1 : stride) {
      const uint64_t even = round_up(divide_up(n, k), kShardAlignElements);
      candidates.insert(even);
      candidates.insert(round_up(even, kPageElements));
    }
  }
  const uint64_t step =
      std::max<uint64_t>(1, chunk_max / 64 / kShardAlignElements) * kShardAlignElements;
  for (uint64_t chunk = chunk_max; chunk >= std::max<uint64_t>(step, chunk_max / 16);
       chunk -= step) {
    candidates.insert(chunk);
  }
  return candidates;
}

// The largest chunk that leaves at most kUnusedShare unused in every rank's arena: large chunks
// move faster. Where none does (spaces of very unequal, small shards), the one that leaves the
// least.
uint64_t best_chunk_elements(const SegmentPlan& plan, uint64_t chunk_max) {
  constexpr double kUnusedShare = 0.02;
  const std::set<RankShards> holdings = distinct_holdings(plan);
  uint64_t best = kShardAlignElements;
  double best_share = HUGE_VAL;
  for (uint64_t candidate : chunk_candidates(holdings, chunk_max)) {
    if (candidate > chunk_max) continue;
    const double share = unused_share(holdings, candidate);
    if (share <= kUnusedShare) return candidate;
    if (share < best_share) {
      best_share = share;
      best = candidate;
    }
  }
  return best;
}

// Element counts, flat offsets and shards of one space.
Status lay_out_space(SpaceSpec* space) {
  space->elements = 0;
  for (TensorSpec& tensor : space->tensors) {
    uint64_t elements = 1;
    for (uint64_t dim : tensor.shape) {
      if (dim != 0 && elements > kTensorElementsMax / dim) {
        return {StatusCode::kInvalidArgument,
                "parameter '" + tensor.name + "' has more than 2^46 elements"};
      }
      elements *= dim;
    }
    tensor.elements = elements;
    tensor.flat_offset = space->elements;
    space->elements += elements;
    if (space->elements > kTensorElementsMax) {
      return {StatusCode::kInvalidArgument,
              "space '" + space->name + "' has more than 2^46 elements"};
    }
  }
  space->shard_elements =
      shard_elements_for(space->elements, static_cast<uint32_t>(space->members.size()));
  return Status::ok();
}

}  // namespace

uint64_t array_stride_bytes(uint64_t elements) { return round_up(elements * 4, kArrayAlignBytes); }
uint64_t chunk_bytes(uint64_t elements) { return array_stride_bytes(elements) * kAdamArrayCount; }

uint64_t chunk_elements_for(uint64_t bytes) {
  const uint64_t elements =
      bytes / (kAdamArrayCount * 4) / kShardAlignElements * kShardAlignElements;
  return std::max<uint64_t>(elements, kShardAlignElements);
}

uint64_t shard_elements_for(uint64_t elements, uint32_t members) {
  return members == 0 ? 0 : round_up(divide_up(elements, members), kShardAlignElements);
}

ElementRange shard_range(const SpaceSpec& space, uint32_t member) {
  const uint64_t begin = std::min(space.elements, member * space.shard_elements);
  return {begin, std::min(space.elements, begin + space.shard_elements)};
}

int member_index(const SpaceSpec& space, Rank rank) {
  const auto found = std::lower_bound(space.members.begin(), space.members.end(), rank);
  if (found == space.members.end() || *found != rank) return -1;
  return static_cast<int>(found - space.members.begin());
}

Status lay_out(SegmentPlan* plan, uint64_t chunk_size_bytes) {
  uint64_t largest_shard = 0;
  for (SpaceSpec& space : plan->spaces) {
    OPTLEASE_TRY(lay_out_space(&space));
    largest_shard = std::max(largest_shard, space.shard_elements);
  }
  if (largest_shard == 0) {
    return {StatusCode::kInvalidArgument, "no space has any element: the model is empty"};
  }
  uint64_t chunk = largest_shard;
  if (chunk_size_bytes != 0) {
    chunk = std::min(largest_shard, chunk_elements_for(chunk_size_bytes));
    chunk = best_chunk_elements(*plan, chunk);
  }
  for (SpaceSpec& space : plan->spaces) space.chunk_elements = chunk;
  return Status::ok();
}

ArenaSpec arena_of(const SegmentPlan& plan, Rank rank) {
  ArenaSpec arena;
  arena.split = plan.split;
  uint64_t host = 0, resident = 0;  // the most of any chunk: not always of the longest
  uint64_t last_elements = 0;
  for (uint32_t s = 0; s < plan.spaces.size(); ++s) {
    const SpaceSpec& space = plan.spaces[s];
    const int member = member_index(space, rank);
    if (member < 0) continue;
    const ElementRange shard = shard_range(space, static_cast<uint32_t>(member));
    for (uint64_t at = shard.begin; at < shard.end; at += space.chunk_elements) {
      const ElementRange range{at, std::min(shard.end, at + space.chunk_elements)};
      if (range.size() != last_elements) {
        const ChunkLayout layout = layout_of(plan.split, range.size());
        host = std::max(host, layout.host_bytes);
        resident = std::max(resident, layout.resident_bytes);
        last_elements = range.size();
      }
      arena.state_bytes += range.size() * kAdamArrayCount * 4;
      arena.chunks.push_back({s, range});
    }
  }
  const uint32_t chunks = static_cast<uint32_t>(arena.chunks.size());
  // A page, where nothing travels: slots are told apart by their place.
  arena.slot_bytes = chunks == 0 ? 0 : round_up(std::max<uint64_t>(host, 1), kPageBytes);
  arena.resident_slot_bytes = round_up(resident, kPageBytes);
  arena.slot_count = chunks + std::min(chunks, (plan.prefetch_windows + 2) * plan.window_chunks);
  return arena;
}

uint64_t fnv1a(const void* bytes, uint64_t size, uint64_t seed) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  uint64_t hash = seed;
  for (uint64_t i = 0; i < size; ++i) hash = (hash ^ at[i]) * 0x100000001b3ull;
  return hash;
}

uint64_t layout_hash(const SegmentPlan& plan) {
  uint64_t hash = fnv1a("optlease", 8);
  const auto number = [&](uint64_t value) { hash = fnv1a(&value, sizeof value, hash); };
  const auto text = [&](const std::string& value) {
    number(value.size());
    hash = fnv1a(value.data(), value.size(), hash);
  };
  number(plan.world_size);
  number(plan.window_chunks);
  number(plan.prefetch_windows);
  // Absent where all of the state is the host's: such layouts are older than any split.
  if (plan.split.has_resident()) {
    text(name_of(plan.split.main));
    number(plan.split.resident_millionths);
  }
  number(plan.spaces.size());
  for (const SpaceSpec& space : plan.spaces) {
    text(space.name);
    number(space.members.size());
    for (Rank rank : space.members) number(rank.value);
    number(static_cast<uint32_t>(space.param_dtype));
    number(static_cast<uint32_t>(space.grad_dtype));
    number(space.group);
    number(space.shard_elements);
    number(space.chunk_elements);
    number(space.tensors.size());
    for (const TensorSpec& tensor : space.tensors) {
      text(tensor.name);
      number(tensor.shape.size());
      for (uint64_t dim : tensor.shape) number(dim);
      number(tensor.global_shape.size());
      for (uint64_t dim : tensor.global_shape) number(dim);
      for (uint64_t offset : tensor.global_offset) number(offset);
    }
  }
  return hash;
}

std::string why_invalid(const SegmentPlan& plan) {
  if (plan.world_size == 0 || plan.world_size > kRankCountMax)
    return "world_size is not in 1..1024";
  if (plan.window_chunks == 0 || plan.window_chunks > kWindowChunksMax) {
    return "window_chunks is not in 1..64";
  }
  if (plan.prefetch_windows == 0 || plan.prefetch_windows >= kLeasesInFlightMax) {
    return "prefetch_windows is not in 1..63";
  }
  if (const char* why = why_invalid(plan.split)) return why;
  if (plan.spaces.empty() || plan.spaces.size() > kSpaceCountMax) return "spaces are not 1..2048";
  uint64_t tensors = 0;
  std::set<std::string> names;
  for (const SpaceSpec& space : plan.spaces) {
    if (space.name.empty() || space.name.size() >= kNameBytes)
      return "a space's name is not 1..63 bytes";
    if (space.name.find('\0') != std::string::npos) return "a space's name holds a zero byte";
    if (!names.insert(space.name).second) return "two spaces are named '" + space.name + "'";
    if (space.members.empty()) return "space '" + space.name + "' has no ranks";
    for (size_t i = 0; i < space.members.size(); ++i) {
      if (space.members[i].value >= plan.world_size)
        return "space '" + space.name + "' names a rank past world_size";
      if (i > 0 && space.members[i] <= space.members[i - 1])
        return "ranks of space '" + space.name + "' do not ascend";
    }
    if (space.group >= kGroupCountMax)
      return "space '" + space.name + "' names a group past the last";
    if (bytes_of(space.param_dtype) == 0 || bytes_of(space.grad_dtype) == 0)
      return "space '" + space.name + "' has an unknown dtype";
    if (plan.split.main == MainForm::kBf16Remainder && space.param_dtype != DType::kBF16)
      return "space '" + space.name +
             "' has main weights as BF16 and remainder, and parameters that are not BF16";
    std::set<std::string> tensor_names;
    for (const TensorSpec& tensor : space.tensors) {
      if (tensor.name.empty() || tensor.name.size() >= kTensorNameBytes)
        return "a parameter's name is not 1..191 bytes";
      if (tensor.name.find('\0') != std::string::npos)
        return "a parameter's name holds a zero byte";
      if (!tensor_names.insert(tensor.name).second)
        return "two parameters of space '" + space.name + "' are named '" + tensor.name + "'";
      if (tensor.global_shape.size() != tensor.global_offset.size() ||
          tensor.global_shape.size() > kTensorDimsMax) {
        return "parameter '" + tensor.name +
               "' has a global shape and a global offset of different lengths";
      }
      if (tensor.shape.size() > kTensorDimsMax)
        return "parameter '" + tensor.name + "' has more than 8 dimensions";
    }
    tensors += space.tensors.size();
  }
  if (tensors > kTensorCountMax) return "more than 2^20 parameters";
  return {};
}

std::string why_not_laid_out(const SegmentPlan& plan) {
  std::vector<uint64_t> chunks(plan.world_size);
  for (const SpaceSpec& space : plan.spaces) {
    uint64_t offset = 0;
    for (const TensorSpec& tensor : space.tensors) {
      uint64_t elements = 1;
      for (uint64_t dim : tensor.shape) {
        if (dim != 0 && elements > kTensorElementsMax / dim) return "a shape overflows";
        elements *= dim;
      }
      if (elements != tensor.elements || tensor.flat_offset != offset) {
        return "the shape or place of '" + tensor.name + "' does not hold";
      }
      offset += elements;
      if (offset > kTensorElementsMax) return "space '" + space.name + "' overflows";
    }
    const auto members = static_cast<uint32_t>(space.members.size());
    if (space.elements != offset || space.shard_elements != shard_elements_for(offset, members)) {
      return "the element counts of space '" + space.name + "' do not hold";
    }
    if (space.chunk_elements == 0 || space.chunk_elements % kShardAlignElements != 0) {
      return "the chunk size of space '" + space.name + "' is no multiple of 64 elements";
    }
    for (uint32_t m = 0; m < members; ++m) {
      uint64_t& of_rank = chunks[space.members[m].value];
      of_rank += divide_up(shard_range(space, m).size(), space.chunk_elements);
      if (of_rank > kRankChunkCountMax) return "a rank has more than 2^22 chunks";
    }
  }
  return {};
}

}  // namespace optlease
