#include "launcher/stall_watch.h"

#include <algorithm>
#include <map>

namespace optlease {
namespace {

// Two looks further apart: the launcher itself was stopped.
constexpr uint64_t kPauseMs = 5000;
// A job is given so much more time than the longest that it stood and moved on, and at most so many
// times its patience: somebody may have stopped it for a night.
constexpr uint64_t kTimesLongest = 4;
constexpr uint64_t kTimesPatienceMax = 10;

std::string named(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += format("%s %u", i == 0 ? "" : ",", ranks[i]);
  }
  return text;
}

// In these phases a rank has done its part and waits for others.
bool waits_for_others(Phase phase) {
  return phase == Phase::kWaitPeers || phase == Phase::kWaitOpen || phase == Phase::kWaitCommitted;
}

}  // namespace

StallWatch::StallWatch(uint64_t patience_ms, bool has_trainers)
    : patience_ms_(patience_ms), has_trainers_(has_trainers) {}

StallWatch::Place StallWatch::place_of(const StoreFacts& facts) {
  Place place{facts.body.step_committed, facts.body.step_open, facts.body.commits, {}};
  for (const RankStatus& rank : facts.ranks) place.lives.push_back(rank.incarnation);
  return place;
}

std::optional<std::string> StallWatch::look(const StoreFacts& facts, uint64_t now_ms,
                                            const Standing& standing) {
  const uint64_t gap = now_ms - looked_ms_;
  looked_ms_ = now_ms;
  if (gap > kPauseMs) since_ms_ = std::min(since_ms_ + gap, now_ms);
  const Place place = place_of(facts);
  if (place != place_ || facts.ranks.empty()) {
    // Of a job whose processes come and go the time says nothing.
    if (place.lives == place_.lives && since_ms_ != 0) {
      longest_ms_ = std::max(longest_ms_, now_ms - since_ms_);
    }
    if (is_stalled_) stalls_.back().lasted_ms = now_ms - since_ms_;
    if (is_stalled_) stalls_.back().over = true;
    is_stalled_ = false;
    place_ = place;
    since_ms_ = now_ms;
    say_at_ms_ = std::max(patience_ms_,
                          std::min(kTimesLongest * longest_ms_, kTimesPatienceMax * patience_ms_));
    return std::nullopt;
  }
  const uint64_t lasted_ms = now_ms - since_ms_;
  if (is_stalled_) stalls_.back().lasted_ms = lasted_ms;
  if (lasted_ms < say_at_ms_) return std::nullopt;
  say_at_ms_ = 2 * lasted_ms;
  if (!is_stalled_) {
    if (stalls_.size() >= kStallsMax) stalls_.erase(stalls_.begin());
    stalls_.push_back({});
    is_stalled_ = true;
  }
  Stall& stall = stalls_.back();
  const Step open = facts.body.step_open;
  stall.step = open != kNoStep ? open : facts.body.step_committed + 1;
  stall.lasted_ms = lasted_ms;
  stall.text = where_it_stands(facts, standing);
  return format("nothing has moved for %.1f s, step %lld: ",
                static_cast<double>(lasted_ms) / 1000.0, static_cast<long long>(stall.step)) +
         stall.text;
}

std::string StallWatch::where_it_stands(const StoreFacts& facts, const Standing& standing) const {
  std::map<Phase, std::vector<uint32_t>> by_phase;
  std::string text;
  const auto add = [&text](const std::string& words) {
    if (words.empty()) return;
    text += (text.empty() ? "" : "; ") + words;
  };
  for (uint32_t r = 0; r < facts.ranks.size(); ++r) {
    by_phase[static_cast<Phase>(facts.ranks[r].phase)].push_back(r);
  }
  for (const auto& [phase, ranks] : by_phase) {
    const bool at_rest = phase == Phase::kIdle;
    if (at_rest && has_trainers_) {
      add("the trainers of " + named(ranks) + " have not asked for it");
    } else if (phase == Phase::kReduce || phase == Phase::kGather) {
      add(named(ranks) + " in a collective (" + name_of(phase) + ")");
    } else {
      add(named(ranks) + " in " + name_of(phase));
    }
    if (waits_for_others(phase)) continue;
    for (const uint32_t rank : ranks) {
      add(standing({at_rest && has_trainers_ ? Role::kTrainer : Role::kGpuActor, rank}));
    }
  }
  return text.empty() ? "no actor is attached" : text;
}

}  // namespace optlease
