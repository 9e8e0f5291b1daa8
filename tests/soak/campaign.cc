#include "tests/soak/campaign.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>

namespace optlease::soak {
namespace {

constexpr int kComeMs = 20'000;  // a point that is met in every step, or at every start
constexpr int kMayComeMs = 3'000;
constexpr int kBeginTries = 4;
constexpr uint64_t kOccurrences = 12;
constexpr uint64_t kOccurrencesOfRare = 3;  // it takes many steps until they come

const std::vector<When> kWhileItRuns = {When::kStep,        When::kStart,
                                        When::kBegin,       When::kResume,
                                        When::kActorDies,   When::kActorDiesInStep,
                                        When::kStoreDies,   When::kActorDiesAtRecord,
                                        When::kTrainerDies, When::kHold,
                                        When::kStop};

// What is made once a state can only be met while it is made; the launcher makes its part each time
// that it starts, and with it what its vault is to hold.
bool needs_a_new_state(const KillPoint& row) {
  const std::string point = row.point;
  return row.when == When::kBegin && row.who != Who::kLauncher && !point.starts_with("actor.");
}

bool is_rare(const KillPoint& row) {
  return row.need == Need::kSkippedSteps || row.who == Who::kLauncher;
}

}  // namespace

const Reference& Campaign::reference_of(const Shape& shape) {
  Reference& known = references_[shape.name];
  if (!known.digest.empty()) return known;
  Tally none;
  SoakJob job(pages_, none, shape);
  job.start();
  job.finish();
  EXPECT_TRUE(job.last_report().is_object());
  if (!job.last_report().is_object()) return known;
  known.digest = job.last_report().value("state_digest", "none");
  known.commits = job.commits_seen();
  EXPECT_GT(known.commits, 0u);
  return known;
}

const KillPoint* Campaign::next_row(const Shape& shape, const std::vector<When>& when, Who who,
                                    bool any) {
  const KillPoint* best = nullptr;
  uint64_t fewest = UINT64_MAX;
  for (const KillPoint& row : kill_points()) {
    if (!any && row.who != who) continue;
    if (!shape.offers(row.need) || std::find(when.begin(), when.end(), row.when) == when.end()) {
      continue;
    }
    if (any && needs_a_new_state(row)) continue;  // begin() does
    // Rows of equal rank in random order, that no two jobs go the same way; a tool that is killed
    // while it reads costs seconds.
    const uint64_t times = tried_[&row] * (row.when == When::kHold ? 4 : 1);
    const uint64_t rank = times * 1024 + draw(1024);
    if (rank < fewest) {
      fewest = rank;
      best = &row;
    }
  }
  return best;
}

const Shape& Campaign::next_shape() {
  // The one that offers most of what was tried least.
  std::vector<uint64_t> open(shapes().size());
  uint64_t least = UINT64_MAX;
  for (const KillPoint& row : kill_points()) {
    if (row.when != When::kElsewhere && row.when != When::kClean) {
      least = std::min(least, tried_[&row]);
    }
  }
  for (const KillPoint& row : kill_points()) {
    if (row.when == When::kElsewhere || row.when == When::kClean || tried_[&row] > least) continue;
    for (size_t s = 0; s < shapes().size(); ++s) open[s] += shapes()[s].offers(row.need) ? 1 : 0;
  }
  size_t best = draw(shapes().size());
  for (size_t s = 0; s < shapes().size(); ++s) {
    if (open[s] > open[best]) best = s;
  }
  return draw(3) == 0 ? shapes()[draw(shapes().size())] : shapes()[best];
}

// While a state is made: the launcher's order, or those of store and actors, all at once, for each
// life ends at one of them.
void Campaign::begin(SoakJob& job) {
  for (const Who who : {Who::kTrainer, Who::kLauncher}) {  // for the end, whenever it comes
    const KillPoint* last = next_row(job.shape(), {When::kOver}, who, false);
    if (last == nullptr) continue;
    ++tried_[last];
    job.arm(*last, 1);
  }
  const bool of_launcher = draw(3) == 0;
  const KillPoint* row = nullptr;
  for (int i = 0; i < (of_launcher ? 1 : 8); ++i) {
    const Who who = of_launcher ? Who::kLauncher : i % 2 == 0 ? Who::kActor : Who::kStore;
    row = next_row(job.shape(), {When::kBegin}, who, false);
    ++tried_[row];
    job.arm(*row, 1);
  }
  job.start();
  if (of_launcher) (void)job.await(*row, kMayComeMs);
  if (job.goes_on()) (void)job.await_steps(1);
  job.disarm();
}

void Campaign::after(SoakJob& job, const KillPoint& row) {
  if (!job.goes_on()) return;
  // Also while it recovers; but a tool that dies leaves the job to stand still for a while.
  if (row.who != Who::kTool && draw(4) == 0) {
    poll(nullptr, 0, static_cast<int>(draw(40)));
  } else {
    job.await_progress(row.who, row.of_class);
  }
}

// The process dies, and its successor at the point; or another one, whose successor or whose
// keepers come to it.
void Campaign::strike_started(SoakJob& job, const KillPoint& row) {
  Who first = row.when == When::kBegin ? Who::kLauncher : row.who;
  if (row.when == When::kActorDies) first = Who::kActor;
  if (row.when == When::kStoreDies) first = Who::kStore;
  if (row.when == When::kTrainerDies) first = Who::kTrainer;
  job.arm(row, 1);
  for (int i = 0; i < kBeginTries; ++i) {
    if (!job.kill_from_outside(first, random_)) {
      poll(nullptr, 0, 20);
      continue;
    }
    if (first == Who::kLauncher && !job.goes_on()) return;
    if (job.await(row, kMayComeMs) || !job.launcher_alive()) break;
  }
}

void Campaign::strike_at_hold(SoakJob& job, const KillPoint& row) {
  job.arm(row, 1);
  // One that comes while the store is between two lives may find nobody to ask.
  (void)job.tool({"digest", "{job}", "--json"});
  (void)job.await(row, 0);
}

void Campaign::strike_at_stop(SoakJob& job, const KillPoint& row) {
  job.arm(row, 1 + draw(row.who == Who::kActor ? 2 : 1));
  job.stop_and_keep();
  (void)job.await(row, kComeMs);
}

void Campaign::strike(SoakJob& job, const KillPoint& row) {
  ++tried_[&row];
  const auto in_step = [&](const char* point) {
    const KillPoint& before = kill_point(point, Who::kActor);
    job.arm(row, 1);
    for (int i = 0; i < kBeginTries && job.goes_on(); ++i) {
      job.arm(before, 1 + draw(4));
      if (job.await(before, kComeMs) && job.await(row, 300)) return;
    }
  };
  switch (row.when) {
    case When::kStep:
      job.arm(row, 1 + draw(is_rare(row) ? kOccurrencesOfRare : kOccurrences));
      (void)job.await(row, kComeMs);
      break;
    case When::kActorDiesInStep:
      in_step("copy.out_over");
      break;
    case When::kActorDiesAtRecord:
      in_step(draw(2) == 0 ? "actor.record_sent" : "actor.record_made");
      break;
    case When::kStart:
    case When::kBegin:
    case When::kResume:
    case When::kActorDies:
    case When::kStoreDies:
    case When::kTrainerDies:
      strike_started(job, row);
      break;
    case When::kHold:
      strike_at_hold(job, row);
      break;
    case When::kStop:
      strike_at_stop(job, row);
      break;
    case When::kOver:
    case When::kClean:
    case When::kElsewhere:
      return;
  }
  job.disarm();
  after(job, row);
}

void Campaign::kill_at_points() {
  const Shape& shape = next_shape();
  SCOPED_TRACE(shape.name);
  const Reference& reference = reference_of(shape);
  SoakJob job(pages_, tally_, shape);
  begin(job);
  while (job.goes_on() && !testing::Test::HasFailure()) {
    const KillPoint* row = next_row(shape, kWhileItRuns, Who::kStore, true);
    SCOPED_TRACE(std::string(name_of(row->who)) + " at " + row->point);
    strike(job, *row);
  }
  job.check(reference);
}

// An impatient job: what stands still loses its leases, and is soon taken for dead.
void Campaign::kill_at_random(int strikes) {
  const Shape& shape = shapes()[draw(shapes().size())];
  SCOPED_TRACE(std::string("at random in ") + shape.name);
  const Reference& reference = reference_of(shape);
  SoakJob job(pages_, tally_, shape, {"restart.lease_ms=300", "restart.heartbeat_timeout_s=1"});
  job.start();
  for (int i = 0; i < strikes && job.goes_on() && !testing::Test::HasFailure(); ++i) {
    poll(nullptr, 0, static_cast<int>(draw(150)));
    random_strike(job);
  }
  if (!testing::Test::HasFailure()) job.finish();
  job.check(reference);
}

void Campaign::random_strike(SoakJob& job) {
  constexpr Who kChildren[] = {Who::kActor, Who::kActor, Who::kStore, Who::kTrainer};
  const Who who = kChildren[draw(job.shape().has_trainers ? 4 : 3)];
  const uint64_t what = draw(20);
  if (what < 11) {
    if (job.kill_from_outside(who, random_)) job.after_random(who, "random", draw(2) == 0);
  } else if (what < 13) {
    (void)job.kill_from_outside(who, random_);
    if (job.kill_from_outside(kChildren[draw(3)], random_)) {
      job.after_random(who, "two at once", draw(2) == 0);
    }
  } else if (what < 14) {
    if (job.kill_from_outside(Who::kLauncher, random_)) {
      job.after_random(Who::kLauncher, "random", true);
    }
  } else if (what < 15) {
    job.kill_all();
    job.after_random(Who::kLauncher, "whole node", true);
  } else if (what < 18) {
    job.stop_for(who, 50 + static_cast<int>(draw(draw(4) == 0 ? 1500 : 500)), 1, random_);
  } else {
    job.stop_for(who, 15, 20, random_);
  }
}

void Campaign::kill_the_cleaning() {
  const Shape& shape = shapes()[draw(shapes().size())];
  SCOPED_TRACE(std::string("cleaning after ") + shape.name);
  SoakJob job(pages_, tally_, shape);
  job.start();
  (void)job.await_steps(1 + draw(5));
  job.kill_all();
  std::vector<const KillPoint*> rows;
  for (const KillPoint& row : kill_points()) {
    if (row.when == When::kClean) rows.push_back(&row);
  }
  job.clean_away(rows);
  job.check({});
}

}  // namespace optlease::soak
