// optlease-monitor: the terminal view of a running job. Arguments and signals; the rest is in
// monitor.h.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>

#include "actors/monitor/monitor.h"
#include "actors/runtime/exception_status.h"
#include "actors/runtime/program_start.h"

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "written by a signal handler");

void on_signal(int) { interrupted.store(true); }

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

// Two sockets a rank, each with descriptors of its own.
void allow_many_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int run(int argc, char** argv) {
  optlease::MonitorOptions options;
  CLI::App app("Shows what the actors of a running Optlease job do", "optlease-monitor");
  app.add_option("--job,job", options.job, "The job's name; needed once, with --job or without");
  app.add_flag("--once", options.once, "Print one view and end");
  app.add_flag("--json", options.json, "One JSON document a line, one line an update");
  app.add_option("--interval-ms", options.interval_ms, "Time between redraws")
      ->check(CLI::Range(20, 3600000))
      ->capture_default_str();
  app.add_option("--timeout-ms", options.timeout_ms,
                 "How long to wait for every rank's answer (--once), or for any")
      ->check(CLI::Range(1, 3600000))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    if (options.job.empty()) throw CLI::RequiredError("a job's name");
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return static_cast<int>(optlease::ExitCode::kOk);
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "optlease-monitor: %s; see `optlease-monitor --help`\n", error.what());
    return static_cast<int>(optlease::ExitCode::kUsage);
  }
  if (const optlease::Status wrong = optlease::check_environment(); !wrong.is_ok()) {
    std::fprintf(stderr, "optlease-monitor: %s\n", wrong.message().c_str());
    return static_cast<int>(optlease::ExitCode::kBadConfiguration);
  }
  options.is_terminal = isatty(STDOUT_FILENO) == 1;
  catch_signals();
  allow_many_descriptors();
  return static_cast<int>(optlease::run_monitor(options, &interrupted, stdout, stderr));
}

}  // namespace

int main(int argc, char** argv) {
  optlease::prepare_descriptors();
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    const optlease::Status status = optlease::status_of(error);
    std::fprintf(stderr, "optlease-monitor: %s\n", status.message().c_str());
    return static_cast<int>(exit_code_for(status));
  }
}
