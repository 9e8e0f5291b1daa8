// Memory that a trainer and an actor both map and that outlives either: an fd, a size, a device.
// CPU device: a memfd (sealed against shrinking) or, for the gradient shards, a named segment, so
// that a step whose commits have begun can be finished even when every process of the node is gone.
// Also the passing of such fds over a Unix socket, peers checked with SO_PEERCRED.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "shm/contract/status.h"

namespace optlease {

// An owned file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A mapping of a shared buffer.
class MappedBuffer {
 public:
  // Maps `bytes` of `fd` read-write; refuses an fd that is shorter (numbers in the error).
  // bytes == 0 gives data() == nullptr and no mapping.
  static Result<MappedBuffer> map(int fd, uint64_t bytes);
  MappedBuffer() = default;
  MappedBuffer(MappedBuffer&&) noexcept;
  MappedBuffer& operator=(MappedBuffer&&) noexcept;
  ~MappedBuffer();
  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// A memfd of `bytes` (> 0), close-on-exec, reserved (posix_fallocate), sealed against resizing.
Result<UniqueFd> create_memfd(const std::string& name, uint64_t bytes);

// The vault: the launcher keeps a duplicate of every shared buffer's fd under a key such as
// "param.0.dense" and answers on a Unix socket. All calls have deadlines; peers of another uid are
// refused on both sides.
struct VaultEntry {
  std::string key;
  uint64_t bytes = 0;
  UniqueFd fd;
};
// Client side. put: AlreadyExists where the key is taken. get: NotFound where it is not there yet.
Status vault_put(const std::string& socket_path, const std::string& key, uint64_t bytes, int fd,
                 uint64_t timeout_ms);
Result<VaultEntry> vault_get(const std::string& socket_path, const std::string& key,
                             uint64_t timeout_ms);

// The key of a rank's buffer: kind is "param", "grad" or another that its user names.
std::string vault_key(const char* kind, uint32_t rank, const std::string& space);

}  // namespace optlease
