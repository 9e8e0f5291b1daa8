// What lies under a job's name in /dev/shm while nobody owns it, and whether it may be gone on
// from, taken away unasked, or only on purpose. Used by the launcher before it starts a job and by
// leftovers. Changes nothing and takes no lock: the caller holds the job's, or is content with a
// look.
#pragma once

#include <string>
#include <vector>

#include "shm/contract/ids.h"
#include "shm/contract/status.h"

namespace optlease {

enum class StateKind {
  kNothing,     // no segment but the lock
  kWhole,       // sound: a store can go on from it
  kUnfinished,  // its making never came to its end, or its removal has begun: no committed step is
                // lost with it
  kDamaged,     // it holds, or may hold, a committed step, and cannot be used as it is
  kForeign,     // not this user's, this program's or this version's, or it cannot be looked at
};

struct FoundState {
  StateKind kind = StateKind::kNothing;
  Status why;                     // kUnfinished, kDamaged, kForeign
  Step step_committed = kNoStep;  // kWhole; kNoStep there: its initial state is not complete
  bool kept_on_purpose = false;   // kWhole
};

// `stem` + ".ctl" and so on are the job's names, each with its '/'; `names` are those that exist,
// whoever's they are.
FoundState look_at_state(const std::string& stem, const std::vector<std::string>& names);

// Of what follows a job's name and a dot: "ctl", "lock", "r0", "g12", "d3".
bool is_segment_suffix(const std::string& suffix);

}  // namespace optlease
