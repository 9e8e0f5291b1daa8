// The report of one run: every number and check that `optlease run --report FILE` writes and that
// --json prints. Pure: the runner gathers, this judges and makes JSON. docs/OPERATING.md explains
// the fields.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/exit_code.h"
#include "actors/runtime/step_figures.h"
#include "launcher/recovery_log.h"
#include "launcher/stall_watch.h"
#include "launcher/supervisor_core.h"

namespace optlease {

struct LossPoint {
  Step step = 0;
  double loss = 0;  // mean over the ranks that reported it
  uint32_t ranks = 0;
};
// Reads JSON lines {"step": .., "loss": ..}, one text a rank. Of several lines about a step of a
// rank the last wins, because a restarted trainer repeats steps; lines cut short by a kill are
// skipped.
std::vector<LossPoint> loss_curve_of(const std::vector<std::string>& texts);

struct RankReport {
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  uint64_t bytes_h2d = 0;  // over all lives of the rank's actor in this run
  uint64_t bytes_d2h = 0;
  bool bytes_are_exact = true;     // false: of a life only its last answer was known
  uint64_t bytes_bounced = 0;      // of both: not pinned, copied twice
  uint64_t pin_refused_bytes = 0;  // of the last life's arena
  bool staging_known = false;      // false: no actor of the rank came as far as its staging
  uint64_t staging_peak_bytes = 0;
  uint64_t staging_budget_bytes = 0;
  uint64_t leases_deferred = 0;  // they waited for credit
  double credit_wait_seconds = 0;
  std::optional<double> grad_norm;   // of the last step
  std::optional<int64_t> numa_node;  // where its arena was to lie; none: anywhere
  uint32_t numa_pages = 0;           // sampled at the end
  uint32_t numa_pages_elsewhere = 0;
  std::string numa_text;  // the same in words, or why no page could be looked at
  std::string digest;     // empty: not computed
  bool telemetry_heard = false;
  std::vector<StepFigures> steps;  // where telemetry.step_log is on: the last ones
};
inline constexpr size_t kReportedStepsMax = 4096;

struct StepSeconds {
  double p50 = 0, p90 = 0, p99 = 0, max = 0;
  uint64_t steps_measured = 0;  // of the rank that measured the fewest; kStepTimesMax at most
};

struct RunReport {
  std::string job;
  std::string config_path;
  std::string device;
  uint32_t world_size = 0;
  bool resumed = false;
  bool has_trainers = false;
  Ending ending = Ending::kNone;  // kNone: the run was refused before anything started
  std::string ending_text;
  ExitCode exit_code = ExitCode::kInternal;
  double wall_seconds = 0;

  Step steps_wanted = 0;
  Step steps_committed = kNoStep;
  uint64_t steps_skipped = 0;
  uint64_t commits = 0;  // chunks, as the last life of the store counted
  std::vector<LossPoint> loss_curve;
  std::optional<double> last_step_seconds;  // of the slowest rank
  std::optional<StepSeconds> step_seconds;  // of the slowest rank, each percentile by itself
  std::vector<RankReport> ranks;

  std::vector<DeathRecord> deaths;
  uint32_t rehearsals_wanted = 0;  // that could still happen in this run
  uint32_t rehearsals_done = 0;
  std::vector<std::string> unreaped;
  std::vector<Stall> stalls;
  std::vector<KilledAtStop> killed_at_stop;  // they did not end when they were asked to

  uint64_t planned_memory_bytes = 0;
  uint64_t planned_shm_bytes = 0;
  uint64_t real_shm_bytes = 0;     // segments, at the end
  uint64_t real_buffer_bytes = 0;  // parameters and gradients that the vault held, host memory
  uint64_t real_device_buffer_bytes = 0;  // the same, with the shards, in the GPUs' memory
  uint64_t real_process_bytes = 0;  // largest sum of the children's private memory seen (VmRSS less
                                    // RssShmem and RssFile)

  std::string state_digest;  // empty: not computed
  std::string digest_error;
  bool state_kept = false;
  std::vector<std::string> segments;          // names that the job had
  std::vector<std::string> segments_left;     // that exist after the clean-up
  std::string clean_up_error;                 // of the segments; empty: all went well
  std::optional<bool> run_directory_removed;  // none: it was to stay
  std::string run_directory_text;             // what became of it
};

struct ReportCheck {
  std::string name;
  std::optional<bool> passed;  // none: it could not be made; `detail` says why
  std::string detail;
  bool counts = true;  // false: what was survived; it is told, and fails no run
  bool failed() const { return passed == false; }
};
// What a run has to have been; it passes when none of them that counts fails. Of a run that was
// refused before anything started only what is true of such a run.
std::vector<ReportCheck> checks_of(const RunReport& report);
// None failed, those that do not count among them.
bool passed(const std::vector<ReportCheck>& checks);
// 0 and `passed` mean the same: a check that counts and failed takes the 0 away, and the ending's
// words say which.
void settle_exit_code(RunReport* report);
// True of a check that a run which was stopped before its last step cannot pass.
bool is_about_the_end(const ReportCheck& check);
// "passed"; "stopped": ended by a wish before its last step, and nothing else is amiss; "refused":
// nothing was started; "failed".
const char* verdict_of(const RunReport& report);

std::string to_json(const RunReport& report);
// The last line of progress: the last committed step, and how long it took where that is known.
// Empty where no step was committed.
std::string last_step_text(const RunReport& report);
// A few lines for people, ending with how it went.
std::string summary_text(const RunReport& report);

}  // namespace optlease
