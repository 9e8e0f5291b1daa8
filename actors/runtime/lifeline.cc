#include "actors/runtime/lifeline.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "actors/runtime/clock.h"

namespace optlease {
namespace {

constexpr char kRehearsalMark = 'R';
constexpr char kDone = 'K';
constexpr size_t kDatagramBytesMax = 64;

struct Received {
  enum class Kind { kNothing, kDatagram, kClosed } kind = Kind::kNothing;
  char bytes[kDatagramBytesMax];
  size_t size = 0;
};

// Never blocks. An error other than "nothing there" means that nobody can ever answer: closed. An
// empty datagram looks like an end-of-file; neither end sends one.
Received receive(int fd) {
  Received out;
  ssize_t size;
  do {
    size = ::recv(fd, out.bytes, sizeof out.bytes, MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size > 0) {
    out.kind = Received::Kind::kDatagram;
    out.size = static_cast<size_t>(size);
  } else if (size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
    out.kind = Received::Kind::kClosed;
  }
  return out;
}

Status send(int fd, std::string_view datagram) {
  ssize_t size;
  do {
    size = ::send(fd, datagram.data(), datagram.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size == static_cast<ssize_t>(datagram.size())) return Status::ok();
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK) {
    return Status(StatusCode::kBusy, "the lifeline's buffer is full: the other end does not read");
  }
  return Status(StatusCode::kPeerLost,
                format("the lifeline's other end is gone: %s", std::strerror(error)));
}

}  // namespace

Result<Lifeline> Lifeline::adopt(int fd) {
  if (fd < 0) return Lifeline();
  int type = 0;
  socklen_t length = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_SEQPACKET) {
    return Status(
        StatusCode::kInvalidArgument,
        format("--lifeline-fd %d is no SOCK_SEQPACKET socket; only the launcher gives it", fd));
  }
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return Status(StatusCode::kIo, format("fcntl of lifeline %d: %s", fd, std::strerror(errno)));
  }
  return Lifeline(fd);
}

Lifeline::Lifeline(Lifeline&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Lifeline& Lifeline::operator=(Lifeline&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Lifeline::~Lifeline() {
  if (fd_ >= 0) ::close(fd_);
}

bool Lifeline::closed() {
  if (fd_ < 0) return false;
  for (;;) {
    const Received received = receive(fd_);
    if (received.kind != Received::Kind::kDatagram) {
      return received.kind == Received::Kind::kClosed;
    }
  }
}

Status Lifeline::rehearse(uint32_t index, int timeout_ms) {
  if (fd_ < 0) {
    return Status(StatusCode::kUnsupported,
                  format("rehearsal %u needs a launcher; this process has no lifeline", index));
  }
  // An answer that came after an earlier rehearsal's deadline must not count for this one.
  if (closed()) return Status(StatusCode::kPeerLost, "the launcher is gone");
  OPTLEASE_TRY(send(fd_, format("%c%u", kRehearsalMark, index)));
  const Deadline deadline = Deadline::after_ms(timeout_ms);
  for (;;) {
    const Received received = receive(fd_);
    if (received.kind == Received::Kind::kDatagram) return Status::ok();
    if (received.kind == Received::Kind::kClosed) {
      return Status(StatusCode::kPeerLost, "the launcher is gone");
    }
    const int remaining_ms = deadline.remaining_ms();
    if (remaining_ms == 0) {
      return Status(StatusCode::kTimeout,
                    format("rehearsal %u was not answered in %d ms", index, timeout_ms));
    }
    pollfd item{fd_, POLLIN, 0};
    ::poll(&item, 1, remaining_ms);  // EINTR: the loop looks at the deadline again
  }
}

Result<LifelinePair> make_lifeline() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return Status(StatusCode::kNoSpace,
                  format("socketpair for a lifeline: %s", std::strerror(errno)));
  }
  return LifelinePair{fds[0], fds[1]};
}

LifelineEvent read_lifeline(int launcher_fd) {
  const Received received = receive(launcher_fd);
  switch (received.kind) {
    case Received::Kind::kNothing:
      return {LifelineEvent::Kind::kNothing, 0};
    case Received::Kind::kClosed:
      return {LifelineEvent::Kind::kClosed, 0};
    case Received::Kind::kDatagram:
      break;
  }
  return parse_lifeline_datagram(std::string_view(received.bytes, received.size));
}

LifelineEvent parse_lifeline_datagram(std::string_view datagram) {
  LifelineEvent event{LifelineEvent::Kind::kNoise, 0};
  if (datagram.size() < 2 || datagram[0] != kRehearsalMark) return event;
  const char* const end = datagram.data() + datagram.size();
  uint32_t index = 0;
  const auto [stop, error] = std::from_chars(datagram.data() + 1, end, index);
  if (error != std::errc() || stop != end) return event;
  return {LifelineEvent::Kind::kRehearsal, index};
}

Status answer_rehearsal(int launcher_fd) { return send(launcher_fd, std::string_view(&kDone, 1)); }

}  // namespace optlease
