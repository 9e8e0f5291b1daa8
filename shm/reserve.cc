#include "shm/reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/vfs.h>

#include <algorithm>

#include "shm/eintr.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

// One call takes at most this much, so that a stop signal waits for no more than a piece.
constexpr uint64_t kPieceBytes = 64u << 20;

// posix_fallocate on tmpfs gives up, and gives everything back, whenever a signal is pending
// (kernels before 6.10): under a busy interval timer it would never end. With signals held back for
// a piece it always does. A SIGXFSZ that the call itself raised is taken out of the queue again.
int reserve_piece(int fd, uint64_t offset, uint64_t bytes, HugePages* pages) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (!ends_huge_pages(pages->refusal)) {
    const HugePages piece = fill_with_huge_pages(fd, offset, bytes);
    pages->bytes += piece.bytes;
    if (piece.refusal != 0) pages->refusal = piece.refusal;
  }
  // Takes what is still missing, all of it where there are no large pages.
  int error = EINTR;
  while (error == EINTR) {
    error = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  if (error == EFBIG && sigismember(&before, SIGXFSZ) == 0) {
    sigset_t too_large;
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    const timespec now{};
    (void)sigtimedwait(&too_large, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

Status no_space(const std::string& what, uint64_t bytes, uint64_t free, int error) {
  return {
      StatusCode::kNoSpace,
      format("%s needs %llu bytes and its file system has %llu free (%s); free some, enlarge it "
             "(mount -o remount,size=... /dev/shm) or make the job smaller",
             what.c_str(), static_cast<unsigned long long>(bytes),
             static_cast<unsigned long long>(free), ::strerror(error))};
}

}  // namespace

bool ends_huge_pages(int refusal) {
  return refusal == ENOMEM || refusal == EINVAL || refusal == EOPNOTSUPP;
}

Result<uint64_t> free_bytes_of(int fd) {
  struct statfs info {};
  if (retry_eintr([&] { return ::fstatfs(fd, &info); }) != 0) {
    return Status{StatusCode::kIo, format("fstatfs: %s", ::strerror(errno))};
  }
  return static_cast<uint64_t>(info.f_bavail) * static_cast<uint64_t>(info.f_bsize);
}

Status reserve_space(int fd, uint64_t bytes, const std::string& what, HugePages* pages) {
  *pages = {};
  const Result<uint64_t> free = free_bytes_of(fd);
  const uint64_t free_bytes = free.is_ok() ? free.value() : 0;
  struct statfs info {};
  // A file system without a size (memfds live on one; some tmpfs mounts too) reports zero blocks.
  const bool sized = retry_eintr([&] { return ::fstatfs(fd, &info); }) == 0 && info.f_blocks > 0;
  // Asked first, so that a request that cannot fit does not fill the file system while it fails.
  if (sized && free.is_ok() && bytes > free_bytes) return no_space(what, bytes, free_bytes, ENOSPC);
  if (bytes > static_cast<uint64_t>(INT64_MAX)) return no_space(what, bytes, free_bytes, EFBIG);
  KILL_POINT("reserve.checked");
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    const int error = reserve_piece(fd, at, std::min(kPieceBytes, bytes - at), pages);
    if (error == 0) continue;
    if (error == ENOSPC || error == EFBIG || error == ENOMEM || error == EDQUOT) {
      return no_space(what, bytes, free_bytes, error);
    }
    return {StatusCode::kIo,
            format("posix_fallocate of %llu bytes for %s: %s",
                   static_cast<unsigned long long>(bytes), what.c_str(), ::strerror(error))};
  }
  return Status::ok();
}

}  // namespace optlease
