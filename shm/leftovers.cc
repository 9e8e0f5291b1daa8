#include "shm/leftovers.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <map>

#include "shm/contract/job_name.h"
#include "shm/control_view.h"
#include "shm/directory_tree.h"
#include "shm/eintr.h"
#include "shm/found_state.h"
#include "shm/job_lock.h"
#include "shm/kill_point.h"
#include "shm/segment.h"
#include "shm/segment_removal.h"

namespace optlease {
namespace {

std::string segment_name(const LeftoverPlaces& places, const std::string& job, const char* suffix) {
  return "/" + places.segment_prefix + job + suffix;
}

// Every user may make files in /dev/shm: what no job can be called is shown to nobody.
bool is_job_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), is_job_name_byte);
}

// The job whose segment a file in /dev/shm is by its name; empty where it is none. Job names have
// no dot.
std::string job_of(const std::string& file, const std::string& prefix) {
  if (prefix.empty() || file.rfind(prefix, 0) != 0) return {};
  const size_t dot = file.find('.', prefix.size());
  if (dot == std::string::npos || !is_segment_suffix(file.substr(dot + 1))) return {};
  const std::string job = file.substr(prefix.size(), dot - prefix.size());
  return is_job_name(job) ? job : std::string{};
}

// Size of an own regular file under /dev/shm; false for anything else, and where it is gone.
bool own_segment(const std::string& name, uint64_t* bytes) {
  struct stat info {};
  if (::lstat(Segment::path_of(name).c_str(), &info) != 0) return false;
  if (info.st_uid != ::geteuid() || !S_ISREG(info.st_mode)) return false;
  *bytes = static_cast<uint64_t>(info.st_blocks) * 512;
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
    if (job.empty()) continue;
    uint64_t bytes = 0;
    (void)own_segment("/" + file, &bytes);  // what is not ours counts nothing
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
  const FoundState found = look_at_state(segment_name(places, job->job, ""), job->segments);
  job->why = found.why.message();
  job->step_committed = found.step_committed;
  switch (found.kind) {
    case StateKind::kNothing:
      job->state = LeftoverState::kRemains;
      job->why = job->segments.empty() ? "only a run directory is left" : "only a lock is left";
      return;
    case StateKind::kWhole:
      job->state = found.kept_on_purpose ? LeftoverState::kKept : LeftoverState::kResumable;
      if (found.step_committed != kNoStep) return;
      job->state = LeftoverState::kRemains;
      job->why = "it ended before its initial state was complete";
      return;
    case StateKind::kUnfinished:
      job->state = LeftoverState::kRemains;
      return;
    case StateKind::kDamaged:
      job->state = LeftoverState::kDamaged;
      return;
    case StateKind::kForeign:
      job->state = LeftoverState::kForeign;
      return;
  }
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
    case LeftoverState::kDamaged:
      if (options.include_damaged) return {};
      return "it may hold a state (" + job.why + "); `optlease clean " + job.job + "` removes it";
    case LeftoverState::kForeign:
      return job.why + "; this program neither uses nor removes it";
    case LeftoverState::kResumable:
    case LeftoverState::kRemains:
      return {};
  }
  return "its state is unknown";
}

// Removes segments (all but the lock, which goes last, with its holder) and the run directory.
void remove_job(const LeftoverPlaces& places, const LeftoverJob& job, bool dry_run,
                CleanReport* report) {
  const std::string lock = segment_name(places, job.job, ".lock");
  if (!dry_run) begin_removal(segment_name(places, job.job, ".ctl"));
  for (const std::string& name : in_removal_order(job.segments)) {
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
    case LeftoverState::kRemains:
      return "remains";
    case LeftoverState::kDamaged:
      return "damaged";
    case LeftoverState::kForeign:
      return "foreign";
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
