#include "actors/host_store/segments.h"

#include <cstring>

#include "actors/runtime/log.h"
#include "shm/damage.h"

namespace optlease {
namespace {

// True for a control segment of ours whose creation never came to its end: no store ever trusted it
// and no actor ever wrote to its arenas. Whatever else is under the name is somebody's.
bool is_half_made(const std::string& control_name) {
  const Result<Segment> control = Segment::open(control_name, Segment::Access::kReadOnly);
  if (!control || control.value().bytes() < sizeof(SegmentHeader)) return false;
  const auto* header = static_cast<const SegmentHeader*>(control.value().data());
  return header->magic == kSegmentMagic &&
         header->state.load() == static_cast<uint32_t>(SegmentState::kCreating);
}

Status remove_half_made(const SegmentNames& names) {
  if (!Segment::exists(names.control)) return Status::ok();
  if (!is_half_made(names.control)) {
    return {StatusCode::kAlreadyExists,
            Segment::path_of(names.control) +
                " exists: resume the job, or remove its state with `optlease clean`"};
  }
  log_warn("%s is half-made, its creator died: it is removed and made again",
           Segment::path_of(names.control).c_str());
  // Arenas first: as long as the control segment is there, half-made, this can be repeated.
  for (const std::string& arena : names.arenas) Segment::unlink(arena);
  Segment::unlink(names.control);
  return Status::ok();
}

}  // namespace

SegmentNames segment_names(const RunDirectory& directory, uint32_t world_size) {
  SegmentNames names{.control = directory.control_segment(), .arenas = {}};
  for (uint32_t r = 0; r < world_size; ++r)
    names.arenas.push_back(directory.arena_segment(Rank{r}));
  return names;
}

Result<ChunkStore> open_segments(const JobPlan& plan, const SegmentNames& names, bool create) {
  if (!create) {
    Result<ChunkStore> recovered = ChunkStore::recover(plan.segment, names);
    if (!recovered) return as_damage(recovered.status());
    return recovered;
  }
  OPTLEASE_TRY(remove_half_made(names));
  ArenaPlacement placement{.nodes = plan.numa.nodes, .done = {}, .warnings = {}};
  Result<ChunkStore> store = ChunkStore::create(plan.segment, names, &placement);
  // On a machine with one node there is nothing to say.
  if (!plan.numa.note.empty()) {
    const auto log = plan.numa.nodes.empty() ? log_debug : log_info;
    log("%s", plan.numa.note.c_str());
  }
  for (const std::string& text : placement.done) log_info("%s", text.c_str());
  for (const std::string& text : placement.warnings) log_warn("%s", text.c_str());
  return store;
}

ExitCode exit_code_for_segments(const Status& why) {
  if (why.code() == StatusCode::kAlreadyExists) return ExitCode::kStateExists;
  return exit_code_for(why);
}

}  // namespace optlease
