// How often a process may be restarted and how long to wait before each restart, in the manner of
// Erlang/OTP's supervisors: more than `intensity` restarts of the whole job within `period_ms` end
// it; the wait doubles with each restart of the same process within the period. Pure: time comes
// in. Used by SupervisorCore alone.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>

#include "actors/runtime/job_plan.h"

namespace optlease {

// A seat that one process at a time fills. The store's rank is 0.
struct Seat {
  Role role = Role::kHostStore;
  uint32_t rank = 0;
  auto operator<=>(const Seat&) const = default;
};

class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartPlan& plan) : plan_(plan) {}

  // Notes a death that nobody asked for. False: one too many, the job has to end.
  bool note_death(Seat seat, uint64_t now_ms);
  // How long to wait before the restart that follows the last noted death of `seat`; 0 where none
  // lies within the period.
  uint64_t backoff_ms(Seat seat, uint64_t now_ms) const;
  // Noted deaths within the period that ends now.
  uint32_t recent(uint64_t now_ms) const;

 private:
  bool within_period(uint64_t then_ms, uint64_t now_ms) const {
    return now_ms - then_ms < plan_.period_ms;
  }
  RestartPlan plan_;
  std::deque<uint64_t> deaths_;                   // of every seat, ascending
  std::map<Seat, std::deque<uint64_t>> by_seat_;  // ascending
};

}  // namespace optlease
