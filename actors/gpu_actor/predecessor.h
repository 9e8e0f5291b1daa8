// What a new incarnation does about the one before it, which may still be dying: its listeners are
// open and its device memory is taken until the driver has torn it down, a second after its death.
// Used by gpu_actor.cc at its start. Says nothing about leases: there the host store fences.
#pragma once

#include <chrono>
#include <thread>
#include <utility>

#include "actors/runtime/child_args.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"
#include "shm/contract/status.h"

namespace optlease {

inline constexpr int kPredecessorGoneMs = 5000;

// True of an actor that the launcher started in place of a dead one: the names are its own now, and
// what is taken may soon be free.
inline bool replaces_a_dead_one(const ChildArgs& args) {
  return args.incarnation > 1 && args.lifeline_fd >= 0;
}

inline Status status_in(const Status& status) { return status; }
template <class T>
Status status_in(const Result<T>& result) {
  return result.status();
}

// Calls `open` until it gives another code than `in_the_way`, for kPredecessorGoneMs at most, or
// once where nobody `may_be_dying`. The last answer, with words where the time was over.
template <class Open>
auto once_predecessor_is_gone(StatusCode in_the_way, bool may_be_dying, Open open) {
  const Deadline deadline = Deadline::after_ms(may_be_dying ? kPredecessorGoneMs : 0);
  bool waited = false;
  while (true) {
    auto opened = open();
    const Status status = status_in(opened);
    if (status.code() != in_the_way) return opened;
    if (deadline.passed()) {
      if (!waited) return opened;
      const std::string text = format("; a dying predecessor was given %d ms", kPredecessorGoneMs);
      return decltype(opened)(Status(status.code(), status.message() + text));
    }
    if (!waited) {
      log_info("waits for the end of its predecessor: %s", status.message().c_str());
    }
    waited = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline.remaining_ms(2)));
  }
}

}  // namespace optlease
