// optlease-gpu-actor: one rank's actor. Started by the launcher; see --help for starting it by
// hand.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "actors/gpu_actor/collective_parts.h"
#include "actors/gpu_actor/device.h"
#include "actors/gpu_actor/gpu_actor.h"
#include "actors/runtime/death_page.h"
#include "actors/runtime/exception_status.h"
#include "actors/runtime/log.h"
#include "actors/runtime/program_start.h"

namespace optlease {
namespace {

ExitCode run_actor(const ChildArgs& args) {
  // Before there is anything that takes long to tear down; let go of last, at an orderly end.
  const Result<DeathPageHold> hold = DeathPageHold::take(args.death_page_fd);
  init_logging(format("gpu_actor.%u", args.rank), args.log_level);
  if (const Status environment = check_environment(); !environment.is_ok()) {
    log_error("%s", environment.message().c_str());
    return ExitCode::kBadConfiguration;
  }
  const Result<RunDirectory> directory = RunDirectory::of(args.job);
  Result<Lifeline> lifeline = Lifeline::adopt(args.lifeline_fd);
  Status failed = !directory.is_ok() ? directory.status() : lifeline.status();
  if (failed.is_ok()) failed = hold.status();
  if (failed.is_ok()) failed = directory.value().check();
  if (failed.is_ok()) {
    Result<JobPlan> plan = read_job_plan(directory.value().job_file());
    if (plan.is_ok()) {
      Result<std::unique_ptr<GpuActor>> actor =
          GpuActor::create(args, std::move(plan).value(), directory.value(),
                           std::move(lifeline).value(), hold.value().figures());
      if (actor.is_ok()) return actor.value()->run();
      failed = actor.status();
    } else {
      failed = plan.status();
    }
  }
  log_error("cannot start: %s", failed.text().c_str());
  return exit_code_for(failed);
}

}  // namespace
}  // namespace optlease

int main(int argc, char** argv) {
  optlease::prepare_descriptors();
  // A peer that is gone is an error of its call, not the end of this process.
  signal(SIGPIPE, SIG_IGN);
  optlease::prepare_device_environment();
  optlease::prepare_collectives_environment();
  // Gloo's own threads throw where no caller can catch, for one when a peer dies while it connects:
  // that ends this life with words, and the launcher starts the next one.
  std::set_terminate([] {
    std::fputs(
        "optlease-gpu-actor: an exception outside every caller (a library's thread); ending\n",
        stderr);
    _exit(static_cast<int>(optlease::ExitCode::kInternal));
  });
  const optlease::ChildProgram program{
      "optlease-gpu-actor", "Leases one rank's optimizer state and runs the update rule over it.",
      true};
  try {
    const optlease::ChildArgsOutcome outcome = optlease::parse_child_args(program, argc, argv);
    if (!outcome.args) {
      const bool help = outcome.exit_code == optlease::ExitCode::kOk;
      std::fputs(outcome.text.c_str(), help ? stdout : stderr);
      return static_cast<int>(outcome.exit_code);
    }
    return static_cast<int>(optlease::run_actor(*outcome.args));
  } catch (const std::exception& error) {
    const optlease::Status status = optlease::status_of(error);
    optlease::log_error("%s", status.message().c_str());
    return static_cast<int>(exit_code_for(status));
  }
}
