// Ends waits that a library would sit out: while a wait is armed, a thread asks every few
// milliseconds whether it must end, and then interrupts it once. Used by gloo_mesh.h, where a lost
// peer, a passed deadline and abort() must all be noticed within milliseconds.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "shm/contract/status.h"

namespace optlease {

// arm() and disarm() belong to one thread; look_now() may be called from any.
class WaitWatch {
 public:
  WaitWatch();
  ~WaitWatch();
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

  // Until disarm(): `check` says whether the wait may go on; at the first reason why not,
  // `interrupt` is called, once. Both run on the watch's thread and must not block.
  // REQUIRES: not armed.
  void arm(std::function<Status()> check, std::function<void()> interrupt);
  // The reason for which the wait was interrupted, or ok. Neither function runs after it returns.
  Status disarm();
  // Does not wait for the next look.
  void look_now();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::function<Status()> check_;
  std::function<void()> interrupt_;
  bool armed_ = false;
  bool look_now_ = false;
  bool stop_ = false;
  Status reason_;
  std::thread thread_;
};

}  // namespace optlease
