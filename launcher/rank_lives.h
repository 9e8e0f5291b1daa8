// What one rank's actors have done in this run, over all their lives: the sum of what each life
// wrote into its death page, which outlives it, or, where it had none, of its last answer on the
// snapshot socket. Pure; finish_job.cc puts it into the report.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "actors/runtime/life_figures.h"
#include "actors/runtime/step_times.h"
#include "actors/runtime/telemetry.h"

namespace optlease {

// By incarnation: every life of the run, with what its page says; nothing: it had no page.
using LivesTotals = std::map<uint64_t, std::optional<LifeTotals>>;
using LivesHeard = std::map<uint64_t, ActorTelemetry>;  // by incarnation: the last answers

struct RankLives {
  uint64_t bytes_h2d = 0;
  uint64_t bytes_d2h = 0;
  bool bytes_are_exact = true;     // false: a life had no page; its last answer, if any, was taken
  uint64_t bytes_bounced = 0;      // of both: not pinned, copied twice
  uint64_t pin_refused_bytes = 0;  // of the last life
  uint64_t leases_deferred = 0;
  double credit_wait_seconds = 0;
  bool staging_known = false;
  uint64_t staging_peak_bytes = 0;  // the largest of any life, and the budget of the last
  uint64_t staging_budget_bytes = 0;
  Step last_step = kNoStep;            // the last that an actor of the rank saw to its end
  std::vector<double> step_seconds;    // of the last kStepTimesMax such steps, the oldest first
  std::optional<ActorTelemetry> last;  // of the latest incarnation that was heard
};

RankLives lives_of(const LivesTotals& totals, const LivesHeard& heard);

}  // namespace optlease
