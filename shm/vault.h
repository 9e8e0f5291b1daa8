// The vault's server side: duplicates of shared buffers' fds under keys, so that the memory
// outlives the processes that use it. Run by the launcher from its poll loop. It waits for nothing,
// starts no thread and maps none of the memory. Not thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "shm/contract/status.h"
#include "shm/contract/vault.h"
#include "shm/fd_passing.h"
#include "shm/shared_buffer.h"

namespace optlease {

struct VaultHolding {
  std::string key;
  uint64_t bytes = 0;
};

class Vault {
 public:
  // Listens at `path` (<= 107 bytes, mode 0600). A stale socket of this user is replaced: the
  // caller owns the job's lock, so nobody else serves there. Anything else at the path is
  // AlreadyExists.
  static Result<Vault> listen(const std::string& path);
  Vault(Vault&&) noexcept = default;
  Vault& operator=(Vault&&) = delete;
  ~Vault();  // removes the socket, where it is still ours

  // Readable when serve() has something to do but for deadlines: call it about once a second too.
  int fd() const { return epoll_.get(); }
  // Accepts, reads and answers what is there; never blocks. Drops peers that are malformed, of
  // another uid, or slower than kVaultPeerTimeoutMs.
  void serve(uint64_t now_ms);

  std::vector<VaultHolding> holdings() const;  // keys ascending
  uint64_t held_bytes() const;
  uint32_t peer_count() const { return static_cast<uint32_t>(peers_.size()); }
  uint64_t refusals() const { return refusals_; }

 private:
  struct Held {
    uint64_t bytes = 0;
    UniqueFd fd;
  };
  struct Peer {
    UniqueFd socket;
    FdReceiver receiver;
    VaultMessage request{};
    uint64_t deadline_ms = 0;
  };
  enum class Verdict { kKeep, kDrop };

  Vault(std::string path, UniqueFd listener, UniqueFd epoll);
  // False while no more can be accepted: every place is taken, or this process has no descriptors.
  bool accept_peers(uint64_t now_ms);
  void watch_listener(bool watch);
  Verdict hear(Peer* peer, uint64_t now_ms);
  Verdict answer(Peer* peer);
  StatusCode put(Peer* peer);

  std::string path_;
  UniqueFd listener_;
  UniqueFd epoll_;
  bool listening_ = false;  // the listener is in the epoll set
  uint64_t inode_ = 0;
  uint64_t refusals_ = 0;
  std::map<std::string, Held> held_;
  std::list<Peer> peers_;
};

}  // namespace optlease
