#include "shm/resident_segment.h"

#include <unistd.h>

#include <cinttypes>
#include <cstddef>
#include <cstring>

#include "shm/eintr.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

const char* why_unfit(const Segment& segment, const ResidentSegment::Shape& shape) {
  if (segment.bytes() < kResidentSlotsOffset) return "it is shorter than its header page";
  const auto& header = *static_cast<const ResidentHeader*>(segment.data());
  if (const char* why = why_invalid(header, segment.bytes())) return why;
  if (header.rank != shape.rank.value) return "it is another rank's";
  if (std::memcmp(header.job_id, shape.job_id, sizeof header.job_id) != 0) {
    return "it belongs to another job than the control segment";
  }
  if (header.slot_bytes != shape.slot_bytes || header.slot_count != shape.slot_count) {
    return "its slots are not those of this state";
  }
  return nullptr;
}

// Of one that need not be mapped. False where it cannot be read.
bool read_header(const Segment& segment, ResidentHeader* header) {
  return retry_eintr([&] {
           return ::pread(segment.fd(), static_cast<void*>(header), sizeof *header, 0);
         }) == static_cast<ssize_t>(sizeof *header);
}

Result<Segment> make(const std::string& name, const ResidentSegment::Shape& shape,
                     bool is_new_whole) {
  Result<Segment> made = Segment::create(name, shape.bytes());
  if (!made.is_ok()) return made;
  KILL_POINT("resident.made");
  auto* header = static_cast<ResidentHeader*>(made.value().data());
  header->version = kSegmentVersion;
  header->rank = shape.rank.value;
  std::memcpy(header->job_id, shape.job_id, sizeof header->job_id);
  header->slot_bytes = shape.slot_bytes;
  header->slot_count = shape.slot_count;
  header->total_bytes = shape.bytes();
  header->step.store(kNoStep);
  header->whole.store(is_new_whole ? 1 : 0);
  header->magic = kResidentMagic;
  // Last: a torn header is none.
  std::atomic_ref<uint64_t>(header->checksum).store(checksum_of(*header));
  KILL_POINT("resident.written");
  return made;
}

}  // namespace

ResidentSegment::Shape ResidentSegment::shape_of(const ControlView& view, Rank rank,
                                                 const ArenaSpec& arena) {
  Shape shape;
  std::memcpy(shape.job_id, view.header().job_id, sizeof shape.job_id);
  shape.rank = rank;
  shape.slot_bytes = arena.resident_slot_bytes;
  shape.slot_count = arena.slot_count;
  return shape;
}

Result<ResidentSegment> ResidentSegment::open(const std::string& name, const Shape& shape,
                                              Segment::Access access) {
  Result<Segment> opened = Segment::open(name, access);
  if (!opened.is_ok()) return opened.status();
  if (const char* why = why_unfit(opened.value(), shape)) {
    return Status(StatusCode::kCorrupt, Segment::path_of(name) + ": " + why);
  }
  return ResidentSegment(std::move(opened).value());
}

Result<ResidentSegment> ResidentSegment::open_or_make(const std::string& name, const Shape& shape,
                                                      bool is_needed, bool is_new_whole) {
  Result<ResidentSegment> opened = open(name, shape, Segment::Access::kReadWrite);
  if (opened.is_ok()) return opened;
  const Status why = opened.status();
  if (why.code() != StatusCode::kNotFound && why.code() != StatusCode::kCorrupt) return why;
  if (is_needed) {
    return Status(StatusCode::kCorrupt,
                  format("rank %u: the resident part of its state is not there (%s). Start again "
                         "with --fresh, or from a checkpoint",
                         shape.rank.value, why.message().c_str()));
  }
  Segment::unlink(name);
  Result<Segment> made = make(name, shape, is_new_whole);
  if (!made.is_ok()) return made.status();
  return ResidentSegment(std::move(made).value());
}

Status ResidentSegment::check_whole() const {
  if (is_whole()) return Status::ok();
  const Step saved = header()->step.load();
  const std::string found = saved == kNoStep ? "it was never saved"
                                             : format("what was saved there was of step %" PRId64
                                                      ", and the state has moved on since",
                                                      saved);
  return {StatusCode::kCorrupt,
          format("rank %u: the resident part of its state lay in the device's memory and is not in "
                 "%s: %s. Every process that held it ended before it could be saved again: start "
                 "again with --fresh, or from a checkpoint",
                 header()->rank, Segment::path_of(segment_.name()).c_str(), found.c_str())};
}

void ResidentSegment::set_void() {
  header()->whole.store(0, std::memory_order_seq_cst);
  KILL_POINT("resident.void");
}

void ResidentSegment::set_whole(Step committed) {
  header()->step.store(committed, std::memory_order_relaxed);
  header()->whole.store(1, std::memory_order_release);
  KILL_POINT("resident.whole");
}

bool is_made_anew(const Segment& was, const Segment& stands) {
  ResidentHeader then{}, now{};
  if (stands.bytes() != was.bytes() || !read_header(was, &then) || !read_header(stands, &now)) {
    return false;
  }
  // What the checksum is of never changes while a segment lives.
  return why_invalid(now, stands.bytes()) == nullptr && now.checksum == then.checksum &&
         std::memcmp(static_cast<void*>(&now), static_cast<void*>(&then),
                     offsetof(ResidentHeader, checksum)) == 0;
}

Result<std::vector<ResidentSegment>> open_residents(const std::vector<std::string>& names,
                                                    const ControlView& view) {
  std::vector<ResidentSegment> residents;
  if (!view.split().has_resident()) return residents;
  if (names.size() != view.header().world_size) {
    return Status{StatusCode::kInvalidArgument, format("%zu resident segments for %u ranks",
                                                       names.size(), view.header().world_size)};
  }
  const SegmentPlan plan = view.plan();
  for (uint32_t r = 0; r < names.size(); ++r) {
    const ArenaSpec arena = arena_of(plan, Rank(r));
    Result<ResidentSegment> opened = ResidentSegment::open(
        names[r], ResidentSegment::shape_of(view, Rank(r), arena), Segment::Access::kReadOnly);
    if (!opened.is_ok()) return opened.status();
    residents.push_back(std::move(opened).value());
  }
  return residents;
}

}  // namespace optlease
