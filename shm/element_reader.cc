#include "shm/element_reader.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>

#include "shm/contract/remainder.h"

namespace optlease {
namespace {

// Main weights that lie in halves are joined in pieces of this.
constexpr uint64_t kJoinElements = 4096;

// The two slots of a chunk's committed version. Every chunk of format version 2 has one of each.
struct CommittedSlots {
  SlotEntry entry;
  const char* host = nullptr;
  const char* resident = nullptr;  // null where the state has no resident part
};

Status find_slots(const ControlView& view, std::span<const ArenaView> arenas, Rank rank,
                  ChunkIndex chunk, CommittedSlots* slots) {
  slots->entry = view.entries(rank, chunk).front();
  const RankRecord& record = view.rank(rank);
  const ArenaView arena = rank.value < arenas.size() ? arenas[rank.value] : ArenaView{};
  const bool has_resident = view.split().has_resident();
  if (arena.base == nullptr || arena.bytes < record.arena_bytes ||
      (has_resident && arena.resident == nullptr)) {
    return {StatusCode::kInvalidArgument,
            format("the arena of rank %u, or its resident segment, is not mapped", rank.value)};
  }
  const uint32_t slot = slots->entry.slot;
  if (slot >= record.slot_count) {
    return {StatusCode::kCorrupt, format("rank %u, chunk %u is committed in slot %u of %u",
                                         rank.value, chunk.value, slot, record.slot_count)};
  }
  slots->host = arena.base + kArenaSlotsOffset + slot * record.slot_bytes;
  if (!has_resident) return Status::ok();
  // Again at each chunk: what a running job saved it may void.
  OPTLEASE_TRY(arena.resident->check_whole());
  slots->resident = arena.resident->slots() + slot * arena.resident->slot_bytes();
  return Status::ok();
}

using OnRun = std::function<Status(uint64_t first, uint64_t count, const float* data)>;

// Elements [range) of main, whose halves lie apart.
Status join_run(const ChunkLayout& layout, const CommittedSlots& slots, const char* remainders,
                ElementRange range, const OnRun& on_run) {
  const char* rounded = slots.resident + layout.rounded.offset + range.begin * sizeof(uint16_t);
  float joined[kJoinElements];
  for (uint64_t at = range.begin; at < range.end; at += kJoinElements) {
    const uint64_t count = std::min(kJoinElements, range.end - at);
    for (uint64_t i = 0; i < count; ++i) {
      uint16_t high = 0, low = 0;
      std::memcpy(&high, rounded + (at - range.begin + i) * sizeof high, sizeof high);
      std::memcpy(&low, remainders + (at - range.begin + i) * sizeof low, sizeof low);
      joined[i] = std::bit_cast<float>(joined_bits(high, low));
    }
    OPTLEASE_TRY(on_run(at, count, joined));
  }
  return Status::ok();
}

// Calls `on_run` for elements [range) of one array of a chunk, in order.
Status read_runs(const StateSplit& split, uint64_t elements, const CommittedSlots& slots,
                 uint32_t array, ElementRange range, const OnRun& on_run) {
  const ChunkLayout layout = layout_of(split, elements);
  const bool is_joined = array == kMainArray && split.main == MainForm::kBf16Remainder;
  for (uint64_t at = range.begin; at < range.end;) {
    const ArrayPlace place = place_of(layout, array, at);
    const uint64_t border = place.on_device ? layout.arrays[array].resident.count : elements;
    const uint64_t end = std::min(range.end, border);
    const char* data = (place.on_device ? slots.resident : slots.host) + place.offset;
    OPTLEASE_TRY(is_joined ? join_run(layout, slots, data, {at, end}, on_run)
                           : on_run(at, end - at, reinterpret_cast<const float*>(data)));
    at = end;
  }
  return Status::ok();
}

// The index of the first chunk of `space` among a rank's chunks. Spaces ascend in the table.
uint32_t first_chunk_of_space(std::span<const ChunkRecord> chunks, uint32_t space) {
  const auto found = std::partition_point(chunks.begin(), chunks.end(),
                                          [&](const ChunkRecord& c) { return c.space < space; });
  return static_cast<uint32_t>(found - chunks.begin());
}

Status read_chunk(const ControlView& view, std::span<const ArenaView> arenas, Rank rank,
                  ChunkIndex chunk, uint32_t array, ElementRange range,
                  const std::function<Status(const ElementRun&)>& callback) {
  const ChunkRecord& record = view.chunks(rank)[chunk.value];
  const ElementRange part{std::max(range.begin, record.first_element),
                          std::min(range.end, record.first_element + record.elements)};
  const Step version = view.version(rank, chunk);
  if (version < 0) {
    return {StatusCode::kNotFound,
            format("rank %u, chunk %u was never written", rank.value, chunk.value)};
  }
  CommittedSlots slots;
  OPTLEASE_TRY(find_slots(view, arenas, rank, chunk, &slots));
  const uint64_t base = record.first_element;
  return read_runs(
      view.split(), record.elements, slots, array, {part.begin - base, part.end - base},
      [&](uint64_t first, uint64_t count, const float* data) {
        return callback({record.space, array, rank, chunk, version, base + first, count, data});
      });
}

}  // namespace

std::vector<ArenaView> arena_views(std::span<const Segment> arenas,
                                   std::span<const ResidentSegment> residents) {
  std::vector<ArenaView> views;
  for (size_t r = 0; r < arenas.size(); ++r) {
    views.push_back({static_cast<const char*>(arenas[r].data()), arenas[r].bytes(),
                     r < residents.size() ? &residents[r] : nullptr});
  }
  return views;
}

Status read_elements(const ControlView& view, std::span<const ArenaView> arenas, uint32_t space,
                     uint32_t array, ElementRange range,
                     const std::function<Status(const ElementRun&)>& callback) {
  if (space >= view.spaces().size() || array >= kAdamArrayCount) {
    return {StatusCode::kInvalidArgument, format("space %u of %zu, array %u of %u", space,
                                                 view.spaces().size(), array, kAdamArrayCount)};
  }
  const SpaceRecord& record = view.spaces()[space];
  if (range.begin > range.end || range.end > record.elements) {
    return {StatusCode::kInvalidArgument,
            format("elements [%" PRIu64 ", %" PRIu64 ") of space '%s', which has %" PRIu64,
                   range.begin, range.end, record.name, record.elements)};
  }
  const auto members = view.members(space);
  uint64_t at = range.begin;
  while (at < range.end) {
    const Rank rank(members[at / record.shard_elements]);
    const auto chunks = view.chunks(rank);
    const uint64_t shard_begin = at / record.shard_elements * record.shard_elements;
    const uint64_t within = (at - shard_begin) / record.chunk_elements;
    const uint32_t chunk = first_chunk_of_space(chunks, space) + static_cast<uint32_t>(within);
    OPTLEASE_CHECK(
        chunk < chunks.size() && chunks[chunk].space == space && chunks[chunk].first_element <= at,
        "rank %u, chunk %u, element %" PRIu64, rank.value, chunk, at);
    OPTLEASE_TRY(
        read_chunk(view, arenas, rank, ChunkIndex(chunk), array, {at, range.end}, callback));
    at = std::min(range.end, chunks[chunk].first_element + chunks[chunk].elements);
  }
  return Status::ok();
}

Status verify_chunk(const ControlView& view, std::span<const ArenaView> arenas, Rank rank,
                    ChunkIndex chunk, ChecksumWords checksum) {
  if (checksum == nullptr || view.version(rank, chunk) < 0) return Status::ok();
  CommittedSlots slots;
  OPTLEASE_TRY(find_slots(view, arenas, rank, chunk, &slots));
  const ChunkRecord& record = view.chunks(rank)[chunk.value];
  const SlotEntry& entry = slots.entry;
  uint64_t found = 0;
  for (uint32_t array = 0; array < kAdamArrayCount; ++array) {
    const uint64_t first_word = array * array_stride_bytes(record.elements) / sizeof(uint32_t);
    OPTLEASE_TRY(read_runs(view.split(), record.elements, slots, array, {0, record.elements},
                           [&](uint64_t first, uint64_t count, const float* data) {
                             found += checksum(data, count, first_word + first);
                             return Status::ok();
                           }));
  }
  if (found == entry.checksum) return Status::ok();
  return {StatusCode::kCorrupt,
          format("space '%s', rank %u, chunk %u (version %" PRId64 "), slot %u: the checksum is "
                 "%016" PRIx64 ", expected %016" PRIx64,
                 view.spaces()[record.space].name, rank.value, chunk.value,
                 view.version(rank, chunk), entry.slot, found, entry.checksum)};
}

}  // namespace optlease
