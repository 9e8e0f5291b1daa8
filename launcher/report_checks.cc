// checks_of of report.h: what a run has to have been.
#include <signal.h>

#include "launcher/memory_contract.h"
#include "launcher/report.h"

namespace optlease {
namespace {

ReportCheck exit_check(const RunReport& report) {
  return {
      "exit_zero", report.exit_code == ExitCode::kOk,
      format("exit code %d (%s)", static_cast<int>(report.exit_code), name_of(report.exit_code))};
}

ReportCheck steps_check(const RunReport& report) {
  const auto committed = static_cast<long long>(report.steps_committed);
  const auto wanted = static_cast<long long>(report.steps_wanted);
  // A training script may end early on purpose; then its own last step is the last.
  if (report.has_trainers && report.ending == Ending::kCompleted && committed < wanted) {
    return {"all_steps_committed", committed >= 0,
            format("the trainers ended with exit code 0 at step %lld of %lld", committed, wanted)};
  }
  return {"all_steps_committed", committed >= wanted,
          format("step %lld of %lld is committed", committed, wanted)};
}

ReportCheck digest_check(const RunReport& report) {
  const bool computed = !report.state_digest.empty();
  return {"digest_computed", computed,
          computed ? "every chunk's checksum held" : report.digest_error};
}

ReportCheck staging_check(const RunReport& report) {
  ReportCheck check{"staging_within_budget", true, "every rank stayed within its budget"};
  for (const RankReport& rank : report.ranks) {
    if (!rank.staging_known) {
      check.passed.reset();
      check.detail =
          format("not measured: no actor of rank %u came as far as its staging", rank.rank);
    } else if (rank.staging_peak_bytes > rank.staging_budget_bytes) {
      // A breach counts, whatever is not known of others.
      return {check.name, false,
              format("rank %u: ", rank.rank) + bytes_text(rank.staging_peak_bytes) + " used, " +
                  bytes_text(rank.staging_budget_bytes) + " allowed"};
    }
  }
  return check;
}

// Slower by several times, and nothing else: no bit depends on it.
ReportCheck pinned_check(const RunReport& report) {
  ReportCheck check{"host_memory_pinned", true, "nothing that was to be pinned was refused", false};
  for (const RankReport& rank : report.ranks) {
    if (rank.pin_refused_bytes == 0) continue;
    return {check.name, false,
            format("rank %u: ", rank.rank) + bytes_text(rank.pin_refused_bytes) +
                " could not be pinned, and copies of " + bytes_text(rank.bytes_bounced) +
                " went through bounce buffers; the actor's log says why",
            false};
  }
  return check;
}

ReportCheck memory_check(const RunReport& report) {
  const uint64_t real =
      report.real_shm_bytes + report.real_buffer_bytes + report.real_process_bytes;
  return {"host_bytes_within_contract",
          real <= report.planned_memory_bytes && report.real_shm_bytes <= report.planned_shm_bytes,
          bytes_text(real) + " used of " + bytes_text(report.planned_memory_bytes) +
              " planned; shared memory " + bytes_text(report.real_shm_bytes) + " of " +
              bytes_text(report.planned_shm_bytes)};
}

ReportCheck clean_check(const RunReport& report) {
  ReportCheck check{"no_segments_left", report.clean_up_error.empty(), report.clean_up_error};
  if (report.state_kept) {
    check.detail += check.detail.empty() ? "kept on purpose" : "";
    return check;
  }
  for (const std::string& name : report.segments_left) {
    check.passed = false;
    check.detail += (check.detail.empty() ? "" : ", ") + name;
  }
  if (!check.failed()) check.detail = "nothing of the job is left in /dev/shm";
  return check;
}

ReportCheck run_directory_check(const RunReport& report) {
  return {"run_directory_removed", report.run_directory_removed.value_or(true),
          report.run_directory_text};
}

ReportCheck processes_check(const RunReport& report) {
  ReportCheck check{"no_processes_left", report.unreaped.empty(), "every child was reaped"};
  for (const std::string& who : report.unreaped) {
    check.detail = who + " could not be ended";
  }
  return check;
}

ReportCheck rehearsals_check(const RunReport& report) {
  return {"all_rehearsals_done", report.rehearsals_done >= report.rehearsals_wanted,
          format("%u of %u configured kills were done", report.rehearsals_done,
                 report.rehearsals_wanted)};
}

// Somebody's kill, or the kernel's for want of memory: what this project is there to survive.
bool is_from_outside(const DeathRecord& death) {
  if (death.cause != DeathCause::kOwn || !death.exit || !death.exit->by_signal) return false;
  const int number = death.exit->code;
  return number == SIGKILL || number == SIGTERM || number == SIGINT || number == SIGHUP;
}

ReportCheck restarts_check(const RunReport& report) {
  uint32_t own = 0;
  uint32_t outside = 0;
  std::string last;
  for (const DeathRecord& death : report.deaths) {
    if (death.cause == DeathCause::kRehearsal || death.cause == DeathCause::kRequested) continue;
    if (is_from_outside(death)) {
      ++outside;
      continue;
    }
    ++own;
    last = text_of(death.seat) + ", " + name_of(death.cause) +
           (death.exit ? ", " + text_of(*death.exit) : "");
  }
  std::string detail =
      format("%u processes failed by themselves, %u were killed from outside", own, outside);
  if (own > 0) detail += "; the last failure: " + last;
  // The job went on, and every step is what it would have been: nothing for an exit code.
  return {"no_unexpected_restarts", own == 0, detail, false};
}

}  // namespace

std::vector<ReportCheck> checks_of(const RunReport& report) {
  // Nothing was started, nothing measured: the others would pass or fail for no reason.
  if (report.ending == Ending::kNone) return {exit_check(report)};
  return {exit_check(report),       steps_check(report),         digest_check(report),
          staging_check(report),    pinned_check(report),        memory_check(report),
          clean_check(report),      run_directory_check(report), processes_check(report),
          rehearsals_check(report), restarts_check(report)};
}

bool passed(const std::vector<ReportCheck>& checks) {
  for (const ReportCheck& check : checks) {
    if (check.failed()) return false;
  }
  return true;
}

void settle_exit_code(RunReport* report) {
  if (report->exit_code != ExitCode::kOk) return;
  for (const ReportCheck& check : checks_of(*report)) {
    if (!check.failed() || !check.counts) continue;
    report->exit_code = ExitCode::kInternal;
    report->ending_text += "; check failed: " + check.name + ": " + check.detail;
  }
}

bool is_about_the_end(const ReportCheck& check) {
  return check.name == "exit_zero" || check.name == "all_steps_committed" ||
         check.name == "all_rehearsals_done";
}

const char* verdict_of(const RunReport& report) {
  if (report.ending == Ending::kNone) return "refused";
  bool all = true;
  bool all_but_the_end = true;
  for (const ReportCheck& check : checks_of(report)) {
    const bool well = !check.failed() || !check.counts;
    all = all && well;
    all_but_the_end = all_but_the_end && (well || is_about_the_end(check));
  }
  if (all) return "passed";
  const bool wished =
      report.ending == Ending::kStopped &&
      (report.exit_code == ExitCode::kOk || report.exit_code == ExitCode::kInterrupted);
  return wished && all_but_the_end ? "stopped" : "failed";
}

}  // namespace optlease
