// Who owns a job: an exclusive flock on the job's empty lock segment. The kernel lets go of it when
// the last process that holds the descriptor is gone, so a lock that can be had means that nobody
// of the job lives. Used by the launcher (whose children inherit it), leftovers and tests. It
// guards names, not memory; it says nothing about what the segments hold.
#pragma once

#include <cstdint>
#include <string>

#include "shm/contract/status.h"
#include "shm/shared_buffer.h"

namespace optlease {

class JobLock {
 public:
  enum class State { kHeld, kFree, kAbsent };

  // Makes the segment where it is missing (mode 0600) and takes the lock. Busy, naming those
  // who have it open as far as this user may see, when a live process has it. A probe or a cleaner
  // may hold it for an instant: Busy is said only after kJobLockPatienceMs. inheritable: children
  // keep the descriptor over exec, and with it the lock.
  static Result<JobLock> acquire(const std::string& name, bool inheritable);
  // Changes nothing, creates nothing. Permission or Corrupt where the name is no lock of this user.
  static Result<State> try_probe(const std::string& name);

  JobLock(JobLock&&) noexcept = default;
  JobLock& operator=(JobLock&&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& name() const { return name_; }
  Status set_inheritable(bool inheritable);
  // False when the name was removed or replaced under us: the job is no longer ours alone.
  bool name_still_ours() const;
  // The clean end: removes the name while the lock is held, then lets go.
  // REQUIRES: no child that inherited the lock lives; a new job of this name may start at once.
  void release_and_unlink();

 private:
  JobLock(std::string name, UniqueFd fd) : name_(std::move(name)), fd_(std::move(fd)) {}
  std::string name_;
  UniqueFd fd_;
};

inline constexpr uint64_t kJobLockPatienceMs = 300;

}  // namespace optlease
