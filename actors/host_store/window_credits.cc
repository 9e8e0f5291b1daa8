#include "actors/host_store/window_credits.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace optlease {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double as_double(uint64_t bytes) { return static_cast<double>(bytes); }

}  // namespace

WindowCredits::WindowCredits(CreditOptions options, std::vector<uint64_t> window_bytes)
    : options_(options),
      window_bytes_(std::move(window_bytes)),
      loads_(window_bytes_.size()),
      waiting_(window_bytes_.size()) {
  for (const uint64_t bytes : window_bytes_) {
    largest_window_bytes_ = std::max(largest_window_bytes_, bytes);
  }
}

// What a rank can use at most.
uint64_t WindowCredits::pipeline_bytes(uint32_t rank) const {
  return std::min(loads_[rank].remaining_bytes, options_.windows_ahead * largest_window_bytes_);
}

uint64_t WindowCredits::kept_bytes(uint32_t rank) const {
  return std::min(loads_[rank].remaining_bytes, window_bytes_[rank]);
}

uint64_t WindowCredits::held_bytes(uint32_t rank) const {
  return std::max(loads_[rank].in_flight_bytes, kept_bytes(rank));
}

// Bytes in flight for each byte that is left, the same for all ranks: so many that the rank with
// the most left has its whole pipeline.
double WindowCredits::pace() const {
  uint64_t most = 0;
  for (const RankLoad& load : loads_) {
    if (load.attached) most = std::max(most, load.remaining_bytes);
  }
  if (most == 0) return kNoLimit;
  return as_double(options_.windows_ahead * largest_window_bytes_) / as_double(most);
}

// The pace at which the ranks use the whole ceiling: who needs less than its share at that pace is
// counted with what it needs, and the pace of the rest rises.
double WindowCredits::pace_under_ceiling() const {
  std::vector<bool> satisfied(loads_.size(), false);
  while (true) {
    uint64_t remaining = 0, taken = 0;
    for (uint32_t r = 0; r < loads_.size(); ++r) {
      if (!loads_[r].attached) {
        taken += held_bytes(r);  // one window is kept for its return
      } else if (satisfied[r]) {
        taken += pipeline_bytes(r);
      } else {
        remaining += loads_[r].remaining_bytes;
      }
    }
    if (remaining == 0) return kNoLimit;
    const uint64_t free = options_.ceiling_bytes - std::min(options_.ceiling_bytes, taken);
    const double pace = as_double(free) / as_double(remaining);
    bool changed = false;
    for (uint32_t r = 0; r < loads_.size(); ++r) {
      if (!loads_[r].attached || satisfied[r] || loads_[r].remaining_bytes == 0) continue;
      if (pace * as_double(loads_[r].remaining_bytes) < as_double(pipeline_bytes(r))) continue;
      satisfied[r] = changed = true;
    }
    if (!changed) return pace;
  }
}

uint64_t WindowCredits::share_bytes(uint32_t rank, double pace) const {
  if (loads_[rank].remaining_bytes == 0) return 0;
  const uint64_t pipeline = pipeline_bytes(rank);
  const double share = pace * as_double(loads_[rank].remaining_bytes);
  const uint64_t whole = share < as_double(pipeline) ? static_cast<uint64_t>(share) : pipeline;
  return std::max(whole, kept_bytes(rank));
}

uint64_t WindowCredits::credit_bytes(Rank rank) const {
  const double ceiling = options_.ceiling_bytes == 0 ? kNoLimit : pace_under_ceiling();
  return share_bytes(rank.value, std::min(pace(), ceiling));
}

bool WindowCredits::may_grant(Rank rank, uint64_t bytes) const {
  const uint32_t r = rank.value;
  const uint64_t in_flight = loads_[r].in_flight_bytes;
  if (in_flight + bytes <= kept_bytes(r)) return true;
  // Most of the window must fit: ranks that are about equal never wait, and the others end within a
  // window of each other. (Half of it would leave them three apart, the whole slow equal ones.)
  if (in_flight + bytes * 3 / 4 > share_bytes(r, pace())) return false;
  if (options_.ceiling_bytes == 0) return true;
  // Up to the next window: else parts of windows would lie idle at every rank.
  if (in_flight >= share_bytes(r, pace_under_ceiling())) return false;
  uint64_t held = in_flight + bytes;
  for (uint32_t other = 0; other < loads_.size(); ++other) {
    if (other != r) held += held_bytes(other);
  }
  return held <= options_.ceiling_bytes;
}

bool WindowCredits::wait(Rank rank, const WaitingLease& lease) {
  std::deque<WaitingLease>& queue = waiting_[rank.value];
  for (WaitingLease& waiting : queue) {
    if (waiting.body.first_chunk != lease.body.first_chunk) continue;
    waiting = lease;
    return true;
  }
  if (queue.size() >= kLeasesInFlightMax) return false;
  queue.push_back(lease);
  return true;
}

void WindowCredits::forget_up_to(Step step) {
  for (std::deque<WaitingLease>& queue : waiting_) {
    std::erase_if(queue, [&](const WaitingLease& lease) { return lease.body.step <= step; });
  }
}

bool WindowCredits::anybody_waits() const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [](const auto& queue) { return !queue.empty(); });
}

std::optional<WaitingLease> WindowCredits::next() {
  std::deque<WaitingLease>* best = nullptr;
  double best_level = kNoLimit;
  for (uint32_t r = 0; r < waiting_.size(); ++r) {
    if (waiting_[r].empty() || !may_grant(Rank{r}, waiting_[r].front().bytes)) continue;
    const double then = as_double(loads_[r].in_flight_bytes + waiting_[r].front().bytes);
    const double level = then / as_double(std::max<uint64_t>(1, loads_[r].remaining_bytes));
    if (best != nullptr && level >= best_level) continue;
    best = &waiting_[r];
    best_level = level;
  }
  if (best == nullptr) return std::nullopt;
  const WaitingLease lease = best->front();
  best->pop_front();
  return lease;
}

}  // namespace optlease
