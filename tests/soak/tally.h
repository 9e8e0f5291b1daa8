// What a soak has done, for its report: visits and kills of each row of the table, how jobs ended
// that were killed there, and how long it took until the job moved again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/soak/kill_points.h"

namespace optlease::soak {

struct RowCounts {
  uint64_t visits = 0;
  uint64_t kills = 0;
  uint64_t ended_right = 0;  // of the kills: in jobs that ended with the right state and no leak
};

class Tally {
 public:
  Tally() : rows_(kill_points().size()) {}

  RowCounts& of(const KillPoint& row) { return rows_[&row - kill_points().data()]; }
  uint64_t kills_of(const KillPoint& row) const { return rows_[&row - kill_points().data()].kills; }
  // From the death until a step was committed that had begun after it.
  void recovered(Who who, const std::string& phase, double after_seconds) {
    recoveries_[{name_of(who), phase}].push_back(after_seconds);
  }

  // Kills by a point, by SIGKILL from outside, and in all.
  uint64_t kills() const;

  uint64_t killed_from_outside = 0, stopped = 0, starved = 0;
  uint64_t jobs = 0, launches = 0, digests_compared = 0, digests_differing = 0;
  double seconds = 0;

  // Rows of jobs on the CPU device at which nobody was killed yet.
  std::vector<const KillPoint*> missed() const;
  std::string to_json(uint64_t seed) const;
  std::string text() const;

 private:
  std::vector<RowCounts> rows_;
  std::map<std::pair<std::string, std::string>, std::vector<double>> recoveries_;
};

}  // namespace optlease::soak
