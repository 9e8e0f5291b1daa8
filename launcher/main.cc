// optlease: the launcher and its tools. Arguments only; each command is in commands/.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "actors/runtime/exit_code.h"
#include "launcher/commands/commands.h"

namespace {

using optlease::ExitCode;

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
    std::fprintf(stderr, "optlease: %s; see optlease --help\n", error.what());
    return ExitCode::kUsage;
  }
  const ExitCode code = chosen();
  // Whoever asked for a document must not take half of it, or none, for success.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "optlease: standard output could not be written\n");
  return code == ExitCode::kOk ? ExitCode::kIo : code;
}

// What a caller closed must not become the number of a file that matters: words written to
// descriptor 1 would go into it.
void reserve_standard_descriptors() {
  int fd = 0;
  while ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO) continue;
  if (fd > STDERR_FILENO) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  reserve_standard_descriptors();
  // A file past RLIMIT_FSIZE is an error of its write, with words, not a silent end.
  signal(SIGXFSZ, SIG_IGN);
  try {
    return static_cast<int>(run(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "optlease: %s\n", error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}
