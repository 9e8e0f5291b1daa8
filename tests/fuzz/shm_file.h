// One file of /dev/shm that a fuzzer fills anew for every input, mapped here beside whoever opens
// it by its name. It stands until unlink(); run.sh removes what a fuzzer that was ended leaves.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

namespace optlease::fuzz {

class ShmFile {
 public:
  ShmFile(const std::string& suffix, uint64_t bytes_max)
      : name_(segment_stem() + suffix), bytes_max_(bytes_max) {
    fd_ = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    OPTLEASE_CHECK(fd_ >= 0, "shm_open of %s", name_.c_str());
    void* at = ::mmap(nullptr, bytes_max, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    OPTLEASE_CHECK(at != MAP_FAILED, "mmap of %s", name_.c_str());
    at_ = static_cast<char*>(at);
  }
  // `front`, then zeros up to `bytes`, which are at least one.
  void set(std::string_view front, uint64_t bytes) {
    bytes = std::clamp<uint64_t>(bytes, 1, bytes_max_);
    OPTLEASE_CHECK(::ftruncate(fd_, static_cast<off_t>(bytes)) == 0, "ftruncate");
    const size_t copied = std::min<size_t>(front.size(), bytes);
    std::memcpy(at_, front.data(), copied);
    const size_t old = std::min<size_t>(front_.size(), bytes);
    if (old > copied) std::memset(at_ + copied, 0, old - copied);
    front_ = front.substr(0, copied);
  }
  bool is_unchanged() const { return std::memcmp(at_, front_.data(), front_.size()) == 0; }
  char* data() const { return at_; }
  const std::string& name() const { return name_; }
  void unlink() const { ::shm_unlink(name_.c_str()); }

 private:
  std::string name_;
  uint64_t bytes_max_;
  int fd_ = -1;
  char* at_ = nullptr;
  std::string front_;
};

}  // namespace optlease::fuzz
