// What the Supervisor keeps of a process that died: why, where, and what it had done.
#include <signal.h>

#include "actors/runtime/clock.h"
#include "launcher/supervisor.h"
#include "shm/processes.h"

namespace optlease {

// How it stands is looked up first, for then it still stands somehow.
void Supervisor::kill(const Action& action, Live& live) {
  const bool is_stuck = action.cause == DeathCause::kHeartbeat ||
                        action.cause == DeathCause::kStartTimeout ||
                        action.cause == DeathCause::kStop;
  std::string standing;
  try {
    // Of this very life: a later one may have the seat by now.
    if (is_stuck && !live.child.is_reaped()) standing = standing_of(live.child.pid());
  } catch (const std::exception&) {
    standing.clear();  // no memory for words is no reason to let it live
  }
  live.child.signal_group(SIGKILL);  // before words, which may find no memory
  if (is_stuck) live.heard = last_heard(action, standing);
  if (action.cause != DeathCause::kStop) {
    say("killing " + text_of(action.seat) + ": " +
        (is_stuck ? live.heard.why : cause_text(action)));
  } else if (!live.child.is_reaped()) {
    killed_at_stop_.push_back({action.seat, static_cast<int>(live.child.pid()), live.heard});
  }
}

LastHeard Supervisor::last_heard(const Action& action, const std::string& standing) const {
  LastHeard heard;
  heard.why = action.text;
  const StoreFacts& facts = core_.facts();
  const Seat seat = action.seat;
  const bool is_trainer = seat.role == Role::kTrainer;
  if ((is_trainer || seat.role == Role::kGpuActor) && seat.rank < facts.ranks.size()) {
    const RankStatus& rank = facts.ranks[seat.rank];
    if (rank.incarnation != 0 && (is_trainer || rank.incarnation == action.life)) {
      heard.phase = name_of(static_cast<Phase>(rank.phase));
      heard.step = rank.step;
      heard.why +=
          format("; %s was last heard in %s", is_trainer ? "its actor" : "it", heard.phase.c_str());
      if (heard.step >= 0) heard.why += format(" of step %lld", static_cast<long long>(heard.step));
    }
  }
  if (!standing.empty()) heard.why += "; " + standing;
  return heard;
}

// Of the last process in the seat.
std::string Supervisor::standing_of_seat(Seat seat) const {
  const auto living = living_.find({seat, core_.life(seat)});
  return living == living_.end() ? "" : standing_of(living->second.child.pid());
}

void Supervisor::look_for_stalls() {
  const auto words = stall_watch_.look(core_.facts(), static_cast<uint64_t>(now_ms()),
                                       [this](Seat seat) { return standing_of_seat(seat); });
  if (words) say(*words);
}

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
  if (living != living_.end()) recovery_.heard(action.seat, action.life, living->second.heard);
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
