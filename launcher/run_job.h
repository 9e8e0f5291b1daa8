// `optlease run`: from a configuration file to an exit code. Puts together what the other files of
// this folder do; prints progress and the report. One call a process.
#pragma once

#include <string>
#include <vector>

#include "actors/runtime/exit_code.h"
#include "launcher/job_claim.h"
#include "launcher/report.h"

namespace optlease {

struct RunOptions {
  std::string config_path;
  std::vector<std::string> overrides;  // "section.key=value"
  StartMode mode = StartMode::kNew;
  std::string report_path;      // empty: none
  bool json = false;            // the report on stdout, progress on stderr
  bool quiet = false;           // no progress
  bool discard_state = false;   // whatever happens: nobody will want to go on from it
  const char* command = "run";  // in error messages
};

ExitCode run_job(const RunOptions& options);
// The same for a plan that is already made, up to and with the clean-up; the report is given back
// instead of printed, and stays empty where the job never began (then what `options` says of
// reports holds for the refusal). REQUIRES: block_stop_signals() was called.
ExitCode run_planned_job(const JobPlan& plan, const RunOptions& options, RunReport* report);

class Supervisor;
// The end of a job whose every process is gone: digest, clean-up, numbers. Reads `supervisor`,
// removes or keeps the segments, and releases the claim's lock. Used by run_job alone.
void finish_job(const JobPlan& plan, JobClaim& claim, Supervisor& supervisor, bool discard_state,
                RunReport* report);
// Where finish_job failed half-way: what it had found stands, and the state is left as it lies.
void finish_in_words(const JobClaim& claim, const Supervisor& supervisor, const Status& why,
                     RunReport* report);
// The exit code that an ending means.
ExitCode exit_code_of(const Supervisor& supervisor);

}  // namespace optlease
