// optlease restart, optlease stop
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "actors/runtime/clock.h"
#include "launcher/commands/commands.h"
#include "launcher/control_channel.h"
#include "launcher/job_state.h"
#include "launcher/json_text.h"
#include "launcher/process.h"
#include "shm/job_lock.h"
#include "shm/processes.h"
#include "shm/segment.h"
#include "shm/shared_buffer.h"

namespace optlease {
namespace {

using nlohmann::json;

constexpr int kLookMs = 300;  // between two looks at a job that stops, and for each answer

struct ControlFlags {
  std::string job;
  ControlRequest request;
  bool keep = false;
  bool discard = false;
  double timeout_s = 60;
};

// The reply as JSON, or a complaint and its code.
ExitCode ask(const char* command, const RunDirectory& run, const ControlFlags& flags, json* out) {
  const Status live = check_live(run);
  if (live.code() == StatusCode::kNotFound) {
    return complain(command, live.message(), ExitCode::kNotRunning);
  }
  if (!live.is_ok()) return complain(command, live);
  SocketContext context;
  auto reply =
      ask_launcher(context, run, flags.request, static_cast<uint64_t>(flags.timeout_s * 1000),
                   [&run] { return check_live(run); });
  if (reply.status().code() == StatusCode::kNotFound) {
    return complain(command, reply.status().message(), ExitCode::kNotRunning);
  }
  if (!reply) return complain(command, reply.status());
  *out = parse_flat_json<json>(reply.value());
  if (!out->is_object()) {
    return complain(command, "the launcher's reply is not understood", ExitCode::kInternal);
  }
  if (out->value("ok", false)) return ExitCode::kOk;
  return complain(command, out->value("error", "refused"),
                  static_cast<ExitCode>(out->value("code", static_cast<int>(ExitCode::kInternal))));
}

ExitCode restart_command(const ControlFlags& flags) {
  auto run = run_of("restart", flags.job);
  if (!run) return complain("restart", run.status());
  json reply;
  const ExitCode code = ask("restart", run.value(), flags, &reply);
  if (code != ExitCode::kOk) return code;
  for (const json& process : reply.at("processes")) {
    if (process.value("role", "") != "gpu_actor") continue;
    if (process.value("rank", UINT32_MAX) != flags.request.rank) continue;
    std::printf("gpu_actor %u of job %s is attached again: incarnation %llu, pid %d\n",
                flags.request.rank, run.value().job_name().c_str(),
                static_cast<unsigned long long>(process.value("incarnation", 0ULL)),
                process.value("pid", 0));
  }
  return ExitCode::kOk;
}

int launcher_pid(const json& reply) {
  for (const json& process : reply.at("processes")) {
    if (process.value("role", "") == "launcher") return process.value("pid", 0);
  }
  return 0;
}

// The processes that keep a stop waiting because they do not run or do not answer. Each is named
// on stderr when it is first seen.
class Laggards {
 public:
  void look(const json& status) {
    last_.clear();
    for (const json& process : status.at("processes")) {
      const int pid = process.value("pid", 0);
      const std::string role = process.value("role", "?");
      if (pid <= 0 || role == "launcher") continue;
      const uint64_t silent_ms = role == "host_store" ? process.value("silent_ms", uint64_t{0}) : 0;
      const bool stopped = is_stopped(pid);
      if (!stopped && silent_ms < kSilentMs) continue;
      const std::string rank = role == "host_store" ? "" : format(" %u", process.value("rank", 0u));
      const std::string who = role + rank + format(" (pid %d)", pid);
      last_ += (last_.empty() ? "" : ", ") + who;
      if (!named_.insert(pid).second) continue;
      ever_ += (ever_.empty() ? "" : ", ") + who;
      const std::string why =
          stopped
              ? format("is stopped by a signal or a debugger (`kill -CONT %d` lets it go on)", pid)
              : format("has not answered for %.1f s", static_cast<double>(silent_ms) / 1000);
      std::fprintf(stderr,
                   "optlease stop: %s %s; the launcher was told to stop, and kills it where it "
                   "does not end within twice restart.stop_timeout_s\n",
                   who.c_str(), why.c_str());
    }
  }
  // Those of the last look; empty: none.
  const std::string& last() const { return last_; }
  // Those of any look, whatever became of them.
  const std::string& ever() const { return ever_; }

 private:
  static constexpr uint64_t kSilentMs = 2000;
  std::set<int> named_;
  std::string last_;
  std::string ever_;
};

// What the launcher says now of the stopping job; where it says nothing, what was known before.
void look_again(const RunDirectory& run, Laggards* laggards) {
  SocketContext context;
  const auto reply =
      ask_launcher(context, run, ControlRequest{}, kLookMs, [] { return Status::ok(); });
  if (!reply) return;
  const json status = parse_flat_json<json>(reply.value());
  if (status.is_object() && status.contains("processes")) laggards->look(status);
}

// The launcher has ended: what lies in shared memory now tells whether it came so far as to remove
// the state or to mark it as kept. One that was killed leaves its socket's file as well.
ExitCode say_stopped(const RunDirectory& run, bool discard, const Laggards& laggards) {
  const std::string late = laggards.ever().empty() ? "" : "; late to end was " + laggards.ever();
  const FoundState found = find_state(run);
  // A job that is configured to keep its state has it marked by the store, whatever the wish is.
  const bool is_kept = found.kind == StateKind::kWhole && found.kept_on_purpose && !discard;
  const bool is_there = !is_kept && Segment::exists(run.control_segment());
  if (is_there && access(run.launcher_socket().c_str(), F_OK) == 0) {
    return complain("stop",
                    format("the launcher of job %s was killed before it came to the job's end: the "
                           "state is there as it was, neither removed nor marked as kept on this "
                           "wish. `optlease run JOB.toml "
                           "--resume` goes on from it, `optlease clean` removes it%s",
                           run.job_name().c_str(), late.c_str()),
                    ExitCode::kLauncherLost);
  }
  const char* state = is_kept    ? "its state is kept in shared memory"
                      : is_there ? "what is under its names in shared memory was left as it is: "
                                   "the launcher's last words say why"
                                 : "its state was removed";
  std::printf("job %s is stopped; %s%s\n", run.job_name().c_str(), state, late.c_str());
  return ExitCode::kOk;
}

// A launcher that is gone leaves its socket's file only where it was killed.
bool was_killed(const RunDirectory& run) {
  return access(run.launcher_socket().c_str(), F_OK) == 0 &&
         check_live(run).code() == StatusCode::kNotFound;
}

// The launcher ends last, and with it the job's lock.
ExitCode stop_command(const ControlFlags& given) {
  ControlFlags flags = given;
  flags.request.command = ControlRequest::Command::kStop;
  if (flags.keep) flags.request.keep = true;
  if (flags.discard) flags.request.keep = false;
  auto run = run_of("stop", flags.job);
  if (!run) return complain("stop", run.status());
  json reply;
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(flags.timeout_s * 1000));
  const bool was_live = check_live(run.value()).is_ok();
  const ExitCode code = ask("stop", run.value(), flags, &reply);
  // Killed before it answered; the wish may never have reached it.
  if (code == ExitCode::kNotRunning && was_live && was_killed(run.value())) {
    return say_stopped(run.value(), flags.discard, Laggards());
  }
  if (code != ExitCode::kOk) return code;
  const UniqueFd pidfd = open_pidfd(launcher_pid(reply));
  Laggards laggards;
  while (!deadline.passed()) {
    pollfd wait{pidfd.get(), POLLIN, 0};
    if (!pidfd || poll(&wait, 1, deadline.remaining_ms(kLookMs)) > 0) {
      return say_stopped(run.value(), flags.discard, laggards);
    }
    look_again(run.value(), &laggards);
  }
  const std::string late = laggards.last().empty() ? "" : " (it waits for " + laggards.last() + ")";
  return complain(
      "stop",
      format("job %s is still stopping after %.1f s%s; a second SIGTERM to its launcher "
             "(pid %d) kills what is left",
             run.value().job_name().c_str(), flags.timeout_s, late.c_str(), launcher_pid(reply)),
      ExitCode::kTimeout);
}

}  // namespace

void add_restart_command(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<ControlFlags>();
  flags->request.command = ControlRequest::Command::kRestart;
  CLI::App* command = app.add_subcommand(
      "restart", "Kill one rank's actor and wait until its successor is attached");
  command->add_option("job", flags->job, "The job's name or TOML file")->required();
  command->add_option("--rank", flags->request.rank, "Whose actor")
      ->required()
      ->check(CLI::Range(0u, kRankCountMax - 1));
  command->add_option("--timeout-s", flags->timeout_s, "How long to wait")
      ->check(refuse_nan)
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command->callback([=] { *chosen = [flags] { return restart_command(*flags); }; });
}

void add_stop_command(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<ControlFlags>();
  CLI::App* command =
      app.add_subcommand("stop", "Stop a job at the next step boundary and wait for its end");
  command->add_option("job", flags->job, "The job's name or TOML file")->required();
  CLI::Option* keep =
      command->add_flag("--keep", flags->keep, "Keep the state in shared memory, for --resume");
  command->add_flag("--discard", flags->discard, "Remove the state whatever the job says")
      ->excludes(keep);
  command->add_option("--timeout-s", flags->timeout_s, "How long to wait")
      ->check(refuse_nan)
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command->callback([=] { *chosen = [flags] { return stop_command(*flags); }; });
}

}  // namespace optlease
