#include "launcher/job_state.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <system_error>

#include "kernels/checksum.h"
#include "shm/found_state.h"

namespace optlease {
Result<JobState> JobState::open(const RunDirectory& run) {
  auto control = Segment::open(run.control_segment(), Segment::Access::kReadOnly);
  if (control.status().code() == StatusCode::kNotFound) {
    return Status(StatusCode::kNotFound, "job " + run.job_name() +
                                             " has no state on this node (there is no " +
                                             Segment::path_of(run.control_segment()) +
                                             "); `optlease status` lists this user's jobs");
  }
  if (!control) return control.status();
  auto view = ControlView::over(control.value().data(), control.value().bytes());
  if (!view) return view.status();
  JobState state(std::move(control).value(), std::move(view).value());
  for (uint32_t r = 0; r < state.view_.header().world_size; ++r) {
    auto arena = Segment::open(run.arena_segment(Rank(r)), Segment::Access::kReadOnly);
    if (!arena) return arena.status();
    state.arenas_.push_back(std::move(arena).value());
  }
  std::vector<std::string> names;
  for (uint32_t r = 0; r < state.view_.header().world_size; ++r) {
    names.push_back(run.resident_segment(Rank(r)));
  }
  auto residents = open_residents(names, state.view_);
  // A job that ended before its initial state was complete may lack them, and can be claimed.
  state.residents_status_ = residents.status();
  if (residents) state.residents_ = std::move(residents).value();
  state.arena_views_ = arena_views(state.arenas_, state.residents_);
  return state;
}

Status JobState::check_at_rest() const {
  const Step committed = view_.step_committed();
  uint64_t ahead = 0;
  uint64_t total = 0;
  for (uint32_t r = 0; r < view_.header().world_size; ++r) {
    const auto count = static_cast<uint32_t>(view_.chunks(Rank(r)).size());
    total += count;
    for (uint32_t c = 0; c < count; ++c) {
      if (view_.version(Rank(r), ChunkIndex(c)) != committed) ++ahead;
    }
  }
  if (committed == kNoStep) {
    return {StatusCode::kNotFound,
            "the initial state was never completed: there is nothing to read yet"};
  }
  if (ahead == 0) {
    OPTLEASE_TRY(residents_status_);
    for (const ResidentSegment& resident : residents_) OPTLEASE_TRY(resident.check_whole());
    return Status::ok();
  }
  return {
      StatusCode::kBusy,
      format("step %lld was left half-way: %llu of %llu chunks are not at step %lld. Resume the "
             "job (optlease run ... --resume), which finishes that step first",
             static_cast<long long>(committed + 1), static_cast<unsigned long long>(ahead),
             static_cast<unsigned long long>(total), static_cast<long long>(committed))};
}

uint64_t JobState::bytes() const {
  uint64_t bytes = control_.bytes();
  for (const Segment& arena : arenas_) bytes += arena.bytes();
  for (const ResidentSegment& resident : residents_) bytes += resident.bytes();
  return bytes;
}

Result<StateDigest> digest_job(const JobState& state, const KeepGoing& keep) {
  const auto read = [&] { return digest_state(state.view(), state.arenas(), &checksum_words); };
  std::future<decltype(read())> working;
  try {
    working = std::async(std::launch::async, read);
  } catch (const std::system_error&) {
    // Without a thread it is read here; what is lost meanwhile is found out afterwards.
    working = std::async(std::launch::deferred, read);
  }
  Status kept;
  while (working.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout) {
    if (kept.is_ok()) kept = keep();
  }
  auto digest = working.get();
  if (kept.is_ok()) kept = keep();
  // A digest of a state that may have moved is none, whatever it says.
  if (!kept.is_ok()) return kept;
  return digest;
}

FoundState find_state(const RunDirectory& run) {
  const std::string control = run.control_segment();
  return look_at_state(control.substr(0, control.rfind('.')), segments_of_job(run));
}

std::vector<std::string> segments_of_job(const RunDirectory& run) {
  std::vector<std::string> out;
  const std::string start = segment_prefix() + run.job_name() + ".";
  DIR* directory = opendir("/dev/shm");
  if (directory == nullptr) return out;
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    if (name.starts_with(start) && is_segment_suffix(name.substr(start.size()))) {
      out.push_back("/" + name);
    }
  }
  closedir(directory);
  std::sort(out.begin(), out.end());
  return out;
}

uint64_t segment_bytes_of_job(const RunDirectory& run) {
  uint64_t bytes = 0;
  for (const std::string& name : segments_of_job(run)) {
    struct stat found {};
    if (stat(Segment::path_of(name).c_str(), &found) == 0) {
      bytes += static_cast<uint64_t>(found.st_size);
    }
  }
  return bytes;
}

}  // namespace optlease
