#include "shm/vault.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "shm/contract/limits.h"
#include "shm/eintr.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

Status failed(const std::string& path, const char* what) {
  return {StatusCode::kIo, format("vault %s: %s: %s", path.c_str(), what, ::strerror(errno))};
}

// Removes a socket of this user that an earlier launcher left behind.
Status remove_stale_socket(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status::ok() : failed(path, "lstat");
  }
  if (!S_ISSOCK(info.st_mode) || info.st_uid != ::geteuid()) {
    return {StatusCode::kAlreadyExists, path + " exists and is no socket of this user; remove it"};
  }
  return ::unlink(path.c_str()) == 0 || errno == ENOENT ? Status::ok() : failed(path, "unlink");
}

// True for memory of at least `bytes`. Device memory has no size that fstat knows (a character
// device or an anonymous inode): its importer checks that.
bool is_memory_of(int fd, uint64_t bytes) {
  struct stat info {};
  if (retry_eintr([&] { return ::fstat(fd, &info); }) != 0) return false;
  if (S_ISREG(info.st_mode)) return static_cast<uint64_t>(info.st_size) >= bytes;
  return S_ISCHR(info.st_mode) || (info.st_mode & S_IFMT) == 0;
}

}  // namespace

Vault::Vault(std::string path, UniqueFd listener, UniqueFd epoll)
    : path_(std::move(path)), listener_(std::move(listener)), epoll_(std::move(epoll)) {}

Vault::~Vault() {
  struct stat named {};
  if (!listener_ || ::lstat(path_.c_str(), &named) != 0) return;
  if (S_ISSOCK(named.st_mode) && named.st_ino == inode_) ::unlink(path_.c_str());
}

Result<Vault> Vault::listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() > kSocketPathBytesMax) {
    return Status{StatusCode::kInvalidArgument,
                  format("a socket path has 1..%u bytes, '%s' has %zu", kSocketPathBytesMax,
                         path.c_str(), path.size())};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  OPTLEASE_TRY(remove_stale_socket(path));
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return failed(path, "socket");
  // The mode of the socket's own inode becomes the mode of its name.
  if (::fchmod(listener.get(), 0600) != 0) return failed(path, "fchmod");
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return failed(path, "bind");
  }
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return failed(path, "epoll_create1");
  Vault vault(path, std::move(listener), std::move(epoll));
  struct stat named {};
  if (::lstat(path.c_str(), &named) != 0) return failed(path, "lstat");
  vault.inode_ = named.st_ino;
  if (::listen(vault.listener_.get(), kVaultPeersMax) != 0) return failed(path, "listen");
  vault.watch_listener(true);
  return vault;
}

// While nobody can be accepted, those who wait must not make fd() readable.
void Vault::watch_listener(bool watch) {
  if (watch == listening_) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  ::epoll_ctl(epoll_.get(), watch ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_.get(), &event);
  listening_ = watch;
}

bool Vault::accept_peers(uint64_t now_ms) {
  while (peers_.size() < kVaultPeersMax) {
    UniqueFd socket(retry_eintr([&] {
      return ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }));
    if (!socket) return errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = socket.get();
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) return false;
    Peer& peer = peers_.emplace_back();
    peer.socket = std::move(socket);
    peer.deadline_ms = now_ms + kVaultPeerTimeoutMs;
  }
  return false;
}

void Vault::serve(uint64_t now_ms) {
  (void)accept_peers(now_ms);
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    Verdict verdict = hear(&*peer, now_ms);
    if (verdict == Verdict::kKeep && now_ms >= peer->deadline_ms) {
      ++refusals_;
      verdict = Verdict::kDrop;
    }
    // Closing the last descriptor of a socket takes it out of the epoll set.
    peer = verdict == Verdict::kDrop ? peers_.erase(peer) : std::next(peer);
  }
  watch_listener(accept_peers(now_ms));
}

Vault::Verdict Vault::hear(Peer* peer, uint64_t now_ms) {
  for (;;) {
    switch (peer->receiver.receive(peer->socket.get(), &peer->request, sizeof peer->request)) {
      case Progress::kWouldBlock:
        return Verdict::kKeep;
      case Progress::kFailed:
        ++refusals_;
        return Verdict::kDrop;
      case Progress::kClosed:
        if (peer->receiver.got() != 0) ++refusals_;
        return Verdict::kDrop;
      case Progress::kMore:
        break;
    }
    if (!peer->receiver.complete(sizeof peer->request)) continue;
    if (answer(peer) == Verdict::kDrop) return Verdict::kDrop;
    peer->receiver.reset();
    peer->deadline_ms = now_ms + kVaultPeerTimeoutMs;
    return Verdict::kKeep;  // one request a peer and round: none can keep the others waiting
  }
}

StatusCode Vault::put(Peer* peer) {
  const std::string key = peer->request.key;
  UniqueFd fd = peer->receiver.take_fd();
  if (!fd || !is_memory_of(fd.get(), peer->request.bytes)) return StatusCode::kInvalidArgument;
  if (held_.contains(key)) return StatusCode::kAlreadyExists;
  if (held_.size() >= kVaultEntriesMax) return StatusCode::kNoSpace;
  KILL_POINT("vault.fd_received");
  held_.emplace(key, Held{peer->request.bytes, std::move(fd)});
  KILL_POINT("vault.fd_kept");
  return StatusCode::kOk;
}

Vault::Verdict Vault::answer(Peer* peer) {
  const VaultMessage& request = peer->request;
  const auto op = static_cast<VaultOp>(request.op);
  if (why_invalid(request) != nullptr || (op != VaultOp::kPut && op != VaultOp::kGet)) {
    ++refusals_;
    return Verdict::kDrop;  // whoever sends this does not speak the protocol
  }
  VaultMessage reply{};
  reply.magic = kVaultMagic;
  reply.version = kVaultVersion;
  reply.op = request.op + 64;
  std::memcpy(reply.key, request.key, sizeof reply.key);
  int fd = -1;
  StatusCode status = StatusCode::kOk;
  if (!check_peer(peer->socket.get()).is_ok()) {
    status = StatusCode::kPermission;
  } else if (op == VaultOp::kPut) {
    status = put(peer);
  } else if (const auto found = held_.find(request.key); found != held_.end()) {
    reply.bytes = found->second.bytes;
    fd = found->second.fd.get();
  } else {
    status = StatusCode::kNotFound;
  }
  reply.status = static_cast<uint16_t>(status);
  if (status != StatusCode::kOk && status != StatusCode::kNotFound) ++refusals_;
  // A reply fits any socket buffer that was read from; a peer for which it does not never reads.
  const ssize_t sent = send_with_fd(peer->socket.get(), &reply, sizeof reply, fd);
  KILL_POINT("vault.answered");
  if (sent != static_cast<ssize_t>(sizeof reply)) return Verdict::kDrop;
  return status == StatusCode::kPermission ? Verdict::kDrop : Verdict::kKeep;
}

std::vector<VaultHolding> Vault::holdings() const {
  std::vector<VaultHolding> all;
  for (const auto& [key, held] : held_) all.push_back({key, held.bytes});
  return all;
}

uint64_t Vault::held_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [key, held] : held_) bytes += held.bytes;
  return bytes;
}

}  // namespace optlease
