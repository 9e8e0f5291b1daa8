// The configured kills of a job: which are still to be done, who waits for which to be done, and
// who may be answered. Pure bookkeeping; the Supervisor does the killing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "launcher/supervisor_core.h"

namespace optlease {

// One life of one seat.
struct LifeOf {
  Seat seat;
  uint64_t life = 0;
  bool operator==(const LifeOf&) const = default;
};

class Rehearsals {
 public:
  // Those of steps that are committed already cannot happen any more and count as not wanted.
  Rehearsals(const std::vector<Rehearsal>& all, Step step_committed);

  // What an incarnation that starts now is told (ChildArgs::rehearsals).
  std::vector<uint32_t> open_for(uint32_t rank) const;
  // An actor has reached its place. False: there is nothing to kill (unknown or done), answer it.
  bool reached(uint32_t index, LifeOf asker);
  // Targets that are still to be killed, with their index.
  struct Wanted {
    uint32_t index = 0;
    Seat target;
  };
  std::vector<Wanted> to_kill() const;
  // The kill was sent to this life: the entry is done for ever.
  void killed(uint32_t index, LifeOf victim);
  // What this life was killed for; null where it was not. It stays known.
  const Rehearsal* that_killed(LifeOf victim) const;
  // This life is gone; returns who waits for that and is not itself the victim.
  std::vector<LifeOf> gone(LifeOf victim);

  uint32_t wanted() const { return wanted_; }
  uint32_t done() const;

 private:
  enum class State { kOpen, kReached, kDone };
  struct Entry {
    Rehearsal what;
    State state = State::kOpen;
    LifeOf asker;
    std::optional<LifeOf> victim;
    bool victim_gone = false;  // as far as is known
  };
  std::vector<Entry> entries_;
  uint32_t wanted_ = 0;
};

}  // namespace optlease
