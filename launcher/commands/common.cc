// What the commands share.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "launcher/commands/commands.h"
#include "launcher/config_file.h"
#include "launcher/job_claim.h"
#include "launcher/job_place.h"
#include "shm/job_lock.h"

namespace optlease {

ExitCode complain(const char* command, const std::string& text, ExitCode code) {
  std::fprintf(stderr, "optlease %s: %s\n", command, text.c_str());
  return code;
}

ExitCode complain(const char* command, const Status& status) {
  return complain(command, status.message(), exit_code_for(status));
}

Result<std::string> job_named(const std::string& name_or_path) {
  if (name_or_path.find('/') == std::string::npos && !name_or_path.ends_with(".toml")) {
    const std::string why = why_invalid_job_name(name_or_path);
    if (why.empty()) return name_or_path;
    return Status(StatusCode::kInvalidArgument, "\"" + name_or_path + "\" is no job name: " + why);
  }
  auto config = load_config(name_or_path);
  if (!config) return config.status();
  return config.value().config.job_name;
}

namespace {

// A run directory that somebody else prepared is neither read nor spoken to. One that is not there
// is nothing against the job: its state may be kept.
Result<RunDirectory> checked_run_of(const std::string& name) {
  auto run = RunDirectory::of(name);
  if (!run) return run;
  const Status own = run.value().check();
  if (!own && own.code() != StatusCode::kNotFound) return own;
  return run;
}

}  // namespace

Result<RunDirectory> run_of(const char* command, const std::string& name_or_path) {
  auto name = job_named(name_or_path);
  if (!name) return name.status();
  auto run = checked_run_of(name.value());
  if (!run) return run;
  const auto place = runs_elsewhere(run.value());
  if (!place) return run;
  const bool has_variable = !place->xdg_runtime_dir.empty();
  const std::string text = format(
      "job %s runs in %s/%s (process %d), not in %s, which is where XDG_RUNTIME_DIR points "
      "here",
      name.value().c_str(), place->run_root.c_str(), name.value().c_str(), place->pid,
      run.value().path().c_str());
  if (!place->listens) {
    return Status(StatusCode::kBusy,
                  text +
                      "; its launcher does not answer there: it starts or ends, or that "
                      "directory is another container's. Try again " +
                      (has_variable ? "with XDG_RUNTIME_DIR=" + place->xdg_runtime_dir
                                    : "without XDG_RUNTIME_DIR"));
  }
  std::fprintf(stderr, "optlease %s: %s: going there\n", command, text.c_str());
  const int failed = has_variable ? setenv("XDG_RUNTIME_DIR", place->xdg_runtime_dir.c_str(), 1)
                                  : unsetenv("XDG_RUNTIME_DIR");
  if (failed != 0) return Status(StatusCode::kInternal, "XDG_RUNTIME_DIR cannot be set");
  return checked_run_of(name.value());
}

LeftoverPlaces leftover_places() { return {segment_prefix(), run_root()}; }

Status check_live(const RunDirectory& run) {
  auto state = JobLock::try_probe(run.lock_segment());
  if (!state) return state.status();
  if (state.value() == JobLock::State::kHeld || job_answers(run)) return Status::ok();
  return {StatusCode::kNotFound,
          "job " + run.job_name() + " does not run; `optlease status` lists this user's jobs"};
}

std::string refuse_empty(const std::string& value) {
  return value.empty() ? "it is empty: name a file, or leave the option out" : "";
}

std::string refuse_nan(const std::string& value) {
  return std::isnan(std::strtod(value.c_str(), nullptr)) ? "'" + value + "' is no number" : "";
}

}  // namespace optlease
