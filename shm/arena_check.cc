#include "shm/arena_check.h"

#include <cinttypes>
#include <cstring>

namespace optlease {

Result<Segment> open_arena(const std::string& name, const ControlView& view, Rank rank,
                           Segment::Access access) {
  Result<Segment> arena = Segment::open(name, access);
  if (!arena.is_ok()) return arena.status();
  const auto corrupt = [&](const std::string& why) {
    return Status{StatusCode::kCorrupt, Segment::path_of(name) + ": " + why};
  };
  if (arena.value().bytes() < kArenaSlotsOffset) return corrupt("shorter than its header page");
  ArenaHeader header;
  std::memcpy(&header, arena.value().data(), sizeof header);
  if (header.magic == kArenaMagic && header.version != kSegmentVersion) {
    return Status{StatusCode::kWrongVersion, format("%s has format version %u, this build reads %u",
                                                    name.c_str(), header.version, kSegmentVersion)};
  }
  if (const char* why = why_invalid(header, arena.value().bytes())) return corrupt(why);
  if (std::memcmp(header.job_id, view.header().job_id, sizeof header.job_id) != 0) {
    return corrupt("it belongs to another job than the control segment");
  }
  const RankRecord& record = view.rank(rank);
  if (header.rank != rank.value) {
    return corrupt(format("it is the arena of rank %u, not %u", header.rank, rank.value));
  }
  if (header.slot_bytes != record.slot_bytes || header.slot_count != record.slot_count ||
      header.total_bytes != record.arena_bytes) {
    return corrupt(format("it has %u slots of %" PRIu64 " bytes, the control segment says %u of "
                          "%" PRIu64,
                          header.slot_count, header.slot_bytes, record.slot_count,
                          record.slot_bytes));
  }
  return arena;
}

}  // namespace optlease
