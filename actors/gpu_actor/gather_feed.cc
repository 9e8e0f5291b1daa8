#include "actors/gpu_actor/gather_feed.h"

#include <algorithm>

namespace optlease {

void GatherFeed::begin(std::vector<uint64_t> final_below) {
  {
    const std::lock_guard lock(mutex_);
    asked_.assign(final_below.size(), 0);
    final_below_ = std::move(final_below);
    moved_ = Clock::now();
  }
  changed_.notify_all();
}

void GatherFeed::publish(uint32_t space, uint64_t end) {
  {
    const std::lock_guard lock(mutex_);
    OPTLEASE_CHECK(space < final_below_.size(), "space %u of %zu", space, final_below_.size());
    if (end <= final_below_[space]) return;
    final_below_[space] = end;
    moved_ = Clock::now();
  }
  changed_.notify_all();
}

// Wakes nobody: a wait that ends too early finds its new limit by itself.
void GatherFeed::renew() {
  const std::lock_guard lock(mutex_);
  moved_ = Clock::now();
}

void GatherFeed::look_now() {
  // A waiter that has just asked its check is asleep before the lock is free.
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

Status GatherFeed::await(uint32_t space, uint64_t end, uint64_t timeout_ms,
                         const std::function<Status()>& check) {
  const Clock::time_point begun = Clock::now();
  std::unique_lock lock(mutex_);
  OPTLEASE_CHECK(space < final_below_.size(), "space %u of %zu", space, final_below_.size());
  asked_[space] = end;
  while (final_below_[space] < end) {
    OPTLEASE_TRY(check());
    const Clock::time_point deadline =
        std::max(begun, moved_) + std::chrono::milliseconds(timeout_ms);
    if (Clock::now() >= deadline) {
      return {StatusCode::kTimeout,
              format("the gather of space %u waits for this rank's own element %llu, final are "
                     "those below %llu, and for %llu ms none became so",
                     space, static_cast<unsigned long long>(end - 1),
                     static_cast<unsigned long long>(final_below_[space]),
                     static_cast<unsigned long long>(timeout_ms))};
    }
    changed_.wait_until(lock, deadline);
  }
  return Status::ok();
}

GatherFeed::Clock::time_point GatherFeed::counts_from(Clock::time_point begun) const {
  const std::lock_guard lock(mutex_);
  return std::max(begun, moved_);
}

uint64_t GatherFeed::asked(uint32_t space) const {
  const std::lock_guard lock(mutex_);
  return space < asked_.size() ? asked_[space] : 0;
}

}  // namespace optlease
