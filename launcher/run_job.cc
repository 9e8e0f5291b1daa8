#include "launcher/run_job.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "actors/runtime/clock.h"
#include "actors/runtime/exception_status.h"
#include "actors/runtime/log.h"
#include "actors/runtime/patient_output.h"
#include "actors/runtime/program_start.h"
#include "launcher/config_file.h"
#include "launcher/files.h"
#include "launcher/job_state.h"
#include "launcher/memory_contract.h"
#include "launcher/replay_files.h"
#include "launcher/run_plan.h"
#include "launcher/supervisor.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

// Progress for people: a time and a line. Nothing waits for them to read it.
class ProgressLines {
 public:
  explicit ProgressLines(const RunOptions& options)
      : out_(options.json ? STDERR_FILENO : STDOUT_FILENO),
        quiet_(options.quiet),
        start_ms_(now_ms()) {
    std::fflush(stdout);
  }
  void operator()(const std::string& text) {
    if (quiet_) return;
    out_.put(format("[%8.3f] ", static_cast<double>(now_ms() - start_ms_) / 1000.0) + text + "\n");
  }
  double seconds() const { return static_cast<double>(now_ms() - start_ms_) / 1000.0; }

 private:
  PatientOutput out_;
  bool quiet_;
  int64_t start_ms_;
};

ExitCode fail(const RunOptions& options, const std::string& what, ExitCode code) {
  std::fprintf(stderr, "optlease %s: %s\n", options.command, what.c_str());
  return code;
}

Status write_report(const RunReport& report, const RunOptions& options) {
  const std::string json = to_json(report);
  // The file first: whoever should read the other may stand still.
  Status written;
  if (!options.report_path.empty()) {
    written = write_file_atomically(options.report_path, json + "\n");
  }
  if (options.json) {
    std::printf("%s\n", json.c_str());
  } else if (!options.quiet) {
    std::fputs(summary_text(report).c_str(), stdout);
  }
  std::fflush(stdout);
  return written;
}

// A run that ends before anything starts has a report too: who reads the file must not find the one
// of an earlier run there.
ExitCode refuse(const std::string& what, ExitCode code, const RunOptions& options,
                RunReport report = {}) {
  report.config_path = options.config_path;
  report.ending_text = what;
  report.exit_code = code;
  if (report.ending == Ending::kNone) report.digest_error = "nothing was started";
  RunOptions without_summary = options;
  without_summary.quiet = true;
  const Status written = write_report(report, without_summary);
  if (!written.is_ok()) (void)fail(options, "the report: " + written.message(), code);
  return fail(options, what, code);
}

RunReport start_report(const JobPlan& plan) {
  RunReport report;
  report.job = plan.segment.job_name;
  report.device = plan.device;
  report.world_size = plan.segment.world_size;
  report.has_trainers = !plan.trainer.command.empty();
  report.steps_wanted = plan.steps;
  const MemoryNeeds needs = needs_of(plan);
  report.planned_memory_bytes = needs.memory_bytes();
  report.planned_shm_bytes = needs.shared_memory_bytes();
  return report;
}

// What was made for a job that this launcher cannot carry on goes again, but never a state that
// counts, or may: it need not be readable here and now. REQUIRES: no process of the job lives.
void leave(JobClaim& claim) {
  if (!claim.lock.name_still_ours()) return;  // what is there now may be another run's
  bool counts = claim.resumed;
  if (!counts && Segment::exists(claim.run.control_segment())) {
    const auto state = JobState::open(claim.run);
    counts = !state || state.value().view().step_committed() != kNoStep;
  }
  if (counts || !remove_segments(claim.run).is_ok()) return;
  (void)remove_run_directory(claim.run).is_ok();
  claim.lock.release_and_unlink();
}

ExitCode supervise(const JobPlan& plan, SocketContext& context, JobClaim& claim,
                   const RunOptions& options, ProgressLines& progress, RunReport begun,
                   RunReport* report) {
  const auto directory = own_directory();
  if (!directory) {
    leave(claim);
    return refuse(directory.status().message(), ExitCode::kInternal, options, begun);
  }
  SupervisorSetup setup;
  setup.plan = plan;
  setup.program_directory = directory.value();
  setup.planned_shm_bytes = begun.planned_shm_bytes;
  setup.say = [&progress](const std::string& text) { progress(text); };
  auto supervisor = Supervisor::open(context, std::move(setup), claim);
  if (!supervisor) {
    const Status& why = supervisor.status();
    leave(claim);
    return refuse(why.message(), exit_code_for(why), options, begun);
  }
  supervisor.value()->run();
  try {
    KILL_POINT("launcher.all_ended");
    begun.wall_seconds = progress.seconds();
    begun.exit_code = exit_code_of(*supervisor.value());
    finish_job(plan, claim, *supervisor.value(), options.discard_state, &begun);
  } catch (const std::exception& error) {
    finish_in_words(claim, *supervisor.value(), status_of(error), &begun);
  }
  if (const std::string last = last_step_text(begun); !last.empty()) progress(last);
  *report = std::move(begun);
  return report->exit_code;
}

ExitCode run_claimed_job(const JobPlan& plan, SocketContext& context, JobClaim& claim,
                         const RunOptions& options, ProgressLines& progress, RunReport begun,
                         RunReport* report) {
  for (const std::string& note : claim.notes) progress(note);
  begun.config_path = options.config_path;
  begun.resumed = claim.resumed;
  progress(format("job %s: %u ranks on %s, %s", begun.job.c_str(), begun.world_size,
                  begun.device.c_str(), shared_memory_text(needs_of(plan)).c_str()));
  if (claim.resumed) {
    progress(format("continuing from step %lld", static_cast<long long>(claim.step_committed)));
  }
  return supervise(plan, context, claim, options, progress, std::move(begun), report);
}

}  // namespace

ExitCode run_planned_job(const JobPlan& plan, const RunOptions& options, RunReport* report) {
  ProgressLines progress(options);
  KILL_POINT("launcher.start");
  RunReport begun = start_report(plan);
  std::optional<SocketContext> context;
  std::optional<ClaimOutcome> outcome;
  ClaimFailure failure;
  try {
    context.emplace();  // its threads first: where they cannot be had, nothing has been touched
    outcome.emplace(claim_job(plan, options.mode));
    if (outcome->claim) {
      return run_claimed_job(plan, *context, *outcome->claim, options, progress, begun, report);
    }
    failure = outcome->failure;
  } catch (const std::exception& error) {
    const Status why = status_of(error);
    failure = {exit_code_for(why), "the launcher: " + why.message()};
    if (outcome && outcome->claim) {
      begun.ending = Ending::kLauncherFailed;
      leave(*outcome->claim);
    }
  }
  return refuse(failure.text, failure.code, options, begun);
}

ExitCode run_job(const RunOptions& options) {
  const Status blocked = block_stop_signals();
  if (!blocked.is_ok()) return fail(options, blocked.message(), ExitCode::kInternal);
  init_logging("launcher", options.quiet ? LogLevel::kError : LogLevel::kWarn);
  if (!options.report_path.empty()) {
    const Status writable = check_writable(options.report_path);
    if (!writable.is_ok()) return fail(options, "--report: " + writable.message(), ExitCode::kIo);
    std::error_code unknown;
    if (std::filesystem::equivalent(options.report_path, options.config_path, unknown)) {
      return fail(options, "--report names the job file itself; name another", ExitCode::kUsage);
    }
  }
  const Status environment = check_environment();
  if (!environment.is_ok()) {
    return refuse(environment.message(), ExitCode::kBadConfiguration, options);
  }
  auto config = load_config(options.config_path, options.overrides);
  if (!config) {
    const bool wrong = config.status().code() == StatusCode::kInvalidArgument;
    return refuse(config.status().message(),
                  wrong ? ExitCode::kBadConfiguration : exit_code_for(config.status()), options);
  }
  std::vector<std::string> notes;
  auto plan = make_plan(config.value().config, &notes);
  if (!plan) return refuse(plan.status().message(), ExitCode::kBadConfiguration, options);
  const Status replayed =
      check_replay_files(config.value(), next_step(plan.value().segment.job_name, options.mode));
  if (!replayed.is_ok()) return refuse(replayed.message(), ExitCode::kBadConfiguration, options);
  const Status placed = place_arenas(config.value().config, &plan.value(), &notes);
  if (!placed.is_ok()) return refuse(placed.message(), ExitCode::kBadConfiguration, options);
  ProgressLines progress(options);
  for (const std::string& note : notes) progress("note: " + note);
  RunReport report;
  const ExitCode code = run_planned_job(plan.value(), options, &report);
  if (report.job.empty()) return code;  // it never began
  report.config_path = config.value().path;
  KILL_POINT("launcher.before_report");
  const Status written = write_report(report, options);
  // Who asked for no summary is told of a failure all the same.
  if (options.quiet && !options.json && code != ExitCode::kOk && code != ExitCode::kInterrupted) {
    (void)fail(options, report.ending_text, code);
  }
  if (written.is_ok()) return code;
  return fail(options, "the report: " + written.message(),
              code == ExitCode::kOk ? ExitCode::kIo : code);
}

}  // namespace optlease
