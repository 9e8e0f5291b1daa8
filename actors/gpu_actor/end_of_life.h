// Whether an actor that ends saves, in named segments, what lies in device memory of the launcher's
// vault. Pure. Used by gpu_actor.cc.
#pragma once

#include "actors/runtime/exit_code.h"

namespace optlease {

// The vault keeps its memory for as long as the launcher lives, and a successor finds it there:
// saving tens of GiB first would only put the successor off. So only an actor saves that is told to
// end (an ordered stop, a signal), whose launcher is gone, or whose end ends the job.
inline bool saves_at_end(ExitCode code, bool told_to_end, bool launcher_is_gone) {
  if (code == ExitCode::kReplaced) return false;  // it is the newer incarnation's now
  return told_to_end || launcher_is_gone || !restart_can_help(code);
}

}  // namespace optlease
