#include "launcher/restart_policy.h"

#include <algorithm>

namespace optlease {

bool RestartPolicy::note_death(Seat seat, uint64_t now_ms) {
  deaths_.push_back(now_ms);
  while (!deaths_.empty() && !within_period(deaths_.front(), now_ms)) deaths_.pop_front();
  auto& mine = by_seat_[seat];
  mine.push_back(now_ms);
  while (!mine.empty() && !within_period(mine.front(), now_ms)) mine.pop_front();
  return deaths_.size() <= plan_.intensity;
}

uint64_t RestartPolicy::backoff_ms(Seat seat, uint64_t now_ms) const {
  const auto found = by_seat_.find(seat);
  if (found == by_seat_.end()) return 0;
  const auto count = std::count_if(found->second.begin(), found->second.end(),
                                   [&](uint64_t then) { return within_period(then, now_ms); });
  if (count == 0) return 0;
  // Doubling stops long before the shift could overflow: the ceiling is reached first.
  uint64_t wait = plan_.backoff_ms;
  for (int64_t i = 1; i < count && wait < plan_.backoff_ms_max; ++i) wait *= 2;
  return std::min(wait, plan_.backoff_ms_max);
}

uint32_t RestartPolicy::recent(uint64_t now_ms) const {
  return static_cast<uint32_t>(std::count_if(
      deaths_.begin(), deaths_.end(), [&](uint64_t then) { return within_period(then, now_ms); }));
}

}  // namespace optlease
