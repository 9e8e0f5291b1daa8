// A /dev/shm of a few MiB for one test, in a mount namespace of a process of its own, and what
// fills it. Containers without the right to mount cannot have it: tests skip there.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

namespace optlease::testing_support {

inline constexpr int kNoRightToMount = 77;

// What `body` returns (0..76), run in a child that has a tmpfs of `size` ("1m") as its /dev/shm;
// kNoRightToMount; or minus the signal that ended it.
inline int in_small_shm(const std::string& size, const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child < 0) return -1000;
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, "") != 0 ||
        ::mount("tmpfs", "/dev/shm", "tmpfs", 0, ("size=" + size).c_str()) != 0) {
      ::_exit(kNoRightToMount);
    }
    ::_exit(body());
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Somebody else's file takes every byte that is left. False where that is not what happens.
inline bool fill_shm() {
  const int fd = ::open("/dev/shm/somebody-elses", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  int error = 0;
  for (off_t at = 0; error == 0; at += 4096) error = ::posix_fallocate(fd, at, 4096);
  ::close(fd);
  return error == ENOSPC;
}

// True once a child of this process stands still (SIGSTOP), false where it ended instead.
inline bool stands_still(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, WUNTRACED) < 0 && errno == EINTR) {
  }
  return WIFSTOPPED(status);
}

}  // namespace optlease::testing_support
