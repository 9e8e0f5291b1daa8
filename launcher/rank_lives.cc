#include "launcher/rank_lives.h"

#include <algorithm>

namespace optlease {
namespace {

void add(const LifeTotals& life, RankLives* rank) {
  rank->bytes_h2d += life.bytes_h2d;
  rank->bytes_d2h += life.bytes_d2h;
  rank->bytes_bounced += life.bytes_bounced;
  rank->pin_refused_bytes = life.pin_refused_bytes;
  rank->leases_deferred += life.leases_deferred;
  rank->credit_wait_seconds += life.credit_wait_seconds;
  if (life.staging_known) {
    rank->staging_known = true;
    rank->staging_peak_bytes = std::max(rank->staging_peak_bytes, life.staging_bytes);
    rank->staging_budget_bytes = life.staging_budget_bytes;
  }
  rank->last_step = std::max(rank->last_step, life.last_step);
  rank->step_seconds.insert(rank->step_seconds.end(), life.step_seconds.begin(),
                            life.step_seconds.end());
}

// What an answer knows of the same; not how long each step took.
LifeTotals totals_of(const ActorTelemetry& told) {
  LifeTotals life;
  life.bytes_h2d = told.h2d_bytes_total;
  life.bytes_d2h = told.d2h_bytes_total;
  life.bytes_bounced = told.bounced_bytes_total;
  life.pin_refused_bytes = told.pin_refused_bytes;
  life.leases_deferred = told.leases_deferred_total;
  life.credit_wait_seconds = told.credit_wait_seconds_total;
  life.staging_known = true;
  life.staging_bytes = told.staging_peak_bytes;
  life.staging_budget_bytes = told.staging_budget_bytes;
  return life;
}

}  // namespace

RankLives lives_of(const LivesTotals& totals, const LivesHeard& heard) {
  LivesTotals all = totals;
  RankLives rank;
  for (const auto& [incarnation, told] : heard) {
    rank.last = told;
    all.emplace(incarnation, std::nullopt);
  }
  for (const auto& [incarnation, life] : all) {
    const auto told = heard.find(incarnation);
    if (life) {
      add(*life, &rank);
    } else if (told != heard.end()) {
      add(totals_of(told->second), &rank);
    }
    rank.bytes_are_exact = rank.bytes_are_exact && life.has_value();
  }
  auto& seconds = rank.step_seconds;
  if (seconds.size() > kStepTimesMax) {
    seconds.erase(seconds.begin(), seconds.end() - static_cast<std::ptrdiff_t>(kStepTimesMax));
  }
  return rank;
}

}  // namespace optlease
