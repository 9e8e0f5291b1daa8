#include "actors/wire/socket.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <zmq.hpp>

#include "shm/contract/limits.h"

namespace optlease {
namespace {

// A stranger that sends only malformed multi-part messages gets this many of them swallowed in one
// call; the rest waits, so that one call always ends.
constexpr int kOdditiesPerReceive = 256;
// ipc connects cost microseconds: a restarted peer is found again within a few of these.
constexpr int kReconnectMs = 20;
constexpr int kReconnectMsMax = 200;
constexpr int kListenBacklog = 1024;
constexpr int kIoThreads = 1;
constexpr int kLibraryThreads = kIoThreads + 1;  // one takes closed sockets down

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

Result<sockaddr_un> address_of(const std::string& path) {
  if (path.empty() || path.size() > kSocketPathBytesMax) {
    return Status(StatusCode::kInvalidArgument,
                  format("the socket path '%s' has %zu bytes; allowed are 1..%u", path.c_str(),
                         path.size(), kSocketPathBytesMax));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Status io_error(const char* call, const std::string& path) {
  const int error = errno;
  const StatusCode code = error == EACCES || error == EPERM || error == EROFS
                              ? StatusCode::kPermission
                          : error == ENOENT ? StatusCode::kNotFound
                          : error == ENOSPC ? StatusCode::kNoSpace
                                            : StatusCode::kIo;
  return Status(code, format("%s of socket %s: %s", call, path.c_str(), std::strerror(error)));
}

// Makes room for a listener at `path`: nothing there, or a socket file on which nobody listens (or
// whose listener does not count).
Status clear_stale(const std::string& path, bool take_over) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? Status::ok() : io_error("lstat", path);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return Status(StatusCode::kAlreadyExists,
                  format("%s is there and is no socket; remove it", path.c_str()));
  }
  if (!take_over && is_listening(path)) {
    return Status(StatusCode::kAlreadyExists,
                  format("a live process listens on %s; end it first", path.c_str()));
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return io_error("unlink", path);
  return Status::ok();
}

// libzmq would unlink whatever is at the path, give the file the umask's mode, and unlink it again
// at close even if a successor has bound it. So the listener is made here and handed over.
Result<int> make_listener(const std::string& path, bool take_over) {
  Result<sockaddr_un> address = address_of(path);
  if (!address) return address.status();
  OPTLEASE_TRY(clear_stale(path, take_over));
  Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.get() < 0) return io_error("socket", path);
  // Linux gives the file the descriptor's mode, so it is never open to others, not even briefly.
  if (::fchmod(listener.get(), 0600) != 0) return io_error("fchmod", path);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.value()),
             sizeof(sockaddr_un)) != 0) {
    if (errno != EADDRINUSE) return io_error("bind", path);
    return Status(StatusCode::kAlreadyExists,
                  format("another process has just bound %s", path.c_str()));
  }
  if (::chmod(path.c_str(), 0600) != 0) return io_error("chmod", path);
  if (::listen(listener.get(), kListenBacklog) != 0) return io_error("listen", path);
  return listener.release();
}

int zmq_type_of(Socket::Type type) {
  switch (type) {
    case Socket::Type::kRouter:
      return ZMQ_ROUTER;
    case Socket::Type::kDealer:
      return ZMQ_DEALER;
    case Socket::Type::kPub:
      return ZMQ_PUB;
    case Socket::Type::kSub:
      return ZMQ_SUB;
  }
  OPTLEASE_CHECK(false, "socket type %d", static_cast<int>(type));
}

void apply(zmq::socket_t& socket, Socket::Type type, const SocketOptions& options) {
  socket.set(zmq::sockopt::maxmsgsize,
             options.message_bytes_max > 0 ? options.message_bytes_max : int64_t{kMessageBytesMax});
  socket.set(zmq::sockopt::sndhwm, options.send_high_water_mark);
  socket.set(zmq::sockopt::rcvhwm, options.receive_high_water_mark);
  socket.set(zmq::sockopt::linger, options.linger_ms);
  socket.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
  socket.set(zmq::sockopt::reconnect_ivl_max, kReconnectMsMax);
  switch (type) {
    case Socket::Type::kRouter:
      socket.set(zmq::sockopt::router_mandatory, true);
      // A peer that comes back under its routing id before the old connection is seen dead takes
      // over. Who must not be silenced that way has a private one.
      socket.set(zmq::sockopt::router_handover, true);
      break;
    case Socket::Type::kDealer:
      if (!options.routing_id.empty()) {
        socket.set(zmq::sockopt::routing_id, options.routing_id);
      }
      break;
    case Socket::Type::kPub:
      break;
    case Socket::Type::kSub:
      socket.set(zmq::sockopt::subscribe, "");
      break;
  }
}

Status zmq_error(const char* call, const std::string& path, int error) {
  const StatusCode code = error == EMFILE || error == ENFILE || error == ENOMEM
                              ? StatusCode::kNoSpace
                              : StatusCode::kIo;
  return Status(code,
                format("ZeroMQ %s of socket %s: %s", call, path.c_str(), zmq_strerror(error)));
}

// The library ends the process where it cannot start a thread. As many as it will start, at once:
// their stacks are what it gets afterwards.
void check_room_for_threads() {
  std::array<std::thread, kLibraryThreads> threads;
  std::atomic<bool> over = false;
  const auto end_all = [&] {
    over = true;
    over.notify_all();
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.join();
    }
  };
  try {
    for (std::thread& thread : threads) thread = std::thread([&over] { over.wait(false); });
  } catch (const std::system_error&) {
    end_all();
    throw;
  }
  end_all();
}

// "localhost:<uid>:<gid>:<pid>", which the library asks of the kernel when a peer connects.
int pid_of_sender(zmq::message_t& part) {
  const char* address = zmq_msg_gets(part.handle(), "Peer-Address");
  const std::string_view text = address == nullptr ? "" : address;
  const size_t colon = text.rfind(':');
  int pid = 0;
  if (colon == std::string_view::npos) return 0;
  const auto [end, error] =
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), pid);
  return error == std::errc{} && end == text.data() + text.size() ? pid : 0;
}

int send_part(void* socket, std::string_view bytes, int flags) {
  int result;
  do {
    result = zmq_send(socket, bytes.data(), bytes.size(), flags | ZMQ_DONTWAIT);
  } while (result < 0 && zmq_errno() == EINTR);
  return result;
}

bool receive_part(void* socket, zmq::message_t* part) {
  int result;
  do {
    result = zmq_msg_recv(part->handle(), socket, ZMQ_DONTWAIT);
  } while (result < 0 && zmq_errno() == EINTR);
  return result >= 0;
}

}  // namespace

struct SocketContext::Impl {
  // A monitor attaches to two sockets of every rank, more than ZeroMQ's default of 1023.
  std::shared_ptr<zmq::context_t> context =
      std::make_shared<zmq::context_t>(kIoThreads, static_cast<int>(4 * kRankCountMax));
};

SocketContext::SocketContext() : impl_(std::make_unique<Impl>()) {
  check_room_for_threads();
  // The library starts its threads with the first socket: now, while there is room.
  const zmq::socket_t first(*impl_->context, ZMQ_PAIR);
}
SocketContext::~SocketContext() = default;
void* SocketContext::native() const { return impl_->context->handle(); }

struct Socket::Impl {
  std::shared_ptr<zmq::context_t> context;  // outlives the socket below
  zmq::socket_t socket;
  Type type = Type::kDealer;
  std::string path;
  bool is_bound = false;
  dev_t device = 0;  // of the socket file that this socket made
  ino_t inode = 0;

  ~Impl() {
    if (is_bound) remove_own_file();
  }
  // A successor may have bound the path by now: only the file that is ours goes.
  void remove_own_file() const {
    struct stat found {};
    if (::lstat(path.c_str(), &found) == 0 && found.st_dev == device && found.st_ino == inode) {
      ::unlink(path.c_str());
    }
  }
};

Result<Socket> Socket::bind(SocketContext& context, Type type, const std::string& path,
                            const SocketOptions& options) {
  Result<int> made = make_listener(path, options.take_over_path);
  if (!made) return made.status();
  Descriptor listener(made.value());
  auto impl = std::make_unique<Impl>();
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return io_error("lstat", path);
  impl->path = path;
  impl->type = type;
  impl->is_bound = true;
  impl->device = found.st_dev;
  impl->inode = found.st_ino;
  try {
    impl->context = context.impl_->context;
    impl->socket = zmq::socket_t(*impl->context, zmq_type_of(type));
    apply(impl->socket, type, options);
    // Directory and file mode keep others out; this holds where somebody has opened both.
    const uid_t me = ::geteuid();
    if (zmq_setsockopt(impl->socket.handle(), ZMQ_IPC_FILTER_UID, &me, sizeof me) != 0) {
      throw zmq::error_t();
    }
    const int fd = listener.get();
    if (zmq_setsockopt(impl->socket.handle(), ZMQ_USE_FD, &fd, sizeof fd) != 0) {
      throw zmq::error_t();
    }
    impl->socket.bind("ipc://" + path);
    listener.release();  // libzmq closes it from here on
  } catch (const zmq::error_t& error) {
    return zmq_error("bind", path, error.num());
  }
  return Socket(std::move(impl));
}

Result<Socket> Socket::connect(SocketContext& context, Type type, const std::string& path,
                               const SocketOptions& options) {
  if (Result<sockaddr_un> address = address_of(path); !address) return address.status();
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->type = type;
  try {
    impl->context = context.impl_->context;
    impl->socket = zmq::socket_t(*impl->context, zmq_type_of(type));
    apply(impl->socket, type, options);
    impl->socket.connect("ipc://" + path);
  } catch (const zmq::error_t& error) {
    return zmq_error("connect", path, error.num());
  }
  return Socket(std::move(impl));
}

Socket::Socket(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Socket::Socket(Socket&&) noexcept = default;
Socket& Socket::operator=(Socket&&) noexcept = default;
Socket::~Socket() = default;
void* Socket::native() const { return impl_->socket.handle(); }

Status Socket::send(const Message& message) {
  void* const socket = native();
  if (impl_->type == Type::kRouter && send_part(socket, message.peer, ZMQ_SNDMORE) < 0) {
    const int error = zmq_errno();
    if (error == EHOSTUNREACH) {
      return Status(StatusCode::kNotFound,
                    format("%s has no peer '%s'", impl_->path.c_str(), message.peer.c_str()));
    }
    if (error != EAGAIN) return zmq_error("send", impl_->path, error);
    return Status(StatusCode::kBusy, format("peer '%s' of %s does not take its messages",
                                            message.peer.c_str(), impl_->path.c_str()));
  }
  if (send_part(socket, message.frame, 0) < 0) {
    const int error = zmq_errno();
    if (error != EAGAIN) return zmq_error("send", impl_->path, error);
    return Status(StatusCode::kBusy,
                  format("the peer on %s does not take its messages", impl_->path.c_str()));
  }
  return Status::ok();
}

bool Socket::receive(Message* out) {
  void* const socket = native();
  const int parts_wanted = impl_->type == Type::kRouter ? 2 : 1;
  for (int oddity = 0; oddity < kOdditiesPerReceive; ++oddity) {
    int parts = 0;
    bool more = true;
    while (more) {
      zmq::message_t part;
      if (!receive_part(socket, &part)) return false;
      more = part.more();
      ++parts;
      if (parts > parts_wanted) continue;
      std::string& target = parts_wanted == 2 && parts == 1 ? out->peer : out->frame;
      target.assign(static_cast<const char*>(part.data()), part.size());
      if (!more && parts_wanted == 2) out->pid = pid_of_sender(part);
    }
    if (parts_wanted == 1) out->peer.clear();
    if (parts == parts_wanted) return true;
  }
  return false;
}

std::string private_routing_id(const std::string& name) {
  uint64_t bits = 0;
  ssize_t got;
  do {
    got = ::getrandom(&bits, sizeof bits, 0);
  } while (got < 0 && errno == EINTR);
  OPTLEASE_CHECK(got == sizeof bits, "getrandom: %s", std::strerror(errno));
  return name + format("@%016llx", static_cast<unsigned long long>(bits));
}

bool is_listening(const std::string& path) {
  const Result<sockaddr_un> address = address_of(path);
  if (!address) return false;
  const Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int result;
  do {
    result = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address.value()),
                       sizeof(sockaddr_un));
  } while (result != 0 && errno == EINTR);
  // The kernel refuses exactly where no process holds the listener any more; EAGAIN means that its
  // backlog is full.
  return result == 0 || (errno != ECONNREFUSED && errno != ENOENT && errno != ENOTDIR);
}

Status poll_sockets(const PollSet& set, int timeout_ms, std::vector<bool>* ready) {
  std::vector<zmq_pollitem_t> items;
  items.reserve(set.sockets.size() + set.fds.size());
  for (const Socket* socket : set.sockets) items.push_back({socket->native(), -1, ZMQ_POLLIN, 0});
  for (const int fd : set.fds) items.push_back({nullptr, fd, ZMQ_POLLIN, 0});
  ready->assign(items.size(), false);
  // A negative timeout would wait for ever, which no caller here means.
  const int result =
      zmq_poll(items.data(), static_cast<int>(items.size()), timeout_ms < 0 ? 0 : timeout_ms);
  if (result < 0) {
    if (zmq_errno() == EINTR) return Status::ok();
    return Status(StatusCode::kIo,
                  format("poll of %zu sockets and %zu descriptors: %s", set.sockets.size(),
                         set.fds.size(), zmq_strerror(zmq_errno())));
  }
  for (size_t i = 0; i < items.size(); ++i) (*ready)[i] = items[i].revents != 0;
  return Status::ok();
}

}  // namespace optlease
