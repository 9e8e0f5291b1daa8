// optlease: the launcher and its tools. Arguments only; each command is in commands/.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "actors/runtime/exception_status.h"
#include "actors/runtime/exit_code.h"
#include "actors/runtime/program_start.h"
#include "launcher/commands/commands.h"

namespace {

using optlease::ExitCode;
using optlease::Status;

std::string exit_code_footer() {
  std::string text = "Exit codes:\n";
  for (const ExitCode code : optlease::all_exit_codes()) {
    text += optlease::format("  %2d  %-18s %s\n", static_cast<int>(code), name_of(code),
                             meaning_of(code));
  }
  return text;
}

ExitCode run(int argc, char** argv) {
  CLI::App app("Optimizer state that outlives the processes that compute with it", "optlease");
  app.set_version_flag("--version", "optlease " OPTLEASE_VERSION);
  app.require_subcommand(1);
  app.footer(exit_code_footer());
  optlease::Command chosen;
  optlease::add_run_command(app, &chosen);
  optlease::add_plan_command(app, &chosen);
  optlease::add_status_command(app, &chosen);
  optlease::add_monitor_command(app, &chosen);
  optlease::add_restart_command(app, &chosen);
  optlease::add_stop_command(app, &chosen);
  optlease::add_clean_command(app, &chosen);
  optlease::add_digest_command(app, &chosen);
  optlease::add_export_command(app, &chosen);
  optlease::add_selftest_command(app, &chosen);
  optlease::add_compare_command(app, &chosen);
  optlease::add_bench_command(app, &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    app.exit(asked);
    return ExitCode::kOk;
  } catch (const CLI::Error& error) {
    // The command that was understood before the error, if any.
    const auto commands = app.get_subcommands();
    const std::string program = commands.empty() ? "" : " " + commands.front()->get_name();
    std::fprintf(stderr, "optlease%s: %s; see `optlease%s --help`\n", program.c_str(), error.what(),
                 program.c_str());
    return ExitCode::kUsage;
  }
  const Status environment = optlease::check_environment();
  // `run` says it itself: a refused run has a report.
  if (!environment.is_ok() && !app.got_subcommand("run")) {
    return optlease::complain(app.get_subcommands().front()->get_name().c_str(),
                              environment.message(), ExitCode::kBadConfiguration);
  }
  const ExitCode code = chosen();
  // Whoever asked for a document must not take half of it, or none, for success.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "optlease: standard output could not be written\n");
  return code == ExitCode::kOk ? ExitCode::kIo : code;
}

}  // namespace

int main(int argc, char** argv) {
  optlease::prepare_descriptors();
  // A file past RLIMIT_FSIZE is an error of its write, with words, not a silent end.
  signal(SIGXFSZ, SIG_IGN);
  try {
    return static_cast<int>(run(argc, argv));
  } catch (const std::exception& error) {
    const Status status = optlease::status_of(error);
    std::fprintf(stderr, "optlease: %s\n", status.message().c_str());
    return static_cast<int>(exit_code_for(status));
  }
}
