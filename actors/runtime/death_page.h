// The death page between the launcher and one child: a page of shared memory with a robust mutex
// that the child's main thread holds while it lives. When that thread dies, the kernel marks the
// mutex at once: before it takes down the process's memory and long before it closes a descriptor
// (the lifeline) or lets the process be reaped (the pidfd), which a GPU driver delays by a second.
//
// What it says is "the main thread is gone", and no more: the process's other threads end in the
// same instant where a signal ended it, but copies of its devices may still be on their way. So it
// is a reason to start a successor early, and none to use anything that the dead one may write.
// A child that is stopped (SIGSTOP) is not dead. One that never took the page, or that let go of it
// in order, is never announced here: the lifeline and the pidfd tell of those.
//
// The rest of the page holds what the child has done so far (LifeFigures): it writes, and the
// launcher reads it when the child is gone.
//
// Used by the launcher (DeathWatch) and by the programs that it starts (DeathPageHold).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "actors/runtime/life_figures.h"
#include "shm/contract/status.h"
#include "shm/shared_buffer.h"

namespace optlease {

// The child's end. Taken and destroyed by the same thread, the main one.
class DeathPageHold {
 public:
  // Holds nothing: a child that was started by hand.
  DeathPageHold() = default;
  // Takes the page behind `fd` and closes it; -1 gives the same as the default. To be called before
  // anything that takes long to tear down exists (a device context). InvalidArgument where `fd` is
  // no death page, Busy where another thread holds it, PeerLost where its holder died.
  static Result<DeathPageHold> take(int fd);
  DeathPageHold(DeathPageHold&&) noexcept = default;
  DeathPageHold& operator=(DeathPageHold&&) = delete;
  // Lets go in order: what follows is an orderly exit, which the launcher hears of by other ways.
  ~DeathPageHold();

  bool held() const { return page_.data() != nullptr; }
  // Where the child's figures belong; null where nothing is held.
  LifeFigures* figures() const;

 private:
  explicit DeathPageHold(MappedBuffer page) : page_(std::move(page)) {}
  MappedBuffer page_;
};

// The launcher's end: makes the page and watches it, on a thread that only sleeps.
class DeathWatch {
 public:
  // NoSpace where there is no room for the page or for the thread.
  static Result<std::unique_ptr<DeathWatch>> make();
  // Ends the thread; within a millisecond or so.
  ~DeathWatch();
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  // To be passed to one child, and closed here once that is started.
  int child_fd() const { return child_fd_.get(); }
  void close_child_fd() { child_fd_ = UniqueFd(); }
  // Readable once the holder has died, and for ever after.
  int fd() const { return event_.get(); }
  // The same, looked up in the page: never later than the lifeline's end.
  bool dead() const;
  // What the child had written by now; final once it is reaped.
  LifeTotals totals() const;

 private:
  DeathWatch(UniqueFd child_fd, MappedBuffer page, UniqueFd event);
  void watch();

  UniqueFd child_fd_;
  MappedBuffer page_;
  UniqueFd event_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ended_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace optlease
