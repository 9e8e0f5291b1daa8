#include "launcher/run_job.h"

#include <cstdio>
#include <filesystem>

#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"
#include "actors/runtime/program_start.h"
#include "launcher/config_file.h"
#include "launcher/files.h"
#include "launcher/memory_contract.h"
#include "launcher/replay_files.h"
#include "launcher/run_plan.h"
#include "launcher/supervisor.h"

namespace optlease {
namespace {

// Progress for people: a time and a line.
class ProgressLines {
 public:
  explicit ProgressLines(const RunOptions& options)
      : out_(options.json ? stderr : stdout), quiet_(options.quiet), start_ms_(now_ms()) {}
  void operator()(const std::string& text) const {
    if (quiet_) return;
    std::fprintf(out_, "[%8.3f] %s\n", static_cast<double>(now_ms() - start_ms_) / 1000.0,
                 text.c_str());
    std::fflush(out_);
  }
  double seconds() const { return static_cast<double>(now_ms() - start_ms_) / 1000.0; }

 private:
  FILE* out_;
  bool quiet_;
  int64_t start_ms_;
};

ExitCode fail(const RunOptions& options, const std::string& what, ExitCode code) {
  std::fprintf(stderr, "optlease %s: %s\n", options.command, what.c_str());
  return code;
}

Status write_report(const RunReport& report, const RunOptions& options) {
  const std::string json = to_json(report);
  if (options.json) {
    std::printf("%s\n", json.c_str());
  } else if (!options.quiet) {
    std::fputs(summary_text(report).c_str(), stdout);
  }
  std::fflush(stdout);
  if (options.report_path.empty()) return Status::ok();
  return write_file_atomically(options.report_path, json + "\n");
}

// A run that ends before anything starts has a report too: who reads the file must not find the one
// of an earlier run there.
ExitCode refuse(const std::string& what, ExitCode code, const RunOptions& options,
                RunReport report = {}) {
  report.config_path = options.config_path;
  report.ending_text = what;
  report.exit_code = code;
  report.digest_error = "nothing was started";
  RunOptions without_summary = options;
  without_summary.quiet = true;
  const Status written = write_report(report, without_summary);
  if (!written.is_ok()) (void)fail(options, "the report: " + written.message(), code);
  return fail(options, what, code);
}

// A look at the state without its lock: what it says is checked again when it is claimed.
Status check_replay(const RunOptions& options, const LoadedConfig& config, const JobPlan& plan) {
  const auto run = RunDirectory::of(plan.segment.job_name);
  if (!run) return Status::ok();  // the claim says so
  const Step next = options.mode == StartMode::kFresh ? 1 : next_step_of(run.value());
  return check_replay_files(plan, next, config.replay_place);
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

ExitCode supervise(const JobPlan& plan, JobClaim& claim, const RunOptions& options,
                   const ProgressLines& progress, RunReport begun, RunReport* report) {
  const auto directory = own_directory();
  if (!directory) {
    return refuse(directory.status().message(), ExitCode::kInternal, options, begun);
  }
  SocketContext context;
  SupervisorSetup setup;
  setup.plan = plan;
  setup.program_directory = directory.value();
  setup.planned_shm_bytes = begun.planned_shm_bytes;
  setup.say = [&progress](const std::string& text) { progress(text); };
  auto supervisor = Supervisor::open(context, std::move(setup), claim);
  if (!supervisor) {
    const Status& why = supervisor.status();
    return refuse(why.message(), exit_code_for(why), options, begun);
  }
  supervisor.value()->run();
  begun.wall_seconds = progress.seconds();
  begun.exit_code = exit_code_of(*supervisor.value());
  finish_job(plan, claim, *supervisor.value(), options.discard_state, &begun);
  if (const std::string last = last_step_text(begun); !last.empty()) progress(last);
  *report = std::move(begun);
  return report->exit_code;
}

}  // namespace

ExitCode run_planned_job(const JobPlan& plan, const RunOptions& options, RunReport* report) {
  const ProgressLines progress(options);
  ClaimOutcome outcome = claim_job(plan, options.mode);
  RunReport begun = start_report(plan);
  if (!outcome.claim) return refuse(outcome.failure.text, outcome.failure.code, options, begun);
  JobClaim& claim = *outcome.claim;
  for (const std::string& note : claim.notes) progress(note);
  begun.config_path = options.config_path;
  begun.resumed = claim.resumed;
  progress(format("job %s: %u ranks on %s, %s", begun.job.c_str(), begun.world_size,
                  begun.device.c_str(), shared_memory_text(needs_of(plan)).c_str()));
  if (claim.resumed) {
    progress(format("continuing from step %lld", static_cast<long long>(claim.step_committed)));
  }
  return supervise(plan, claim, options, progress, std::move(begun), report);
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
  const Status placed = place_arenas(config.value().config, &plan.value(), &notes);
  if (!placed.is_ok()) return refuse(placed.message(), ExitCode::kBadConfiguration, options);
  const Status replayed = check_replay(options, config.value(), plan.value());
  if (!replayed.is_ok()) return refuse(replayed.message(), ExitCode::kBadConfiguration, options);
  const ProgressLines progress(options);
  for (const std::string& note : notes) progress("note: " + note);
  RunReport report;
  const ExitCode code = run_planned_job(plan.value(), options, &report);
  if (report.job.empty()) return code;  // it never began
  report.config_path = config.value().path;
  const Status written = write_report(report, options);
  if (written.is_ok()) return code;
  return fail(options, "the report: " + written.message(),
              code == ExitCode::kOk ? ExitCode::kIo : code);
}

}  // namespace optlease
