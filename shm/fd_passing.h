// A fixed number of bytes and at most one fd over a Unix stream socket (SCM_RIGHTS), and who is at
// the other end. Used by the vault's two sides; it knows nothing of their messages.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "shm/contract/status.h"
#include "shm/shared_buffer.h"

namespace optlease {

enum class Progress { kMore, kWouldBlock, kClosed, kFailed };

// Collects `bytes` bytes piece by piece from a non-blocking socket.
class FdReceiver {
 public:
  // Reads what is there into `into` (REQUIRES: `bytes` in all). kMore: something came; complete()
  // says whether it was the last. kFailed: more than one fd came, or the socket failed.
  Progress receive(int socket, void* into, size_t bytes);
  bool complete(size_t bytes) const { return got_ == bytes; }
  size_t got() const { return got_; }
  UniqueFd take_fd() { return std::move(fd_); }
  void reset();

 private:
  size_t got_ = 0;
  UniqueFd fd_;
};

// Sends up to `bytes` bytes from `from`, with `fd` (-1: none) on the first; never raises SIGPIPE.
// Returns bytes sent, or -1 with errno set.
ssize_t send_with_fd(int socket, const void* from, size_t bytes, int fd);

// Permission where the process at the other end (or, for a client, the one that listens) runs under
// another uid than this one.
Status check_peer(int socket);

}  // namespace optlease
