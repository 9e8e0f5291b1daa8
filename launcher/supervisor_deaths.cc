// What the Supervisor keeps of a process that died: why, where, and what it had done.
#include "actors/runtime/clock.h"
#include "launcher/supervisor.h"

namespace optlease {

void Supervisor::record_death(const Action& action) {
  const auto living = living_.find({action.seat, action.life});
  const int pid = living == living_.end() ? 0 : static_cast<int>(living->second.child.pid());
  DeathSign sign = DeathSign::kExit;
  if (action.seat.role == Role::kGpuActor && living != living_.end()) {
    const Live& live = living->second;
    if (!live.lifeline_open) sign = live.dead() ? DeathSign::kDeathPage : DeathSign::kLifeline;
  }
  // The store's last answer may be older than the step at which the process died, and before its
  // first one there is only what the job was claimed with.
  Step committed = core_.step_seen();
  if (committed_) committed = committed_->read().value_or(committed);
  const Rehearsal* rehearsal = action.cause == DeathCause::kRehearsal
                                   ? rehearsals_.that_killed({action.seat, action.life})
                                   : nullptr;
  recovery_.died(action.seat, action.life, pid, action.cause, committed,
                 static_cast<uint64_t>(now_ms()), sign,
                 rehearsal == nullptr ? std::nullopt : std::optional(*rehearsal));
  say(text_of(action.seat) +
      format(" (incarnation %llu) died: ", static_cast<unsigned long long>(action.life)) +
      name_of(action.cause));
}

// Of a kill; a configured one with its place.
std::string Supervisor::cause_text(const Action& action) const {
  const Rehearsal* rehearsal = rehearsals_.that_killed({action.seat, action.life});
  if (action.cause != DeathCause::kRehearsal || rehearsal == nullptr) return action.text;
  return action.text + " in " + text_of(*rehearsal);
}

void Supervisor::keep_totals(const Key& key, const Live& live) {
  if (key.first.role == Role::kGpuActor) totals_.at(key.first.rank)[key.second] = totals_of(live);
}

std::optional<LifeTotals> Supervisor::totals_of(const Live& live) {
  if (live.watch == nullptr) return std::nullopt;
  return live.watch->totals();
}

RankLives Supervisor::lives(uint32_t rank) const {
  LivesTotals totals = totals_.at(rank);
  for (const auto& [key, live] : living_) {  // those that nothing could end
    if (key.first == Seat{Role::kGpuActor, rank}) totals[key.second] = totals_of(live);
  }
  return lives_of(totals, telemetry_.heard(rank));
}

}  // namespace optlease
