#include "shm/job_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/eintr.h"
#include "shm/kill_point.h"
#include "shm/monotonic.h"
#include "shm/processes.h"
#include "shm/segment.h"

namespace optlease {
namespace {

constexpr int kReplacedTriesMax = 1000;

Status failed(const std::string& name, const char* what, int error) {
  StatusCode code = StatusCode::kIo;
  if (error == EACCES || error == EPERM || error == ELOOP) code = StatusCode::kPermission;
  if (error == ENOSPC || error == ENOMEM) code = StatusCode::kNoSpace;
  return {code,
          format("job lock %s: %s: %s", Segment::path_of(name).c_str(), what, ::strerror(error))};
}

Status check_lock_file(int fd, const std::string& name) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return failed(name, "fstat", errno);
  const std::string path = Segment::path_of(name);
  if (!S_ISREG(info.st_mode)) return {StatusCode::kPermission, path + " is no regular file"};
  if (info.st_uid != ::geteuid() || (info.st_mode & 07777) != 0600) {
    return {
        StatusCode::kPermission,
        format("%s belongs to uid %u with mode %04o; a job lock belongs to this user (uid %u) "
               "with mode 0600",
               path.c_str(), static_cast<unsigned>(info.st_uid),
               static_cast<unsigned>(info.st_mode & 07777), static_cast<unsigned>(::geteuid()))};
  }
  if (info.st_size != 0) return {StatusCode::kCorrupt, path + " is no job lock: it is not empty"};
  return Status::ok();
}

bool is_name_of(int fd, const std::string& name) {
  struct stat ours {
  }, named{};
  return ::fstat(fd, &ours) == 0 && ::lstat(Segment::path_of(name).c_str(), &named) == 0 &&
         ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

Status busy(const std::string& name) {
  // Not who took it: that one may be gone, and a child that it left, even one that never came to
  // execute its program, keeps it.
  std::string who = describe_processes(processes_with_open(Segment::path_of(name)));
  if (who.empty()) {
    who = format("by this process, %d, or by one that it cannot see", static_cast<int>(::getpid()));
  } else {
    who = "who has it open: " + who;
  }
  return {StatusCode::kBusy,
          format("the job is running, or a tool reads its state: %s is locked (%s); stop that "
                 "job, wait, or choose another name",
                 Segment::path_of(name).c_str(), who.c_str())};
}

void pause_ms(uint64_t ms) {
  const timespec pause{static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000) * 1000000};
  ::nanosleep(&pause, nullptr);
}

Result<UniqueFd> open_lock(const std::string& name, int flags) {
  // O_NONBLOCK: a FIFO in our place would otherwise hold us until somebody opened its other end.
  UniqueFd fd(retry_eintr([&] {
    return ::open(Segment::path_of(name).c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
                  0600);
  }));
  if (!fd) {
    if (errno == ENOENT) return Status{StatusCode::kNotFound, name};
    return failed(name, "open", errno);
  }
  // A umask may have narrowed the mode of a lock that was made just now.
  struct stat info {};
  if ((flags & O_CREAT) != 0 && ::fstat(fd.get(), &info) == 0 && info.st_uid == ::geteuid() &&
      S_ISREG(info.st_mode) && (info.st_mode & 07777 & ~0600) == 0) {
    ::fchmod(fd.get(), 0600);
  }
  OPTLEASE_TRY(check_lock_file(fd.get(), name));
  return fd;
}

}  // namespace

Result<JobLock> JobLock::acquire(const std::string& name, bool inheritable) {
  const uint64_t give_up_ms = monotonic_ms() + kJobLockPatienceMs;
  for (int tries = 0; tries < kReplacedTriesMax; ++tries) {
    Result<UniqueFd> fd = open_lock(name, O_RDWR | O_CREAT);
    if (!fd.is_ok()) return fd.status();
    KILL_POINT("lock.opened");
    while (::flock(fd.value().get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return failed(name, "flock", errno);
      if (monotonic_ms() >= give_up_ms) return busy(name);
      pause_ms(3);
    }
    KILL_POINT("lock.taken");
    // Whoever held it before may have removed the name: then we own a file that nobody sees.
    if (!is_name_of(fd.value().get(), name)) continue;
    JobLock lock(name, std::move(fd).value());
    if (inheritable) OPTLEASE_TRY(lock.set_inheritable(true));
    return lock;
  }
  return Status{StatusCode::kBusy, format("job lock %s was replaced %d times while it was taken",
                                          Segment::path_of(name).c_str(), kReplacedTriesMax)};
}

Result<JobLock::State> JobLock::try_probe(const std::string& name) {
  Result<UniqueFd> fd = open_lock(name, O_RDONLY);
  if (!fd.is_ok()) {
    if (fd.status().code() == StatusCode::kNotFound) return State::kAbsent;
    return fd.status();
  }
  // Shared, so that probes do not disturb each other; let go at once when fd closes.
  if (retry_eintr([&] { return ::flock(fd.value().get(), LOCK_SH | LOCK_NB); }) == 0) {
    return State::kFree;
  }
  if (errno == EWOULDBLOCK) return State::kHeld;
  return failed(name, "flock", errno);
}

Status JobLock::set_inheritable(bool inheritable) {
  if (::fcntl(fd_.get(), F_SETFD, inheritable ? 0 : FD_CLOEXEC) == 0) return Status::ok();
  return failed(name_, "fcntl(F_SETFD)", errno);
}

bool JobLock::name_still_ours() const { return is_name_of(fd_.get(), name_); }

void JobLock::release_and_unlink() {
  if (name_still_ours()) Segment::unlink(name_);
  KILL_POINT("lock.unlinked");
  fd_ = UniqueFd();
}

}  // namespace optlease
