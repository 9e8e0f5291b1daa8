// Creation and recovery of a job's segments; chunk_store.cc has what the store does with them.
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "shm/arena_check.h"
#include "shm/chunk_store.h"
#include "shm/control_build.h"
#include "shm/control_check.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

// Removes the names that this creation made, and only those, unless it is told that all went well.
class UndoOnFailure {
 public:
  ~UndoOnFailure() {
    // The control segment, which was made first, says what the others are until they are gone.
    std::for_each(made_.rbegin(), made_.rend(), &Segment::unlink);
  }
  void add(const std::string& name) { made_.push_back(name); }
  void keep() { made_.clear(); }

 private:
  std::vector<std::string> made_;
};

Status random_bytes(uint8_t (&bytes)[16]) {
  size_t got = 0;
  while (got < sizeof bytes) {
    const ssize_t n = ::getrandom(bytes + got, sizeof bytes - got, 0);
    if (n < 0 && errno != EINTR) {
      return {StatusCode::kIo, format("getrandom for the job's id: %s", ::strerror(errno))};
    }
    if (n > 0) got += static_cast<size_t>(n);
  }
  return Status::ok();
}

Status check_request(const SegmentPlan& plan, const SegmentNames& names) {
  if (const std::string why = why_invalid(plan); !why.empty()) {
    return {StatusCode::kInvalidArgument, "the plan cannot be laid out: " + why};
  }
  if (plan.job_name.empty() || plan.job_name.size() > kJobNameBytesMax) {
    return {StatusCode::kInvalidArgument, "the job's name is not 1..48 bytes"};
  }
  for (const SpaceSpec& space : plan.spaces) {
    if (space.chunk_elements == 0) {
      return {StatusCode::kInvalidArgument,
              "space '" + space.name + "' has no chunk size: lay_out has not run"};
    }
  }
  if (names.arenas.size() != plan.world_size) {
    return {StatusCode::kInvalidArgument,
            format("%zu arena names for %u ranks", names.arenas.size(), plan.world_size)};
  }
  return Status::ok();
}

std::vector<ArenaSpec> arenas_of(const SegmentPlan& plan) {
  std::vector<ArenaSpec> arenas;
  for (uint32_t r = 0; r < plan.world_size; ++r) arenas.push_back(arena_of(plan, Rank(r)));
  return arenas;
}

// The whole set must fit before the first of it is made: half a set helps nobody.
Status check_space(const ControlShape& shape, const std::vector<ArenaSpec>& arenas) {
  uint64_t needed = shape.total_bytes;
  for (const ArenaSpec& arena : arenas) needed += arena_bytes_of(arena);
  const Result<uint64_t> free = Segment::free_bytes();
  if (!free.is_ok()) return free.status();
  if (needed <= free.value()) return Status::ok();
  return {StatusCode::kNoSpace,
          format("the optimizer state needs %" PRIu64 " bytes of shared memory and /dev/shm has "
                 "%" PRIu64 " free; enlarge it (mount -o remount,size=... /dev/shm), run "
                 "`optlease clean`, or use more nodes",
                 needed, free.value())};
}

// Reserving takes the pages, in this thread: its preference decides where they lie. No job is worth
// less for lying elsewhere, so what goes wrong here is said and not more.
Result<Segment> reserve_arena(const std::string& name, const ArenaHeader& header, int64_t node,
                              ArenaPlacement* placement) {
  if (node < 0) return Segment::create(name, header.total_bytes);
  const std::string whose = format("the arena of rank %u: ", header.rank);
  const auto wanted = static_cast<uint32_t>(node);
  Result<Segment> arena = Status{StatusCode::kInternal, "not made yet"};
  {
    const Result<NumaPreference> preference = NumaPreference::of(wanted);
    if (!preference.is_ok()) {
      placement->warnings.push_back(whose + "it is not placed on NUMA node " +
                                    std::to_string(node) + ": " + preference.status().message());
    }
    arena = Segment::create(name, header.total_bytes);
  }
  if (!arena.is_ok()) return arena;
  const NumaFinding finding =
      numa_finding(sample_numa_pages(arena.value().data(), arena.value().bytes(), wanted), wanted);
  auto& texts = finding.as_wanted() ? placement->done : placement->warnings;
  texts.push_back(whose + finding.text);
  return arena;
}

Result<Segment> create_arena(const std::string& name, const ArenaHeader& header,
                             ArenaPlacement* placement) {
  const bool placed = placement != nullptr && header.rank < placement->nodes.size();
  Result<Segment> arena =
      reserve_arena(name, header, placed ? placement->nodes[header.rank] : -1, placement);
  if (!arena.is_ok()) return arena.status();
  if (placement != nullptr && header.total_bytes >= kHugePageBytes) {
    placement->done.push_back(format("the arena of rank %u: ", header.rank) +
                              huge_pages_text(arena.value().huge_pages(), header.total_bytes));
  }
  KILL_POINT("store.arena_made");
  std::memcpy(arena.value().data(), &header, sizeof header);
  KILL_POINT("store.arena_written");
  arena.value().unmap();
  return arena;
}

}  // namespace

Result<ChunkStore> ChunkStore::create(const SegmentPlan& plan, const SegmentNames& names,
                                      ArenaPlacement* placement) {
  OPTLEASE_TRY(check_request(plan, names));
  const std::vector<ArenaSpec> arenas = arenas_of(plan);
  const ControlShape shape = control_shape(plan, arenas);
  OPTLEASE_TRY(check_space(shape, arenas));
  uint8_t job_id[16];
  OPTLEASE_TRY(random_bytes(job_id));

  UndoOnFailure undo;
  Result<Segment> control = Segment::create(names.control, shape.total_bytes);
  if (!control.is_ok()) return control.status();
  undo.add(names.control);
  KILL_POINT("store.control_made");
  void* base = control.value().data();
  write_control(base, shape, plan, arenas, job_id);

  ChunkStore store(std::move(control).value());
  for (uint32_t r = 0; r < plan.world_size; ++r) {
    Result<Segment> arena =
        create_arena(names.arenas[r], make_arena_header(r, arenas[r], job_id), placement);
    if (!arena.is_ok()) return arena.status();
    undo.add(names.arenas[r]);
    store.arenas_.push_back(std::move(arena).value());
  }
  KILL_POINT("store.before_ready");
  static_cast<SegmentHeader*>(base)->state.store(static_cast<uint32_t>(SegmentState::kReady),
                                                 std::memory_order_release);
  KILL_POINT("store.ready");
  OPTLEASE_TRY(store.look());
  undo.keep();
  return store;
}

Result<ChunkStore> ChunkStore::recover(const SegmentPlan& plan, const SegmentNames& names) {
  OPTLEASE_TRY(check_request(plan, names));
  Result<Segment> control = Segment::open(names.control, Segment::Access::kReadWrite);
  if (!control.is_ok()) return control.status();
  ChunkStore store(std::move(control).value());
  OPTLEASE_TRY(store.look());
  const SegmentHeader& header = store.view_.header();
  if (plan.job_name != header.job_name) {
    return Status{
        StatusCode::kInvalidArgument,
        names.control + " belongs to job '" + header.job_name + "', not '" + plan.job_name + "'"};
  }
  if (header.layout_hash != layout_hash(plan)) {
    return Status{StatusCode::kInvalidArgument,
                  format("%s was laid out for another model, world size or chunk size (layout "
                         "hash %016" PRIx64 ", this plan's is %016" PRIx64 "); export it, or run "
                         "`optlease clean`, before a new start",
                         names.control.c_str(), header.layout_hash, layout_hash(plan))};
  }
  OPTLEASE_TRY(check_control_at_rest(store.view_));
  for (uint32_t r = 0; r < plan.world_size; ++r) {
    Result<Segment> arena =
        open_arena(names.arenas[r], store.view_, Rank(r), Segment::Access::kReadWrite);
    if (!arena.is_ok()) return arena.status();
    arena.value().unmap();
    store.arenas_.push_back(std::move(arena).value());
  }
  // Last, when nothing can fail any more: from here every lease of an earlier life is void.
  KILL_POINT("store.segments_found");
  store.mutable_header()->store_epoch.fetch_add(1);
  KILL_POINT("store.epoch_raised");
  return store;
}

}  // namespace optlease
