#include "shm/leftovers.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <map>

#include "shm/arena_check.h"
#include "shm/control_check.h"
#include "shm/directory_tree.h"
#include "shm/eintr.h"
#include "shm/job_lock.h"
#include "shm/kill_point.h"
#include "shm/segment.h"

namespace optlease {
namespace {

std::string segment_name(const LeftoverPlaces& places, const std::string& job, const char* suffix) {
  return "/" + places.segment_prefix + job + suffix;
}

bool is_job_name(const std::string& name) {
  return !name.empty() && name.find_first_of("./") == std::string::npos;
}

// The job of a file name in /dev/shm; empty where it is none of ours. Job names have no dot.
std::string job_of(const std::string& file, const std::string& prefix) {
  if (prefix.empty() || file.rfind(prefix, 0) != 0) return {};
  const size_t dot = file.find('.', prefix.size());
  if (dot == std::string::npos) return {};
  const std::string job = file.substr(prefix.size(), dot - prefix.size());
  return is_job_name(job) ? job : std::string{};
}

// Size of an own file or symlink under /dev/shm; false where it is gone or another user's.
bool own_segment(const std::string& name, uint64_t* bytes) {
  struct stat info {};
  if (::lstat(Segment::path_of(name).c_str(), &info) != 0) return false;
  if (info.st_uid != ::geteuid() || S_ISDIR(info.st_mode)) return false;
  *bytes = S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
  return true;
}

using Jobs = std::map<std::string, LeftoverJob>;

Status find_segments(const LeftoverPlaces& places, Jobs* jobs) {
  UniqueFd directory(
      retry_eintr([] { return ::open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!directory) return {StatusCode::kIo, format("open /dev/shm: %s", ::strerror(errno))};
  Result<std::vector<std::string>> names = names_in(directory.get());
  if (!names.is_ok()) return names.status();
  for (const std::string& file : names.value()) {
    const std::string job = job_of(file, places.segment_prefix);
    uint64_t bytes = 0;
    if (job.empty() || !own_segment("/" + file, &bytes)) continue;
    LeftoverJob& found = (*jobs)[job];
    found.job = job;
    found.segments.push_back("/" + file);
    found.bytes += bytes;
  }
  return Status::ok();
}

Status find_run_directories(const LeftoverPlaces& places, Jobs* jobs) {
  if (places.run_root.empty()) return Status::ok();
  Result<UniqueFd> root = open_own_directory(AT_FDCWD, places.run_root);
  if (!root.is_ok()) {
    return root.status().code() == StatusCode::kNotFound ? Status::ok() : root.status();
  }
  Result<std::vector<std::string>> names = names_in(root.value().get());
  if (!names.is_ok()) return names.status();
  for (const std::string& job : names.value()) {
    struct stat info {};
    if (!is_job_name(job) ||
        ::fstatat(root.value().get(), job.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) {
      continue;
    }
    LeftoverJob& found = (*jobs)[job];
    found.job = job;
    found.run_directory = places.run_root + "/" + job;
  }
  return Status::ok();
}

Result<Jobs> find_jobs(const LeftoverPlaces& places) {
  Jobs jobs;
  OPTLEASE_TRY(find_segments(places, &jobs));
  OPTLEASE_TRY(find_run_directories(places, &jobs));
  return jobs;
}

// Whether a stopped job could go on: everything that ChunkStore::recover would look at.
Status inspect(const LeftoverPlaces& places, LeftoverJob* job) {
  const std::string control_name = segment_name(places, job->job, ".ctl");
  if (!Segment::exists(control_name)) {
    return {StatusCode::kNotFound,
            job->segments.empty() ? "only a run directory is left" : "it has no control segment"};
  }
  Result<Segment> control = Segment::open(control_name, Segment::Access::kReadOnly);
  if (!control.is_ok()) return control.status();
  Result<ControlView> view = ControlView::over(control.value().data(), control.value().bytes());
  if (!view.is_ok()) return view.status();
  OPTLEASE_TRY(check_control_at_rest(view.value()));
  for (uint32_t r = 0; r < view.value().header().world_size; ++r) {
    const std::string name = segment_name(places, job->job, format(".r%u", r).c_str());
    const Result<Segment> arena =
        open_arena(name, view.value(), Rank(r), Segment::Access::kReadOnly);
    if (!arena.is_ok()) return arena.status();
  }
  job->step_committed = view.value().step_committed();
  if (job->step_committed == kNoStep) {
    return {StatusCode::kNotFound, "it ended before its initial state was complete"};
  }
  const bool kept = view.value().header().kept_on_purpose.load() != 0;
  job->state = kept ? LeftoverState::kKept : LeftoverState::kResumable;
  return Status::ok();
}

// Of a live job, which may be in the middle of anything: its step, where that can be read.
void read_step(const LeftoverPlaces& places, LeftoverJob* job) {
  const Result<Segment> control =
      Segment::open(segment_name(places, job->job, ".ctl"), Segment::Access::kReadOnly);
  if (!control) return;
  const Result<ControlView> view =
      ControlView::over(control.value().data(), control.value().bytes());
  if (view) job->step_committed = view.value().step_committed();
}

void judge_unlocked(const LeftoverPlaces& places, LeftoverJob* job) {
  const Status status = inspect(places, job);
  if (status.is_ok()) return;
  job->state = LeftoverState::kUnusable;
  job->why = status.message();
}

// Why a job stays under `options`; empty where it may go.
std::string why_spared(const LeftoverJob& job, const CleanOptions& options) {
  switch (job.state) {
    case LeftoverState::kLive:
      return "it runs";
    case LeftoverState::kKept:
      if (options.include_kept) return {};
      return format("kept on purpose at step %" PRId64 "; --include-kept removes it",
                    job.step_committed);
    case LeftoverState::kResumable:
    case LeftoverState::kUnusable:
      return {};
  }
  return "its state is unknown";
}

// Removes segments (all but the lock, which goes last, with its holder) and the run directory.
void remove_job(const LeftoverPlaces& places, const LeftoverJob& job, bool dry_run,
                CleanReport* report) {
  const std::string lock = segment_name(places, job.job, ".lock");
  for (const std::string& name : job.segments) {
    uint64_t bytes = 0;
    if (!own_segment(name, &bytes)) continue;
    if (!dry_run && name != lock && ::unlink(Segment::path_of(name).c_str()) != 0) {
      if (errno != ENOENT) {
        report->kept.push_back(job.job + ": " + Segment::path_of(name) + ": " + ::strerror(errno));
      }
      continue;
    }
    KILL_POINT("clean.segment_removed");
    report->removed.push_back({Segment::path_of(name), bytes});
    report->bytes += bytes;
  }
  if (job.run_directory.empty()) return;
  std::vector<TreeEntry> entries;
  Status status = Status::ok();
  Result<UniqueFd> root = open_own_directory(AT_FDCWD, places.run_root);
  if (!root.is_ok())
    status = root.status();
  else
    status = walk_tree(root.value().get(), job.job, job.run_directory, !dry_run, &entries);
  for (const TreeEntry& entry : entries) {
    report->removed.push_back({entry.path, entry.bytes});
    report->bytes += entry.bytes;
  }
  if (!status.is_ok()) report->kept.push_back(job.job + ": " + status.message());
}

// Judges and removes one job whose lock the caller holds (or, in a dry run, that nobody holds).
// `lock_is_ours`: the lock was made for this cleaning and is no leftover.
void clean_unlocked(const LeftoverPlaces& places, const std::string& job,
                    const CleanOptions& options, bool lock_is_ours, CleanReport* report) {
  // Looked for again now that the lock is held: a scan before it may be out of date.
  Result<Jobs> jobs = find_jobs(places);
  if (!jobs.is_ok()) {
    report->kept.push_back(job + ": " + jobs.status().message());
    return;
  }
  const auto found = jobs.value().find(job);
  if (found == jobs.value().end()) return;
  if (lock_is_ours) std::erase(found->second.segments, segment_name(places, job, ".lock"));
  judge_unlocked(places, &found->second);
  const std::string why = why_spared(found->second, options);
  if (!why.empty()) {
    report->kept.push_back(job + ": " + why);
    return;
  }
  remove_job(places, found->second, options.dry_run, report);
}

void clean_job(const LeftoverPlaces& places, const std::string& job, const CleanOptions& options,
               CleanReport* report) {
  const std::string name = segment_name(places, job, ".lock");
  const Result<JobLock::State> probe = JobLock::try_probe(name);
  if (!probe.is_ok() || probe.value() == JobLock::State::kHeld) {
    report->kept.push_back(job + ": " + (probe.is_ok() ? "it runs" : probe.status().message()));
    return;
  }
  if (options.answers && options.answers(job)) {
    report->kept.push_back(job + ": it answers, although nobody holds its lock: stop it");
    return;
  }
  if (options.dry_run) return clean_unlocked(places, job, options, false, report);
  Result<JobLock> lock = JobLock::acquire(name, false);
  if (!lock.is_ok()) {
    report->kept.push_back(job + ": " + lock.status().message());
    return;
  }
  KILL_POINT("clean.locked");
  const bool lock_is_ours = probe.value() == JobLock::State::kAbsent;
  clean_unlocked(places, job, options, lock_is_ours, report);
  // Also where the job stays: its lock says nothing that is not said by its absence.
  lock.value().release_and_unlink();
}

}  // namespace

const char* name_of(LeftoverState state) {
  switch (state) {
    case LeftoverState::kLive:
      return "live";
    case LeftoverState::kResumable:
      return "resumable";
    case LeftoverState::kKept:
      return "kept";
    case LeftoverState::kUnusable:
      return "unusable";
  }
  return "?";
}

Result<std::vector<LeftoverJob>> scan_leftovers(const LeftoverPlaces& places) {
  Result<Jobs> jobs = find_jobs(places);
  if (!jobs.is_ok()) return jobs.status();
  std::vector<LeftoverJob> all;
  for (auto& [name, job] : jobs.value()) {
    const Result<JobLock::State> probe = JobLock::try_probe(segment_name(places, name, ".lock"));
    if (!probe.is_ok()) {
      job.why = probe.status().message();
    } else if (probe.value() == JobLock::State::kHeld) {
      job.state = LeftoverState::kLive;
      read_step(places, &job);
    } else {
      judge_unlocked(places, &job);
    }
    all.push_back(std::move(job));
  }
  return all;
}

Result<CleanReport> clean_leftovers(const LeftoverPlaces& places, const CleanOptions& options) {
  Result<Jobs> jobs = find_jobs(places);
  if (!jobs.is_ok()) return jobs.status();
  CleanReport report;
  for (const auto& [name, job] : jobs.value()) {
    if (!options.only_job.empty() && name != options.only_job) continue;
    clean_job(places, name, options, &report);
  }
  return report;
}

}  // namespace optlease
