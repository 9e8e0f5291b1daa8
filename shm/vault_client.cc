// The client side of the vault: one connection a call, every wait bounded by one deadline.
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "shm/contract/limits.h"
#include "shm/contract/vault.h"
#include "shm/eintr.h"
#include "shm/fd_passing.h"
#include "shm/monotonic.h"
#include "shm/shared_buffer.h"

namespace optlease {
namespace {

// One call to the vault at `path`, with what remains of its time.
class VaultCall {
 public:
  VaultCall(std::string path, uint64_t timeout_ms)
      : path_(std::move(path)),
        timeout_ms_(timeout_ms),
        deadline_ms_(monotonic_ms() + timeout_ms) {}

  // Sends `request` (with `fd` if it is one) and waits for the reply to it.
  Result<VaultMessage> exchange(const VaultMessage& request, int fd);
  UniqueFd take_fd() { return receiver_.take_fd(); }

 private:
  Status connect();
  Status send(const VaultMessage& request, int fd);
  Status wait_for(short events);
  Status failed(const char* what) const {
    const StatusCode code =
        errno == EPIPE || errno == ECONNRESET || errno == ENOENT || errno == ECONNREFUSED
            ? StatusCode::kPeerLost
            : StatusCode::kIo;
    return {code, format("vault %s: %s: %s", path_.c_str(), what, ::strerror(errno))};
  }

  std::string path_;
  uint64_t timeout_ms_;
  uint64_t deadline_ms_;
  UniqueFd socket_;
  FdReceiver receiver_;
};

Status VaultCall::wait_for(short events) {
  for (;;) {
    const uint64_t now = monotonic_ms();
    if (now >= deadline_ms_) {
      return {StatusCode::kTimeout,
              format("vault %s did not answer within %" PRIu64 " ms", path_.c_str(), timeout_ms_)};
    }
    pollfd poll_fd{socket_.get(), events, 0};
    const int wait_ms = static_cast<int>(std::min<uint64_t>(deadline_ms_ - now, 60000));
    const int ready = ::poll(&poll_fd, 1, wait_ms);
    if (ready > 0) return Status::ok();
    if (ready < 0 && errno != EINTR) return failed("poll");
  }
}

Status VaultCall::connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.empty() || path_.size() > kSocketPathBytesMax) {
    return {StatusCode::kInvalidArgument, format("a socket path has 1..%u bytes, '%s' has %zu",
                                                 kSocketPathBytesMax, path_.c_str(), path_.size())};
  }
  std::memcpy(address.sun_path, path_.data(), path_.size());
  socket_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_) return failed("socket");
  for (;;) {
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      return check_peer(socket_.get());
    }
    if (errno == EINTR) continue;
    // EAGAIN: more callers wait than the backlog holds; a Unix socket offers nothing to poll for.
    if (errno != EAGAIN) return failed("connect");
    if (monotonic_ms() >= deadline_ms_) {
      return {StatusCode::kTimeout, "vault " + path_ + " does not accept connections"};
    }
    const timespec pause{0, 2'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

Status VaultCall::send(const VaultMessage& request, int fd) {
  const char* at = reinterpret_cast<const char*>(&request);
  size_t left = sizeof request;
  while (left > 0) {
    const ssize_t sent = send_with_fd(socket_.get(), at, left, fd);
    if (sent > 0) {
      at += sent;
      left -= static_cast<size_t>(sent);
      fd = -1;  // it went with the first byte
    } else if (sent < 0 && errno != EAGAIN && errno != ETOOMANYREFS) {
      return failed("send");
    } else {
      OPTLEASE_TRY(wait_for(POLLOUT));
    }
  }
  return Status::ok();
}

Result<VaultMessage> VaultCall::exchange(const VaultMessage& request, int fd) {
  const char* why = why_invalid(request);
  if (why != nullptr) {
    return Status{StatusCode::kInvalidArgument, format("vault request: %s", why)};
  }
  OPTLEASE_TRY(connect());
  // A vault that refuses answers without reading; its reply tells more than a failed send.
  const Status sent = send(request, fd);
  if (!sent.is_ok() && sent.code() != StatusCode::kPeerLost) return sent;
  VaultMessage reply{};
  while (!receiver_.complete(sizeof reply)) {
    OPTLEASE_TRY(wait_for(POLLIN));
    const Progress progress = receiver_.receive(socket_.get(), &reply, sizeof reply);
    if (progress == Progress::kFailed) return failed("receive");
    if (progress == Progress::kClosed) {
      return Status{StatusCode::kPeerLost, "vault " + path_ + " closed the connection"};
    }
  }
  if (const char* broken = why_invalid(reply)) {
    return Status{StatusCode::kCorrupt, "vault " + path_ + " answered nonsense: " + broken};
  }
  if (reply.op != request.op + 64 || std::memcmp(reply.key, request.key, sizeof reply.key) != 0) {
    return Status{StatusCode::kCorrupt, "vault " + path_ + " answered another request"};
  }
  return reply;
}

Result<VaultMessage> make_request(VaultOp op, const std::string& key, uint64_t bytes) {
  VaultMessage request{};
  if (key.size() >= sizeof request.key) {
    return Status{StatusCode::kInvalidArgument,
                  format("a vault key has at most %u bytes, '%s' has %zu", kVaultKeyBytes - 1,
                         key.c_str(), key.size())};
  }
  request.magic = kVaultMagic;
  request.version = kVaultVersion;
  request.op = static_cast<uint16_t>(op);
  request.bytes = bytes;
  std::memcpy(request.key, key.data(), key.size());
  return request;
}

Status refused(const std::string& path, const std::string& key, uint16_t status) {
  const auto code = static_cast<StatusCode>(status);
  const char* why = "the vault refused the request";
  if (code == StatusCode::kAlreadyExists) why = "the vault already holds this key";
  if (code == StatusCode::kNotFound) why = "the vault does not hold this key yet";
  if (code == StatusCode::kPermission) why = "the vault serves another user";
  if (code == StatusCode::kNoSpace) why = "the vault holds as many buffers as it may";
  if (code == StatusCode::kInvalidArgument)
    why = "the fd is missing, shorter than said or no memory";
  return {code, format("'%s' at %s: %s", key.c_str(), path.c_str(), why)};
}

}  // namespace

Status vault_put(const std::string& socket_path, const std::string& key, uint64_t bytes, int fd,
                 uint64_t timeout_ms) {
  Result<VaultMessage> request = make_request(VaultOp::kPut, key, bytes);
  if (!request.is_ok()) return request.status();
  if (fd < 0) return {StatusCode::kInvalidArgument, "a vault put needs an fd"};
  VaultCall call(socket_path, timeout_ms);
  Result<VaultMessage> reply = call.exchange(request.value(), fd);
  if (!reply.is_ok()) return reply.status();
  if (reply.value().status != 0) return refused(socket_path, key, reply.value().status);
  return Status::ok();
}

Result<VaultEntry> vault_get(const std::string& socket_path, const std::string& key,
                             uint64_t timeout_ms) {
  Result<VaultMessage> request = make_request(VaultOp::kGet, key, 0);
  if (!request.is_ok()) return request.status();
  VaultCall call(socket_path, timeout_ms);
  Result<VaultMessage> reply = call.exchange(request.value(), -1);
  if (!reply.is_ok()) return reply.status();
  if (reply.value().status != 0) return refused(socket_path, key, reply.value().status);
  VaultEntry entry{key, reply.value().bytes, call.take_fd()};
  if (!entry.fd) {
    return Status{StatusCode::kCorrupt, "vault " + socket_path + " sent no fd for '" + key + "'"};
  }
  return entry;
}

}  // namespace optlease
