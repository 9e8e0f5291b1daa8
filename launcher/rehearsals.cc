#include "launcher/rehearsals.h"

#include <utility>

namespace optlease {

Rehearsals::Rehearsals(const std::vector<Rehearsal>& all, Step step_committed) {
  for (const Rehearsal& what : all) {
    entries_.push_back({what, State::kOpen, {}, std::nullopt, false});
    if (what.step > step_committed) ++wanted_;
  }
}

std::vector<uint32_t> Rehearsals::open_for(uint32_t rank) const {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].what.at_rank == rank && entries_[i].state != State::kDone) out.push_back(i);
  }
  return out;
}

bool Rehearsals::reached(uint32_t index, LifeOf asker) {
  if (index >= entries_.size() || entries_[index].state == State::kDone) return false;
  if (entries_[index].what.at_rank != asker.seat.rank) return false;
  entries_[index].state = State::kReached;
  entries_[index].asker = asker;
  return true;
}

std::vector<Rehearsals::Wanted> Rehearsals::to_kill() const {
  std::vector<Wanted> out;
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.state != State::kReached) continue;
    const bool has_rank = entry.what.role != Role::kHostStore;
    out.push_back({i, Seat{entry.what.role, has_rank ? entry.what.rank : 0}});
  }
  return out;
}

void Rehearsals::killed(uint32_t index, LifeOf victim) {
  entries_.at(index).state = State::kDone;
  entries_.at(index).victim = victim;
}

const Rehearsal* Rehearsals::that_killed(LifeOf victim) const {
  for (const Entry& entry : entries_) {
    if (entry.victim == victim) return &entry.what;
  }
  return nullptr;
}

std::vector<LifeOf> Rehearsals::gone(LifeOf victim) {
  std::vector<LifeOf> waiting;
  for (Entry& entry : entries_) {
    if (entry.victim != victim || entry.victim_gone) continue;
    entry.victim_gone = true;
    if (entry.asker != victim) waiting.push_back(entry.asker);
  }
  return waiting;
}

uint32_t Rehearsals::done() const {
  uint32_t count = 0;
  for (const Entry& entry : entries_) count += entry.state == State::kDone ? 1 : 0;
  return count;
}

}  // namespace optlease
