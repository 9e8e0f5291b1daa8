// finish_job and exit_code_of of run_job.h.
#include <algorithm>
#include <optional>

#include "actors/runtime/log.h"
#include "actors/runtime/step_figures.h"
#include "launcher/files.h"
#include "launcher/job_origin.h"
#include "launcher/job_state.h"
#include "launcher/run_job.h"
#include "launcher/supervisor.h"
#include "shm/chunk_store.h"
#include "shm/kill_point.h"
#include "shm/numa_policy.h"

namespace optlease {
namespace {

constexpr uint64_t kLossFileBytesMax = 1ull << 30;
constexpr uint64_t kStepLogBytesMax = 1ull << 30;

RankReport rank_report(uint32_t rank, uint64_t life, const RankLives& lives) {
  RankReport out;
  out.rank = rank;
  out.incarnation = life;
  out.bytes_h2d = lives.bytes_h2d;
  out.bytes_d2h = lives.bytes_d2h;
  out.bytes_are_exact = lives.bytes_are_exact;
  out.staging_known = lives.staging_known;
  out.staging_peak_bytes = lives.staging_peak_bytes;
  out.staging_budget_bytes = lives.staging_budget_bytes;
  out.bytes_bounced = lives.bytes_bounced;
  out.pin_refused_bytes = lives.pin_refused_bytes;
  out.leases_deferred = lives.leases_deferred;
  out.credit_wait_seconds = lives.credit_wait_seconds;
  out.telemetry_heard = lives.last.has_value();
  if (lives.last) out.grad_norm = lives.last->grad_norm;
  return out;
}

// Each percentile of the rank where it is the largest; a rank that measured nothing has none.
void add_step_times(const RankLives& lives, std::optional<StepSeconds>* slowest) {
  if (lives.step_seconds.empty()) return;
  StepTimes history;
  for (const double seconds : lives.step_seconds) history.add(seconds);
  const StepTimeSummary times = history.summary();
  const uint64_t measured = history.count();
  if (!*slowest) *slowest = StepSeconds{.steps_measured = measured};
  StepSeconds& out = **slowest;
  out = {std::max(out.p50, times.p50), std::max(out.p90, times.p90), std::max(out.p99, times.p99),
         std::max(out.max, times.max), std::min(out.steps_measured, measured)};
}

void add_ranks(const Supervisor& supervisor, RunReport* report) {
  for (uint32_t r = 0; r < report->world_size; ++r) {
    const RankLives lives = supervisor.lives(r);
    const uint64_t life = supervisor.core().life({Role::kGpuActor, r});
    report->ranks.push_back(rank_report(r, life, lives));
    add_step_times(lives, &report->step_seconds);
  }
}

// Only of the step that was the last: an actor that was killed tells of an older one.
void add_last_step(const Supervisor& supervisor, RunReport* report) {
  for (uint32_t r = 0; r < report->world_size; ++r) {
    const RankLives lives = supervisor.lives(r);
    if (lives.step_seconds.empty() || lives.last_step != report->steps_committed) continue;
    report->last_step_seconds =
        std::max(report->last_step_seconds.value_or(0), lives.step_seconds.back());
  }
}

// What a process of the job wrote, or may have: where it cannot be had the report goes without it.
std::optional<std::string> text_of_job(const std::string& path, uint64_t bytes_max) {
  auto text = read_regular_file(path, bytes_max);
  if (text) return std::move(text).value();
  if (text.status().code() != StatusCode::kNotFound) {
    log_warn("the report goes without it: %s", text.status().message().c_str());
  }
  return std::nullopt;
}

void add_losses(const RunDirectory& run, RunReport* report) {
  std::vector<std::string> texts;
  for (uint32_t r = 0; r < report->world_size; ++r) {
    auto text = text_of_job(run.path() + format("/loss.%u.jsonl", r), kLossFileBytesMax);
    if (text) texts.push_back(std::move(*text));
  }
  report->loss_curve = loss_curve_of(texts);
}

void add_step_logs(const JobPlan& plan, const RunDirectory& run, RunReport* report) {
  if (!plan.telemetry.step_log) return;
  for (RankReport& rank : report->ranks) {
    const auto text = text_of_job(step_log_file(run, Rank(rank.rank)), kStepLogBytesMax);
    if (text) rank.steps = step_figures_of(*text, kReportedStepsMax);
  }
}

// Reads the state once more, as a tool would: what the report says is what memory holds.
void add_state(const RunDirectory& run, RunReport* report) {
  auto state = JobState::open(run);
  if (!state) {
    report->digest_error = state.status().message();
    return;
  }
  const ControlView& view = state.value().view();
  report->steps_committed = view.step_committed();
  report->steps_skipped = view.header().steps_skipped.load();
  const Status rest = state.value().check_at_rest();
  if (!rest.is_ok()) {
    report->digest_error = rest.message();
    return;
  }
  auto digest = digest_job(state.value(), [] { return Status::ok(); });
  if (!digest) {
    report->digest_error = digest.status().message();
    return;
  }
  report->state_digest = digest.value().state_digest;
  for (size_t r = 0; r < report->ranks.size() && r < digest.value().ranks.size(); ++r) {
    report->ranks[r].digest = digest.value().ranks[r];
  }
}

// Where the arenas really lie, whoever touched which page since they were made.
void add_numa(const JobPlan& plan, const RunDirectory& run, RunReport* report) {
  for (RankReport& rank : report->ranks) {
    if (rank.rank >= plan.numa.nodes.size() || plan.numa.nodes[rank.rank] < 0) continue;
    rank.numa_node = plan.numa.nodes[rank.rank];
    const auto node = static_cast<uint32_t>(*rank.numa_node);
    const auto arena =
        Segment::open(run.arena_segment(Rank(rank.rank)), Segment::Access::kReadOnly);
    const NumaFinding finding =
        numa_finding(arena ? sample_numa_pages(arena.value().data(), arena.value().bytes(), node)
                           : Result<NumaSample>(arena.status()),
                     node);
    rank.numa_pages = finding.sample.pages;
    rank.numa_pages_elsewhere = finding.sample.elsewhere;
    rank.numa_text = finding.text;
  }
}

bool should_keep(const Supervisor& supervisor, const RunReport& report) {
  // Nothing was ever initialised, as far as the segment or any life of the store said. A state that
  // cannot be read is no reason to remove it.
  if (report.steps_committed == kNoStep && supervisor.core().step_seen() == kNoStep) return false;
  if (report.exit_code == ExitCode::kCorruptState) return true;
  switch (supervisor.core().ending()) {
    case Ending::kCompleted:
    case Ending::kStopped:
      return supervisor.keep_requested();
    case Ending::kNone:
    case Ending::kRestartIntensity:
    case Ending::kFatalExit:
    case Ending::kSpawnFailed:
    case Ending::kTrainersDisagree:
    case Ending::kStateWentBack:
    case Ending::kLauncherFailed:
      return true;  // a failure never costs the state
  }
  return true;
}

// The store marks the segment when the job was configured to keep it; where the wish came later the
// launcher does so. Every other process is gone and the lock is ours: that makes it the owner.
void mark_kept(const JobPlan& plan, const RunDirectory& run, bool kept, RunReport* report) {
  SegmentNames names{run.control_segment(), {}};
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    names.arenas.push_back(run.arena_segment(Rank(r)));
  }
  auto store = ChunkStore::recover(plan.segment, names);
  if (store) return store.value().set_kept_on_purpose(kept);
  // Who was promised a state to go on from must hear that it is not there.
  report->clean_up_error = "the state cannot be kept: " + store.status().message();
  if (report->exit_code == ExitCode::kOk || report->exit_code == ExitCode::kInterrupted) {
    report->exit_code = ExitCode::kCorruptState;
  }
}

// What somebody removed from /dev/shm under the job is put back before its state is read or kept.
// False where what stands under the job's names now is not this job's: then it is left alone.
bool restore_names(Supervisor& supervisor, RunReport* report) {
  if (!supervisor.core().unreaped().empty()) return true;  // somebody may write to it still
  std::vector<std::string> made;
  const Status restored = supervisor.restore_names(&made);
  for (const std::string& path : made) {
    report->ending_text += "; " + path + " was removed by somebody and is put back";
  }
  if (restored.is_ok()) return true;
  report->digest_error = "what was removed from /dev/shm cannot be put back: " + restored.message();
  report->clean_up_error = report->digest_error;
  report->ending_text += "; " + report->digest_error + "; nothing under the job's names is touched";
  if (report->exit_code == ExitCode::kOk || report->exit_code == ExitCode::kInterrupted) {
    report->exit_code = ExitCode::kCorruptState;
  }
  return false;
}

void clean_up(const JobPlan& plan, JobClaim& claim, const Supervisor& supervisor,
              bool names_are_ours, bool discard_state, RunReport* report) {
  const RunDirectory& run = claim.run;
  report->state_kept = !names_are_ours || (!discard_state && should_keep(supervisor, *report));
  if (!names_are_ours) {
    // Neither marked nor removed: it may be another job's, and alive.
  } else if (report->state_kept) {
    mark_kept(plan, run, supervisor.keep_requested(), report);
    KILL_POINT("launcher.kept_marked");
  } else {
    const Status removed = remove_segments(run);
    if (!removed.is_ok()) report->clean_up_error = removed.message();
  }
  // The logs of a job that failed are what somebody will want to read.
  const Ending ending = supervisor.core().ending();
  const bool whole = (ending == Ending::kCompleted || ending == Ending::kStopped) &&
                     report->exit_code != ExitCode::kCorruptState;
  if (whole) {
    // Of a kept state somebody will want to know what it was begun with.
    const Status emptied = report->state_kept ? keep_only_origin(run) : remove_run_directory(run);
    report->run_directory_removed = emptied.is_ok();
    report->run_directory_text =
        emptied.is_ok()
            ? (report->state_kept ? "only what a resumed run needs is left in " + run.path()
                                  : run.path() + " is removed")
            : emptied.message();
  } else {
    report->ending_text += "; the logs are in " + run.path();
    report->run_directory_text = "kept for its logs: " + run.path();
  }
  KILL_POINT("launcher.directory_done");
  if (!report->state_kept && report->unreaped.empty()) claim.lock.release_and_unlink();
  report->segments_left = segments_of_job(run);
}

}  // namespace

ExitCode exit_code_of(const Supervisor& supervisor) {
  const SupervisorCore& core = supervisor.core();
  const bool trainer = core.ending_seat().role == Role::kTrainer;
  switch (core.ending()) {
    case Ending::kNone:
      return ExitCode::kInternal;
    case Ending::kCompleted:
      return ExitCode::kOk;
    case Ending::kStopped:
      return ExitCode::kInterrupted;
    case Ending::kRestartIntensity:
      return trainer ? ExitCode::kTrainerFailed : ExitCode::kCrashLoop;
    case Ending::kFatalExit:
      return static_cast<ExitCode>(core.ending_exit().code);
    case Ending::kSpawnFailed:
      return trainer ? ExitCode::kTrainerFailed : static_cast<ExitCode>(core.ending_exit().code);
    case Ending::kTrainersDisagree:
      return ExitCode::kTrainerFailed;
    case Ending::kStateWentBack:
      return ExitCode::kCorruptState;
    case Ending::kLauncherFailed:
      return exit_code_for(supervisor.failure());
  }
  return ExitCode::kInternal;
}

void finish_job(const JobPlan& plan, JobClaim& claim, Supervisor& supervisor, bool discard_state,
                RunReport* report) {
  const SupervisorCore& core = supervisor.core();
  report->ending = core.ending();
  report->ending_text = core.ending_text();
  report->commits = core.facts().body.commits;
  // What the store's lives have said, in case its segment cannot be read.
  report->steps_committed = core.step_seen();
  const bool names_are_ours = restore_names(supervisor, report);
  report->deaths = supervisor.recovery().records();
  report->rehearsals_wanted = supervisor.rehearsals().wanted();
  report->rehearsals_done = supervisor.rehearsals().done();
  report->unreaped = core.unreaped();
  report->stalls = supervisor.stalls();
  report->killed_at_stop = supervisor.killed_at_stop();
  // On another device than the CPU the vault's buffers are that device's memory, not the host's.
  (plan.device == "cpu" ? report->real_buffer_bytes : report->real_device_buffer_bytes) =
      supervisor.buffer_bytes_peak();
  report->real_process_bytes = supervisor.process_bytes_peak();
  report->real_shm_bytes = segment_bytes_of_job(claim.run);
  report->segments = segments_of_job(claim.run);
  add_ranks(supervisor, report);
  add_numa(plan, claim.run, report);
  add_losses(claim.run, report);
  add_step_logs(plan, claim.run, report);
  if (names_are_ours) add_state(claim.run, report);
  add_last_step(supervisor, report);
  if (names_are_ours && report->ending == Ending::kCompleted && report->state_digest.empty()) {
    report->exit_code = ExitCode::kCorruptState;
    report->ending_text = "the final state does not hold: " + report->digest_error;
  }
  KILL_POINT("launcher.reported");
  clean_up(plan, claim, supervisor, names_are_ours, discard_state, report);
  settle_exit_code(report);
}

void finish_in_words(const JobClaim& claim, const Supervisor& supervisor, const Status& why,
                     RunReport* report) {
  report->ending = supervisor.core().ending();
  report->steps_committed = std::max(report->steps_committed, supervisor.core().step_seen());
  report->exit_code = exit_code_for(why);
  report->segments_left = segments_of_job(claim.run);
  report->state_kept = find_state(claim.run).kind == StateKind::kWhole;
  report->clean_up_error = "the launcher: " + why.message();
  report->ending_text =
      supervisor.core().ending_text() + "; the launcher failed after that: " + why.message() +
      "; what is left of the state is as it was: " +
      (report->state_kept ? "a resumed run goes on from it" : "the next run makes it anew");
  if (report->state_digest.empty() && report->digest_error.empty()) {
    report->digest_error = "the launcher failed before";
  }
}

}  // namespace optlease
