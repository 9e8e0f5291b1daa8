// Which kills come next: at points of the table, and at random.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/soak/soak_job.h"

namespace optlease::soak {

class Campaign {
 public:
  Campaign(const std::string& directory, uint64_t seed) : pages_(directory), random_(seed) {}

  // A job that is killed at points of the table from its beginning to its end.
  void kill_at_points();
  // A job whose processes are killed, stopped and starved at random moments.
  void kill_at_random(int strikes);
  // A job that a killed launcher leaves, and whose cleaning is killed.
  void kill_the_cleaning();

  const Tally& tally() const { return tally_; }
  Tally& tally() { return tally_; }

 private:
  const Reference& reference_of(const Shape& shape);
  uint64_t draw(uint64_t below) { return random_() % below; }
  // Of the rows of `who` (`any`: of anybody) that fit, the one that was tried least.
  const KillPoint* next_row(const Shape& shape, const std::vector<When>& when, Who who, bool any);
  const Shape& next_shape();
  void begin(SoakJob& job);
  void strike(SoakJob& job, const KillPoint& row);
  void strike_started(SoakJob& job, const KillPoint& row);
  void strike_at_hold(SoakJob& job, const KillPoint& row);
  void strike_at_stop(SoakJob& job, const KillPoint& row);
  void after(SoakJob& job, const KillPoint& row);
  void random_strike(SoakJob& job);

  Pages pages_;
  std::mt19937_64 random_;
  Tally tally_;
  std::map<std::string, Reference> references_;
  std::map<const KillPoint*, uint64_t> tried_;
};

}  // namespace optlease::soak
