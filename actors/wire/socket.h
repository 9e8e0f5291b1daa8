// ZeroMQ sockets over ipc, as this project uses them: non-blocking, bounded, binary-safe. The only
// include of cppzmq is in socket.cc. Not thread-safe: a socket belongs to the thread that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shm/contract/status.h"

namespace optlease {

// One process-wide context; sockets keep it alive. Closing never waits for a dead peer (linger is
// bounded by SocketOptions::linger_ms).
class SocketContext {
 public:
  // Starts the library's threads. Throws std::system_error where the machine or a limit has no
  // room for them (the library itself would abort).
  SocketContext();
  ~SocketContext();
  SocketContext(const SocketContext&) = delete;
  SocketContext& operator=(const SocketContext&) = delete;
  void* native() const;

 private:
  friend class Socket;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct SocketOptions {
  std::string routing_id;           // DEALER only; may be empty
  int64_t message_bytes_max = 0;    // 0: kMessageBytesMax; a larger frame drops the peer
  int send_high_water_mark = 1024;  // messages a peer
  int receive_high_water_mark = 1024;
  int linger_ms = 200;
  // bind() alone: the path is the caller's whoever still listens there, for that one is known to be
  // dead or dismissed (its listener closes late where a driver tears it down). Its file is
  // replaced.
  bool take_over_path = false;
};

struct Message {
  std::string peer;  // ROUTER: routing id of the sender or receiver; else empty
  std::string frame;
  // ROUTER, of a received message: the process that made the connection, as the kernel told it; 0
  // where that is not known.
  int pid = 0;
};

// "<name>@<16 hex digits>", another one with each call. A ROUTER gives a routing id to whoever
// comes with it last: nobody else comes with this one, by accident or after a look at the protocol.
std::string private_routing_id(const std::string& name);

class Socket {
 public:
  enum class Type { kRouter, kDealer, kPub, kSub };

  // Binds `path` as ipc; refuses (AlreadyExists) a path on which a live process listens, replaces a
  // stale socket file of a dead one. Sets the file's mode to 0600, and takes no peer that runs as
  // another user.
  static Result<Socket> bind(SocketContext& context, Type type, const std::string& path,
                             const SocketOptions& options = {});
  // Connects now or later: the peer may not be up yet. SUB subscribes to everything.
  static Result<Socket> connect(SocketContext& context, Type type, const std::string& path,
                                const SocketOptions& options = {});
  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;
  ~Socket();

  // Never blocks. Busy: the high-water mark is reached. NotFound: a ROUTER knows no such peer.
  Status send(const Message& message);
  // Never blocks. False: nothing there. Multi-part oddities from strangers are swallowed whole.
  bool receive(Message* out);

  // For poll_sockets; also usable with poll(2) under ZeroMQ's edge-triggered rules.
  void* native() const;

 private:
  struct Impl;
  explicit Socket(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Waits until a socket or a plain descriptor is readable, at most `timeout_ms`; EINTR ends the wait
// early. ready[i] answers sockets first, then fds.
struct PollSet {
  std::vector<Socket*> sockets;
  std::vector<int> fds;
};
Status poll_sockets(const PollSet& set, int timeout_ms, std::vector<bool>* ready);

// Whether a live process listens on the Unix socket at `path`. It sees one connection that closes
// at once. True also where that cannot be told (no permission): never taken for a stale file.
bool is_listening(const std::string& path);

}  // namespace optlease
