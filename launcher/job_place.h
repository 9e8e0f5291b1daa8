// Where a live job's run directory is, if it is not the one that this process's environment names:
// names in /dev/shm are the same everywhere, run directories depend on XDG_RUNTIME_DIR. Used by the
// tools that talk to a launcher. It connects to nobody but to see whether somebody listens.
#pragma once

#include <optional>
#include <string>

#include "actors/wire/endpoints.h"

namespace optlease {

struct JobPlace {
  int pid = 0;                  // the process of the job that told
  std::string xdg_runtime_dir;  // of its environment; empty: none
  std::string run_root;         // what follows from that
  bool listens = false;         // the job's launcher answers there
};

// Nothing where the launcher answers under `run`, where no process of this user has the job's lock
// or segments open, or where none of those has a run directory of the job elsewhere.
std::optional<JobPlace> runs_elsewhere(const RunDirectory& run);

// Who has the job's lock open, in words; empty where that cannot be told.
std::string lock_holders_text(const RunDirectory& run);

}  // namespace optlease
