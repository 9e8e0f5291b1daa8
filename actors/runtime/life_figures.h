// What one life of an actor has done, in memory that outlives it: a part of its death page. The
// actor writes each word as it goes, and the launcher reads them once it is gone, whatever ended
// it: nothing has to be asked for, so nothing is lost with it. Words are read one by one; together
// they are one moment's only when nobody writes any more.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "actors/runtime/step_times.h"
#include "shm/contract/ids.h"

namespace optlease {

// A copy of the figures.
struct LifeTotals {
  uint64_t bytes_h2d = 0;  // copies between host and device that were begun, to the last one
  uint64_t bytes_d2h = 0;
  uint64_t bytes_bounced = 0;      // of both: memory that was not pinned, copied twice
  uint64_t pin_refused_bytes = 0;  // of the rank's arena, last time it was looked at
  uint64_t leases_deferred = 0;    // they waited for credit
  double credit_wait_seconds = 0;  // of those
  uint64_t staging_bytes = 0;      // allocated once; 0: not yet, or the rank has no chunk
  uint64_t staging_budget_bytes = 0;
  bool staging_known = false;        // the two above were written
  Step last_step = kNoStep;          // that this life finished
  std::vector<double> step_seconds;  // of its last steps, the oldest first; kStepTimesMax at most
};

// All zero at first, which is what fresh shared memory holds.
class LifeFigures {
 public:
  // Written by the actor alone.
  void add_copy(bool in, uint64_t bytes) {
    (in ? bytes_h2d_ : bytes_d2h_).fetch_add(bytes, std::memory_order_relaxed);
  }
  void add_bounce(uint64_t bytes) { bytes_bounced_.fetch_add(bytes, std::memory_order_relaxed); }
  void set_pin_refused(uint64_t bytes) {
    pin_refused_bytes_.store(bytes, std::memory_order_relaxed);
  }
  void set_credit(uint64_t leases_deferred, double wait_seconds) {
    leases_deferred_.store(leases_deferred, std::memory_order_relaxed);
    credit_wait_seconds_.store(wait_seconds, std::memory_order_relaxed);
  }
  void set_staging(uint64_t bytes, uint64_t budget_bytes) {
    staging_bytes_.store(bytes, std::memory_order_relaxed);
    staging_budget_bytes_.store(budget_bytes, std::memory_order_relaxed);
    staging_known_.store(1, std::memory_order_release);
  }
  void step_over(Step step, double seconds) {
    const uint64_t done = steps_done_.load(std::memory_order_relaxed);
    step_seconds_[done % kStepTimesMax].store(static_cast<float>(seconds),
                                              std::memory_order_relaxed);
    last_step_.store(step, std::memory_order_relaxed);
    steps_done_.store(done + 1, std::memory_order_release);
  }

  LifeTotals read() const {
    LifeTotals out;
    out.bytes_h2d = bytes_h2d_.load(std::memory_order_relaxed);
    out.bytes_d2h = bytes_d2h_.load(std::memory_order_relaxed);
    out.bytes_bounced = bytes_bounced_.load(std::memory_order_relaxed);
    out.pin_refused_bytes = pin_refused_bytes_.load(std::memory_order_relaxed);
    out.leases_deferred = leases_deferred_.load(std::memory_order_relaxed);
    out.credit_wait_seconds = credit_wait_seconds_.load(std::memory_order_relaxed);
    out.staging_known = staging_known_.load(std::memory_order_acquire) != 0;
    out.staging_bytes = staging_bytes_.load(std::memory_order_relaxed);
    out.staging_budget_bytes = staging_budget_bytes_.load(std::memory_order_relaxed);
    const uint64_t done = steps_done_.load(std::memory_order_acquire);
    if (done == 0) return out;
    out.last_step = last_step_.load(std::memory_order_relaxed);
    const uint64_t kept = std::min<uint64_t>(done, kStepTimesMax);
    for (uint64_t i = done - kept; i < done; ++i) {
      const double seconds = step_seconds_[i % kStepTimesMax].load(std::memory_order_relaxed);
      // A process that scribbles over its memory may write anything here.
      if (std::isfinite(seconds) && seconds >= 0) out.step_seconds.push_back(seconds);
    }
    return out;
  }

 private:
  std::atomic<uint64_t> bytes_h2d_{0}, bytes_d2h_{0}, bytes_bounced_{0}, pin_refused_bytes_{0};
  std::atomic<uint64_t> leases_deferred_{0};
  std::atomic<double> credit_wait_seconds_{0};
  std::atomic<uint64_t> staging_bytes_{0}, staging_budget_bytes_{0}, staging_known_{0};
  std::atomic<uint64_t> steps_done_{0};
  std::atomic<int64_t> last_step_{0};
  // Floats: a page holds them all.
  std::array<std::atomic<float>, kStepTimesMax> step_seconds_{};
};
static_assert(std::atomic<double>::is_always_lock_free && std::atomic<float>::is_always_lock_free,
              "words between processes need no lock");

}  // namespace optlease
