#include "shm/fd_passing.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "shm/eintr.h"

namespace optlease {
namespace {

// Room for more than one, so that a peer that sends several is seen and none of them leaks.
constexpr size_t kControlFds = 8;

// Takes every fd out of the message; false where it is not at most one.
bool take_fds(msghdr* message, UniqueFd* fd) {
  bool good = (message->msg_flags & MSG_CTRUNC) == 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(c) + i * sizeof(int), sizeof received);
      UniqueFd owned(received);
      if (*fd)
        good = false;
      else
        *fd = std::move(owned);
    }
  }
  return good;
}

}  // namespace

Progress FdReceiver::receive(int socket, void* into, size_t bytes) {
  iovec piece{static_cast<char*>(into) + got_, bytes - got_};
  alignas(cmsghdr) char control[CMSG_SPACE(kControlFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n =
      retry_eintr([&] { return ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT); });
  if (n < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? Progress::kWouldBlock : Progress::kFailed;
  }
  if (!take_fds(&message, &fd_)) return Progress::kFailed;
  if (n == 0) return Progress::kClosed;
  got_ += static_cast<size_t>(n);
  return Progress::kMore;
}

void FdReceiver::reset() {
  got_ = 0;
  fd_ = UniqueFd();
}

ssize_t send_with_fd(int socket, const void* from, size_t bytes, int fd) {
  iovec piece{const_cast<void*>(from), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  return retry_eintr([&] { return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

Status check_peer(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return {StatusCode::kIo, format("SO_PEERCRED: %s", ::strerror(errno))};
  }
  if (peer.uid == ::geteuid()) return Status::ok();
  return {
      StatusCode::kPermission,
      format("the peer (pid %d) runs as uid %u, this process as uid %u", static_cast<int>(peer.pid),
             static_cast<unsigned>(peer.uid), static_cast<unsigned>(::geteuid()))};
}

}  // namespace optlease
