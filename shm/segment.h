// One named POSIX shared memory object, mapped. segment.cc is the only file that includes
// Boost.Interprocess; it adds what that lacks: mode 0600, space reserved with posix_fallocate
// before the mapping (so a full /dev/shm is NoSpace with numbers, never SIGBUS), owner and mode
// checked on open, symlinks refused, EINTR handled.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shm/contract/status.h"
#include "shm/huge_pages.h"

namespace optlease {

class Segment {
 public:
  enum class Access { kReadOnly, kReadWrite };

  // O_CREAT | O_EXCL; zero-filled. Names start with '/'. bytes > 0.
  static Result<Segment> create(const std::string& name, uint64_t bytes);
  // Refuses another owner than this user, group or other permissions, a zero length.
  static Result<Segment> open(const std::string& name, Access access);
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();

  void* data() const;  // null after unmap()
  uint64_t bytes() const;
  HugePages huge_pages() const;  // what its creation got; nothing is known of an opened one
  // Ends the mapping; the descriptor, and with it the space, stays ours.
  void unmap();
  int fd() const;  // owned by the segment; -1 never
  const std::string& name() const;
  // False when the name was removed or replaced under us (fault case 8).
  bool name_still_ours() const;

  // A flock on the open file, which the kernel lets go of when this process is gone. Tells that the
  // segment is served to those who cannot see the job's lock. Busy where another has it, if only
  // for a probe: try again later.
  Status mark_in_use();
  // Changes nothing; false also where there is no such segment of this user.
  static bool in_use(const std::string& name);

  static bool exists(const std::string& name);
  static void unlink(const std::string& name);          // absent is fine
  static std::string path_of(const std::string& name);  // "/dev/shm/..."
  // Bytes free on the file system that holds shared memory.
  static Result<uint64_t> free_bytes();

 private:
  struct Impl;
  explicit Segment(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace optlease
