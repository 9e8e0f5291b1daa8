#include "tests/soak/tally.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shm/contract/status.h"

namespace optlease::soak {
namespace {

using Json = nlohmann::json;

double median_of(std::vector<double> sorted) { return sorted[sorted.size() / 2]; }

}  // namespace

uint64_t Tally::kills() const {
  uint64_t kills = killed_from_outside;
  for (const RowCounts& row : rows_) kills += row.kills;
  return kills;
}

std::vector<const KillPoint*> Tally::missed() const {
  std::vector<const KillPoint*> missed;
  for (const KillPoint& row : kill_points()) {
    if (row.when != When::kElsewhere && kills_of(row) == 0) missed.push_back(&row);
  }
  return missed;
}

std::string Tally::to_json(uint64_t seed) const {
  Json out;
  out["seed"] = seed;
  out["seconds"] = seconds;
  out["kills"] = kills();
  out["killed_from_outside"] = killed_from_outside;
  out["stopped"] = stopped;
  out["starved"] = starved;
  out["jobs"] = jobs;
  out["launches"] = launches;
  out["digests"] = {{"compared", digests_compared}, {"differing", digests_differing}};
  out["points"] = Json::array();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const KillPoint& row = kill_points()[i];
    out["points"].push_back({{"point", row.point},
                             {"role", name_of(row.who)},
                             {"class", row.of_class},
                             {"visits", rows_[i].visits},
                             {"kills", rows_[i].kills},
                             {"ended_right", rows_[i].ended_right},
                             {"elsewhere", row.test}});
  }
  out["recovery_seconds"] = Json::array();
  for (auto [key, samples] : recoveries_) {
    std::sort(samples.begin(), samples.end());
    out["recovery_seconds"].push_back({{"role", key.first},
                                       {"phase", key.second},
                                       {"measured", samples.size()},
                                       {"median", median_of(samples)},
                                       {"worst", samples.back()}});
  }
  return out.dump(1);
}

std::string Tally::text() const {
  std::string out = format("%-32s %-11s %-12s %9s %7s %7s\n", "point", "role", "class", "visits",
                           "kills", "right");
  for (size_t i = 0; i < rows_.size(); ++i) {
    const KillPoint& row = kill_points()[i];
    out += format("%-32s %-11s %-12s %9llu %7llu %7llu", row.point, name_of(row.who), row.of_class,
                  static_cast<unsigned long long>(rows_[i].visits),
                  static_cast<unsigned long long>(rows_[i].kills),
                  static_cast<unsigned long long>(rows_[i].ended_right));
    out += row.when == When::kElsewhere ? format("  (%s)\n", row.test) : "\n";
  }
  out += format("\n%-11s %-12s %8s %10s %10s\n", "recovery of", "killed in", "measured", "median s",
                "worst s");
  for (auto [key, samples] : recoveries_) {
    std::sort(samples.begin(), samples.end());
    out += format("%-11s %-12s %8zu %10.3f %10.3f\n", key.first.c_str(), key.second.c_str(),
                  samples.size(), median_of(samples), samples.back());
  }
  out += format(
      "\n%llu kills (%llu of them from outside), %llu stopped, %llu starved, in %llu jobs (%llu "
      "launches), %.0f s: %.1f kills a minute; %llu digests compared, %llu differ\n",
      static_cast<unsigned long long>(kills()),
      static_cast<unsigned long long>(killed_from_outside),
      static_cast<unsigned long long>(stopped), static_cast<unsigned long long>(starved),
      static_cast<unsigned long long>(jobs), static_cast<unsigned long long>(launches), seconds,
      seconds > 0 ? 60.0 * static_cast<double>(kills()) / seconds : 0.0,
      static_cast<unsigned long long>(digests_compared),
      static_cast<unsigned long long>(digests_differing));
  return out;
}

}  // namespace optlease::soak
