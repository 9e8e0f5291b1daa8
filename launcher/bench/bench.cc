#include "launcher/bench/bench.h"

#include <sys/resource.h>

#include <cstdio>

#include "actors/runtime/log.h"
#include "launcher/bench/bench_floor.h"
#include "launcher/memory_contract.h"
#include "launcher/process.h"
#include "launcher/run_job.h"
#include "launcher/supervisor.h"

namespace optlease {
namespace {

ExitCode fail(const std::string& text, ExitCode code) {
  std::fprintf(stderr, "optlease bench: %s\n", text.c_str());
  return code;
}

void say(const std::string& text) { std::fprintf(stderr, "optlease bench: %s\n", text.c_str()); }

// Of every child that has been reaped.
double children_cpu_seconds() {
  rusage usage{};
  if (getrusage(RUSAGE_CHILDREN, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

bool machine_has_gpu() {
  const auto run = RunDirectory::of("optlease");
  if (!run) return false;
  const uint64_t count = read_machine_facts(run.value(), 1).gpu_count;
  return count != kNoLimit && count > 0;
}

// What the supervisor would find out later, before minutes are spent on a floor.
Status check_machine(const JobPlan& plan) {
  const auto run = RunDirectory::of(plan.segment.job_name);
  if (!run) return run.status();
  return check(
      memory_rows(needs_of(plan), read_machine_facts(run.value(), plan.segment.world_size)));
}

uint64_t parameters_of(const JobPlan& plan) {
  uint64_t parameters = 0;
  for (const SpaceSpec& space : plan.segment.spaces) parameters += space.elements;
  return parameters;
}

ExitCode run_measured_job(const JobPlan& plan, bool fresh, RunReport* report) {
  RunOptions options;
  options.command = "bench";
  options.quiet = true;
  options.discard_state = true;
  options.mode = fresh ? StartMode::kFresh : StartMode::kNew;
  const ExitCode code = run_planned_job(plan, options, report);
  if (code == ExitCode::kInterrupted) return fail("interrupted", code);
  if (code != ExitCode::kOk) {
    const std::string why = report->ending_text.empty() ? "" : ": " + report->ending_text;
    return fail("the job did not end as it should" + why, code);
  }
  // Deaths that were survived are in nobody's figures.
  const auto checks = checks_of(*report);
  for (const ReportCheck& check : checks) {
    if (check.failed()) say("check failed: " + check.name + ": " + check.detail);
  }
  return passed(checks) ? ExitCode::kOk
                        : fail("the job's report did not pass", ExitCode::kInternal);
}

ExitCode measure(const BenchOptions& options, const std::string& programs, BenchResult* result) {
  const JobPlan& plan = result->plan;
  const std::vector<FloorSetup> setups = floor_setups(plan);
  say(format("job %s: %u ranks on %s, %llu parameters", plan.segment.job_name.c_str(),
             plan.segment.world_size, plan.device.c_str(),
             static_cast<unsigned long long>(result->parameters)));
  say("measuring the floor");
  FloorOutcome floor = measure_floor(setups, options.floor_ms, programs);
  if (floor.code != ExitCode::kOk) return fail(floor.text, floor.code);
  result->before = std::move(floor.ranks);

  say(format("running %lld steps", static_cast<long long>(plan.steps)));
  const double cpu_before = children_cpu_seconds();
  RunReport report;
  const ExitCode ran = run_measured_job(plan, options.fresh, &report);
  if (ran != ExitCode::kOk) return ran;
  result->job_cpu_seconds = children_cpu_seconds() - cpu_before;
  result->state_digest = report.state_digest;

  say("measuring the floor again");
  floor = measure_floor(setups, options.floor_ms, programs);
  if (floor.code != ExitCode::kOk) return fail(floor.text, floor.code);
  result->after = std::move(floor.ranks);

  BenchInput input{result->parameters, options.warm_up, {}, result->before, result->after};
  for (const RankReport& rank : report.ranks) input.steps.push_back(rank.steps);
  const auto figures = bench_figures(input);
  if (!figures) return fail(figures.status().message(), ExitCode::kInternal);
  result->figures = figures.value();
  return ExitCode::kOk;
}

}  // namespace

ExitCode run_bench(const BenchOptions& options) {
  const Status blocked = block_stop_signals();
  if (!blocked.is_ok()) return fail(blocked.message(), ExitCode::kInternal);
  init_logging("launcher", LogLevel::kError);
  const auto programs = own_directory();
  if (!programs) return fail(programs.status().message(), ExitCode::kInternal);
  auto plan = bench_plan(options, machine_has_gpu());
  if (!plan) {
    const bool refused = plan.status().code() == StatusCode::kInvalidArgument;
    return fail(plan.status().message(),
                refused ? ExitCode::kBadConfiguration : exit_code_for(plan.status()));
  }
  BenchResult result;
  result.plan = std::move(plan).value();
  result.parameters = parameters_of(result.plan);
  if (const Status fits = check_machine(result.plan); !fits.is_ok()) {
    return fail(fits.message(), exit_code_for(fits));
  }
  const ExitCode code = measure(options, programs.value(), &result);
  if (code != ExitCode::kOk) return code;
  std::fputs(options.json ? (bench_json(result) + "\n").c_str() : bench_text(result).c_str(),
             stdout);
  return ExitCode::kOk;
}

}  // namespace optlease
