// How the ranks of a node share its memory bandwidth: whether a window may be leased now, and which
// of those that wait comes next. Used by StoreService. Pure: loads come in, decisions go out; it
// grants no lease, knows no slot, clock or peer. Not thread-safe.
//
// Two GPUs that stream at once are limited by the host's memory, so the windows that a rank has in
// flight are its share of the bandwidth. A rank's credit is what it may have in flight:
//
// - In proportion to what it has left in the step at work. The rank with the most left gets a whole
//   pipeline (`windows_ahead` windows), the others as much less as they have less left: they come
//   to their ends together, and a rank that is ahead does not take what the last one needs.
// - Under a ceiling, at most a share of it in the same proportion; what a rank cannot use, because
//   it is done, not attached, or has little left, goes to the others.
// - One window always. Nobody starves, and the node is never above the larger of the ceiling and
//   one window of each rank: that much of the ceiling is kept free for ranks with nothing in
//   flight.
//
// A decision rests on the loads alone and nothing is counted twice: whatever ends a lease (commit,
// return, expiry, death, a new epoch of the store) gives its credit back by that.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "shm/contract/ids.h"
#include "shm/contract/limits.h"
#include "shm/contract/messages.h"

namespace optlease {

struct CreditOptions {
  uint64_t ceiling_bytes = 0;                   // in flight on the node; 0: no ceiling
  uint32_t windows_ahead = kLeasesInFlightMax;  // a rank's whole pipeline
};

struct RankLoad {
  uint64_t remaining_bytes = 0;  // not committed in the step at work, in flight or not
  uint64_t in_flight_bytes = 0;  // leased and not committed
  bool attached = false;
};

// A lease request that waits for credit, as it came.
struct WaitingLease {
  MessageHeader header{};
  LeaseRequestBody body{};
  uint64_t bytes = 0;
};

class WindowCredits {
 public:
  // window_bytes: by rank, of its largest window.
  WindowCredits(CreditOptions options, std::vector<uint64_t> window_bytes);

  // What the decisions below rest on.
  void set_load(Rank rank, const RankLoad& load) { loads_[rank.value] = load; }

  // What the rank may have in flight, within a window.
  uint64_t credit_bytes(Rank rank) const;
  bool may_grant(Rank rank, uint64_t bytes) const;

  // Keeps the request until next() returns it. One for a window that waits already takes that
  // one's place. False: kLeasesInFlightMax of the rank wait.
  bool wait(Rank rank, const WaitingLease& lease);
  // Takes out the request that may be granted now: of the rank that has least in flight for what it
  // has left. Of one rank in the order in which they came. Call set_load after granting it.
  std::optional<WaitingLease> next();
  // What the rank waits for is void: it is gone, or begins anew.
  void forget(Rank rank) { waiting_[rank.value].clear(); }
  // So is what waits for a version up to `step`: it is committed, perhaps unchanged.
  void forget_up_to(Step step);
  size_t waiting(Rank rank) const { return waiting_[rank.value].size(); }
  bool anybody_waits() const;

 private:
  uint64_t pipeline_bytes(uint32_t rank) const;
  // In flight, or kept for it: one window of what it has left.
  uint64_t held_bytes(uint32_t rank) const;
  uint64_t kept_bytes(uint32_t rank) const;
  uint64_t share_bytes(uint32_t rank, double pace) const;
  double pace() const;
  double pace_under_ceiling() const;

  const CreditOptions options_;
  const std::vector<uint64_t> window_bytes_;
  uint64_t largest_window_bytes_ = 0;
  std::vector<RankLoad> loads_;
  std::vector<std::deque<WaitingLease>> waiting_;
};

}  // namespace optlease
