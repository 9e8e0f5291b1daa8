#include "shm/element_reader.h"

#include <algorithm>
#include <cinttypes>

namespace optlease {
namespace {

// The slot of a chunk's committed version. Every chunk of format version 1 has exactly one.
Result<const char*> slot_of(const ControlView& view, std::span<const ArenaView> arenas, Rank rank,
                            ChunkIndex chunk, SlotEntry* entry) {
  *entry = view.entries(rank, chunk).front();
  const RankRecord& record = view.rank(rank);
  const ArenaView arena = rank.value < arenas.size() ? arenas[rank.value] : ArenaView{};
  if (arena.base == nullptr || arena.bytes < record.arena_bytes) {
    return Status{StatusCode::kInvalidArgument,
                  format("the arena of rank %u is not mapped", rank.value)};
  }
  if (entry->slot >= record.slot_count) {
    return Status{StatusCode::kCorrupt,
                  format("rank %u, chunk %u is committed in slot %u of %u", rank.value, chunk.value,
                         entry->slot, record.slot_count)};
  }
  return arena.base + kArenaSlotsOffset + entry->slot * record.slot_bytes;
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
  SlotEntry entry;
  const Result<const char*> slot = slot_of(view, arenas, rank, chunk, &entry);
  if (!slot.is_ok()) return slot.status();
  const char* data = slot.value() + array * array_stride_bytes(record.elements) +
                     (part.begin - record.first_element) * sizeof(float);
  return callback({record.space, array, rank, chunk, version, part.begin, part.size(),
                   reinterpret_cast<const float*>(data)});
}

}  // namespace

std::vector<ArenaView> arena_views(std::span<const Segment> arenas) {
  std::vector<ArenaView> views;
  for (const Segment& arena : arenas) {
    views.push_back({static_cast<const char*>(arena.data()), arena.bytes()});
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
  SlotEntry entry;
  const Result<const char*> slot = slot_of(view, arenas, rank, chunk, &entry);
  if (!slot.is_ok()) return slot.status();
  const ChunkRecord& record = view.chunks(rank)[chunk.value];
  uint64_t found = 0;
  for (uint32_t array = 0; array < kAdamArrayCount; ++array) {
    const uint64_t offset = array * array_stride_bytes(record.elements);
    found += checksum(slot.value() + offset, record.elements, offset / sizeof(uint32_t));
  }
  if (found == entry.checksum) return Status::ok();
  return {StatusCode::kCorrupt,
          format("space '%s', rank %u, chunk %u (version %" PRId64 "), slot %u: the checksum is "
                 "%016" PRIx64 ", expected %016" PRIx64,
                 view.spaces()[record.space].name, rank.value, chunk.value,
                 view.version(rank, chunk), entry.slot, found, entry.checksum)};
}

}  // namespace optlease
