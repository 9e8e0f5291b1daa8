#include "shm/found_state.h"

#include <algorithm>
#include <cstring>

#include "shm/arena_check.h"
#include "shm/control_check.h"
#include "shm/segment_removal.h"

namespace optlease {
namespace {

// A state in words that names nothing that it is not sure of.
FoundState found(StateKind kind, Status why) {
  FoundState state;
  state.kind = kind;
  state.why = std::move(why);
  return state;
}

// What cannot be opened for another reason than what it holds is nothing to judge, or to touch.
bool says_nothing_of_its_bytes(const Status& status) {
  return !status.is_ok() && status.code() != StatusCode::kCorrupt &&
         status.code() != StatusCode::kNotFound && status.code() != StatusCode::kWrongVersion;
}

bool is_zero(const void* bytes, size_t count) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  return std::all_of(at, at + count, [](unsigned char byte) { return byte == 0; });
}

// What the segments say that hold the state itself: arenas and resident slots.
struct Holders {
  std::string written;  // one whose header was ever written, whatever became of it
  Status other_version;
  Status unreadable;
};

bool holds_state(const std::string& name, const std::string& stem) {
  const std::string suffix = name.substr(stem.size());
  return suffix.starts_with(".r") || suffix.starts_with(".d");
}

void look_at_holder(const Segment& segment, Holders* holders) {
  ArenaHeader header{};  // magic and version of a resident segment lie at the same places
  static_assert(offsetof(ResidentHeader, version) == offsetof(ArenaHeader, version));
  const size_t bytes = std::min<size_t>(sizeof header, segment.bytes());
  std::memcpy(static_cast<void*>(&header), segment.data(), bytes);
  if (is_zero(&header, sizeof header)) return;
  const std::string path = Segment::path_of(segment.name());
  if (holders->written.empty()) holders->written = path;
  const bool ours = header.magic == kArenaMagic || header.magic == kResidentMagic;
  if (!ours || header.version == kSegmentVersion) return;
  holders->other_version = {StatusCode::kWrongVersion,
                            format("%s has format version %u, this build reads %u", path.c_str(),
                                   header.version, kSegmentVersion)};
}

Holders look_at_holders(const std::string& stem, const std::vector<std::string>& names) {
  Holders holders;
  for (const std::string& name : names) {
    if (name == stem + ".lock" || name == stem + ".ctl") continue;
    const Result<Segment> segment = Segment::open(name, Segment::Access::kReadOnly);
    if (says_nothing_of_its_bytes(segment.status())) holders.unreadable = segment.status();
    if (segment.is_ok() && holds_state(name, stem)) look_at_holder(segment.value(), &holders);
  }
  return holders;
}

// True of memory into which no creator ever wrote a header: its magic number is its last word.
bool is_unwritten(const Segment& control) {
  if (control.bytes() < sizeof(SegmentHeader)) return is_zero(control.data(), control.bytes());
  const auto& header = *static_cast<const SegmentHeader*>(control.data());
  return header.magic == 0 && header.state.load() == static_cast<uint32_t>(SegmentState::kCreating);
}

// True of a sound header that says that nothing was ever committed, or that nothing counts now.
bool is_void(const Segment& control) {
  if (control.bytes() < sizeof(SegmentHeader)) return false;
  const auto& header = *static_cast<const SegmentHeader*>(control.data());
  if (why_invalid(header, control.bytes()) != nullptr) return false;
  const uint32_t state = header.state.load();
  if (state == kSegmentRemoving) return true;
  // A step in it means that it was ready once: a bit of that word is damaged.
  return state == static_cast<uint32_t>(SegmentState::kCreating) &&
         header.step_committed.load() == kNoStep;
}

// Of a control segment whose header is sound and ready.
FoundState look_at_ready(const std::string& stem, const Segment& control) {
  const Step step = static_cast<const SegmentHeader*>(control.data())->step_committed.load();
  // Before the initial state is complete there is no step to lose.
  const StateKind broken = step == kNoStep ? StateKind::kUnfinished : StateKind::kDamaged;
  const Result<ControlView> view = ControlView::over(control.data(), control.bytes());
  if (!view.is_ok()) return found(broken, view.status());
  if (const Status rest = check_control_at_rest(view.value()); !rest.is_ok()) {
    return found(StateKind::kDamaged, rest);
  }
  for (uint32_t r = 0; r < view.value().header().world_size; ++r) {
    const Result<Segment> arena =
        open_arena(stem + format(".r%u", r), view.value(), Rank(r), Segment::Access::kReadOnly);
    if (says_nothing_of_its_bytes(arena.status())) {
      return found(StateKind::kForeign, arena.status());
    }
    if (!arena.is_ok()) return found(broken, arena.status());
  }
  FoundState whole;
  whole.kind = StateKind::kWhole;
  whole.step_committed = step;
  whole.kept_on_purpose = view.value().header().kept_on_purpose.load() != 0;
  return whole;
}

FoundState look_without_control(const Holders& holders, const Status& why) {
  if (!holders.other_version.is_ok()) return found(StateKind::kForeign, holders.other_version);
  if (holders.written.empty()) return found(StateKind::kUnfinished, why);
  return found(StateKind::kDamaged,
               {StatusCode::kCorrupt,
                why.message() + ", and " + holders.written + " holds a part of a state"});
}

}  // namespace

FoundState look_at_state(const std::string& stem, const std::vector<std::string>& names) {
  const std::string lock_name = stem + ".lock";
  const std::string control_name = stem + ".ctl";
  const bool any = std::any_of(names.begin(), names.end(),
                               [&](const std::string& name) { return name != lock_name; });
  if (!any) return {};
  const Holders holders = look_at_holders(stem, names);
  if (!holders.unreadable.is_ok()) return found(StateKind::kForeign, holders.unreadable);
  const Result<Segment> control = Segment::open(control_name, Segment::Access::kReadOnly);
  if (says_nothing_of_its_bytes(control.status())) {
    return found(StateKind::kForeign, control.status());
  }
  if (control.status().code() == StatusCode::kNotFound) {
    return look_without_control(holders, {StatusCode::kNotFound, "it has no control segment"});
  }
  if (!control.is_ok()) return look_without_control(holders, control.status());
  const Status header = check_control_header(control.value().data(), control.value().bytes());
  if (header.is_ok()) return look_at_ready(stem, control.value());
  if (header.code() == StatusCode::kWrongVersion) return found(StateKind::kForeign, header);
  if (is_unwritten(control.value())) return look_without_control(holders, header);
  if (!holders.other_version.is_ok()) return found(StateKind::kForeign, holders.other_version);
  return found(is_void(control.value()) ? StateKind::kUnfinished : StateKind::kDamaged, header);
}

bool is_segment_suffix(const std::string& suffix) {
  if (suffix == "ctl" || suffix == "lock") return true;
  if (suffix.size() < 2 || std::strchr("rgd", suffix[0]) == nullptr) return false;
  return std::all_of(suffix.begin() + 1, suffix.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace optlease
