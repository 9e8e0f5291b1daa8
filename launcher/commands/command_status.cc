// optlease status, optlease monitor
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "actors/runtime/monitor_defaults.h"
#include "launcher/commands/commands.h"
#include "launcher/control_channel.h"
#include "launcher/job_claim.h"
#include "launcher/json_text.h"
#include "launcher/memory_contract.h"
#include "launcher/process.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;

struct StatusFlags {
  std::string job;
  bool json = false;
  double timeout_s = 5;
};

Json leftover_json(const LeftoverJob& job) {
  Json out = {
      {"job", job.job}, {"state", name_of(job.state)}, {"step_committed", job.step_committed}};
  out["bytes"] = job.bytes;
  out["segments"] = job.segments;
  out["run_directory"] = job.run_directory;
  if (!job.why.empty()) out["why"] = job.why;
  return out;
}

ExitCode list_jobs(const StatusFlags& flags) {
  auto jobs = scan_leftovers(leftover_places());
  if (!jobs) return complain("status", jobs.status());
  // One whose lock's name was removed lives all the same.
  for (LeftoverJob& job : jobs.value()) {
    const auto run = RunDirectory::of(job.job);
    if (run && job_answers(run.value())) job.state = LeftoverState::kLive;
  }
  if (flags.json) {
    Json list = Json::array();
    for (const LeftoverJob& job : jobs.value()) list.push_back(leftover_json(job));
    std::printf("%s\n", Json{{"jobs", list}}.dump(2).c_str());
    return ExitCode::kOk;
  }
  if (jobs.value().empty()) std::printf("no jobs of this user on this node\n");
  for (const LeftoverJob& job : jobs.value()) {
    std::printf("%-32s %-10s", job.job.c_str(), name_of(job.state));
    if (job.step_committed != kNoStep) {
      std::printf(" step %lld", static_cast<long long>(job.step_committed));
    }
    std::printf("  %s%s%s\n", bytes_text(job.bytes).c_str(), job.why.empty() ? "" : "  ",
                job.why.c_str());
  }
  return ExitCode::kOk;
}

void print_status(const Json& status) {
  std::printf("%s: %s, step %lld of %lld, %llu skipped, %llu restarts\n",
              status.value("job", "?").c_str(), status.value("state", "?").c_str(),
              static_cast<long long>(status.value("step_committed", -1LL)),
              static_cast<long long>(status.value("steps", 0LL)),
              static_cast<unsigned long long>(status.value("steps_skipped", 0ULL)),
              static_cast<unsigned long long>(status.value("restarts", 0ULL)));
  std::printf("%-11s %5s %8s %12s %-11s %s\n", "role", "rank", "pid", "incarnation", "state",
              "phase");
  for (const Json& process : status.at("processes")) {
    std::printf("%-11s %5lld %8lld %12lld %-11s %s\n", process.value("role", "?").c_str(),
                process.value("rank", 0LL), process.value("pid", 0LL),
                process.value("incarnation", 0LL), process.value("state", "?").c_str(),
                process.value("phase", "").c_str());
  }
}

ExitCode dead_job(const RunDirectory& run, const StatusFlags& flags) {
  auto jobs = scan_leftovers(leftover_places());
  if (!jobs) return complain("status", jobs.status());
  for (const LeftoverJob& job : jobs.value()) {
    if (job.job != run.job_name()) continue;
    Json out = leftover_json(job);
    out["processes"] = Json::array();
    if (flags.json) {
      std::printf("%s\n", out.dump(2).c_str());
    } else {
      std::printf("%s: does not run; %s, step %lld, %s%s%s\n", job.job.c_str(), name_of(job.state),
                  static_cast<long long>(job.step_committed), bytes_text(job.bytes).c_str(),
                  job.why.empty() ? "" : ": ", job.why.c_str());
    }
    return ExitCode::kOk;
  }
  return complain("status", "there is no job " + run.job_name() + " of this user on this node",
                  ExitCode::kNotRunning);
}

ExitCode status_command(const StatusFlags& flags) {
  if (flags.job.empty()) return list_jobs(flags);
  auto run = run_of("status", flags.job);
  if (!run) return complain("status", run.status());
  const Status live = check_live(run.value());
  if (live.code() == StatusCode::kNotFound) return dead_job(run.value(), flags);
  if (!live.is_ok()) return complain("status", live);
  SocketContext context;
  auto reply = ask_launcher(context, run.value(), ControlRequest{},
                            static_cast<uint64_t>(flags.timeout_s * 1000),
                            [&run] { return check_live(run.value()); });
  if (reply.status().code() == StatusCode::kNotFound) return dead_job(run.value(), flags);
  if (!reply) return complain("status", reply.status());
  const Json status = parse_flat_json<Json>(reply.value());
  if (!status.is_object() || !status.contains("processes")) {
    return complain("status", "the launcher's reply is not understood", ExitCode::kInternal);
  }
  if (flags.json) {
    std::printf("%s\n", status.dump(2).c_str());
  } else {
    print_status(status);
  }
  return ExitCode::kOk;
}

struct MonitorFlags {
  std::string job;
  bool once = false;
  bool json = false;
  int interval_ms = kMonitorIntervalMs;
  int timeout_ms = kMonitorTimeoutMs;
};

// Becomes the monitor, so that its exit code and signals are its own.
ExitCode monitor_command(const MonitorFlags& flags) {
  const auto run = run_of("monitor", flags.job);
  if (!run) return complain("monitor", run.status());
  const auto directory = own_directory();
  if (!directory) return complain("monitor", directory.status());
  std::vector<std::string> argv = {directory.value() + "/optlease-monitor", "--job",
                                   run.value().job_name()};
  if (flags.once) argv.emplace_back("--once");
  if (flags.json) argv.emplace_back("--json");
  argv.insert(argv.end(), {"--interval-ms", std::to_string(flags.interval_ms), "--timeout-ms",
                           std::to_string(flags.timeout_ms)});
  std::vector<char*> pointers;
  pointers.reserve(argv.size() + 1);
  for (std::string& word : argv) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(pointers[0], pointers.data());
  return complain("monitor", argv[0] + " cannot be executed: " + strerror(errno), ExitCode::kIo);
}

}  // namespace

void add_status_command(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command = app.add_subcommand(
      "status", "Show a job's processes and step, or list this user's jobs on this node");
  command->add_option("job", flags->job, "The job's name or TOML file; none: list all jobs");
  command->add_flag("--json", flags->json, "One JSON document");
  command->add_option("--timeout-s", flags->timeout_s, "How long to wait for the launcher")
      ->check(refuse_nan)
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->callback([=] { *chosen = [flags] { return status_command(*flags); }; });
}

void add_monitor_command(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<MonitorFlags>();
  CLI::App* command = app.add_subcommand("monitor", "Watch the actors of a running job");
  command->add_option("job", flags->job, "The job's name or TOML file")->required();
  command->add_flag("--once", flags->once, "Print one view and end");
  command->add_flag("--json", flags->json, "One JSON document a line");
  command->add_option("--interval-ms", flags->interval_ms, "Time between redraws")
      ->check(CLI::Range(20, 3600000))
      ->capture_default_str();
  command
      ->add_option("--timeout-ms", flags->timeout_ms,
                   "How long to wait for every rank's answer (--once), or for any")
      ->check(CLI::Range(1, 3600000))
      ->capture_default_str();
  command->callback([=] { *chosen = [flags] { return monitor_command(*flags); }; });
}

}  // namespace optlease
