// optlease-host-store: one a node; owns the optimizer state in shared memory, grants leases,
// commits.
#include <signal.h>

#include <cstdio>
#include <exception>

#include "actors/host_store/host_store.h"
#include "actors/runtime/exception_status.h"
#include "actors/runtime/log.h"
#include "actors/runtime/program_start.h"

namespace {

int run(int argc, char** argv) {
  using namespace optlease;
  const ChildProgram program{
      .name = "optlease-host-store",
      .description = "Owns a job's optimizer state in shared memory: leases, commits, recovery.",
      .has_rank = false};
  const ChildArgsOutcome outcome = parse_child_args(program, argc, argv);
  if (!outcome.args) {
    std::fputs(outcome.text.c_str(), outcome.exit_code == ExitCode::kOk ? stdout : stderr);
    return static_cast<int>(outcome.exit_code);
  }
  init_logging("host_store", outcome.args->log_level);
  if (const Status environment = check_environment(); !environment.is_ok()) {
    log_error("%s", environment.message().c_str());
    return static_cast<int>(ExitCode::kBadConfiguration);
  }
  return static_cast<int>(run_host_store(*outcome.args));
}

}  // namespace

int main(int argc, char** argv) {
  optlease::prepare_descriptors();
  // Before any library starts a thread: signals arrive through a descriptor.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    const optlease::Status status = optlease::status_of(error);
    optlease::log_error("%s", status.message().c_str());
    return static_cast<int>(exit_code_for(status));
  }
}
