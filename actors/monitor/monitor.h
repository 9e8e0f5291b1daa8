// The monitor's loop: attaches to a job, keeps its state, writes views or JSON lines until the job
// ends, the user interrupts, or (once) every rank has answered. It never slows an actor.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

#include "actors/runtime/exit_code.h"
#include "actors/runtime/monitor_defaults.h"

namespace optlease {

struct MonitorOptions {
  std::string job;
  bool once = false;
  bool json = false;
  int interval_ms = kMonitorIntervalMs;  // between redraws
  int timeout_ms = kMonitorTimeoutMs;    // for the snapshots (once), or a first answer of anybody
  bool is_terminal = false;              // redraw in place
};

// Views go to `out`, words about failures to `err`. Ends soon after *interrupted becomes true.
ExitCode run_monitor(const MonitorOptions& options, const std::atomic<bool>* interrupted, FILE* out,
                     FILE* err);

// Pure: whether a job that had a launcher still has one. A job that was started by hand, actor by
// actor, ends when its plan is removed.
class JobLife {
 public:
  // True once the job has ended.
  bool ended(bool plan_exists, bool launcher_listens) {
    launcher_seen_ = launcher_seen_ || launcher_listens;
    return !plan_exists || (launcher_seen_ && !launcher_listens);
  }

 private:
  bool launcher_seen_ = false;
};

}  // namespace optlease
