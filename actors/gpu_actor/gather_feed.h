// How far the parameters of a rank's own shards are final: said window by window by the thread that
// computes (the actor's), waited for by the thread that gathers (the collectives'). And the word
// that computing still goes on somewhere, so that no time limit takes a slow window for a lost
// peer. One gather at a time; it knows elements and time, no windows, groups or bytes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "shm/contract/status.h"

namespace optlease {

class GatherFeed {
 public:
  using Clock = std::chrono::steady_clock;

  // The computing thread. A gather is about to be posted: of the shard of space s nothing is final
  // that does not lie below element `final_below[s]`.
  void begin(std::vector<uint64_t> final_below);
  // This rank's shard of `space` is final below element `end`. Never falls within a gather.
  void publish(uint32_t space, uint64_t end);
  // Some rank may be computing still, and others watch over that: time limits count from now.
  void renew();

  // Any thread: who waits asks its `check` again.
  void look_now();

  // The gathering thread. Ok once this rank's shard of `space` is final below `end`; what `check`
  // says where it is not ok (it is asked at once and at each look_now(), and calls nothing of the
  // feed); Timeout where for `timeout_ms` nothing became final and nobody renewed.
  Status await(uint32_t space, uint64_t end, uint64_t timeout_ms,
               const std::function<Status()>& check);
  // From when the time limit counts of a wait that began at `begun`.
  Clock::time_point counts_from(Clock::time_point begun) const;

  // The end that await() was last asked for: everything that the gathering thread does before, it
  // has done. For tests and diagnosis.
  uint64_t asked(uint32_t space) const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> final_below_;  // by space; guarded by mutex_, as the rest is
  std::vector<uint64_t> asked_;
  Clock::time_point moved_{};  // the last publish() or renew()
};

}  // namespace optlease
