#include "shm/shared_buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/eintr.h"
#include "shm/reserve.h"

namespace optlease {

// close() is not repeated after EINTR: on Linux the descriptor is gone, and another thread may
// already own its number.
UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

MappedBuffer::MappedBuffer(MappedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedBuffer& MappedBuffer::operator=(MappedBuffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, bytes_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

MappedBuffer::~MappedBuffer() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<MappedBuffer> MappedBuffer::map(int fd, uint64_t bytes) {
  MappedBuffer buffer;
  if (bytes == 0) return buffer;
  struct stat info {};
  if (retry_eintr([&] { return ::fstat(fd, &info); }) != 0) {
    return Status{StatusCode::kIo, format("fstat of a shared buffer: %s", ::strerror(errno))};
  }
  if (info.st_size < 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return Status{
        StatusCode::kInvalidArgument,
        format("a shared buffer should have %llu bytes and has %lld",
               static_cast<unsigned long long>(bytes), static_cast<long long>(info.st_size))};
  }
  AddressRange range(bytes);
  void* data = ::mmap(range.at(), bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | (range.at() != nullptr ? MAP_FIXED : 0), fd, 0);
  if (data == MAP_FAILED) {
    return Status{errno == ENOMEM ? StatusCode::kNoSpace : StatusCode::kIo,
                  format("mmap of a shared buffer of %llu bytes: %s",
                         static_cast<unsigned long long>(bytes), ::strerror(errno))};
  }
  range.release();
  buffer.data_ = data;
  buffer.bytes_ = bytes;
  return buffer;
}

Result<UniqueFd> create_memfd(const std::string& name, uint64_t bytes) {
  if (bytes == 0) {
    return Status{StatusCode::kInvalidArgument, "shared buffer " + name + " would have no bytes"};
  }
  // The kernel takes names of up to 249 bytes; they are for /proc only.
  const std::string shown = name.substr(0, 200);
  UniqueFd fd(::memfd_create(shown.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    return Status{StatusCode::kIo,
                  format("memfd_create(%s): %s", shown.c_str(), ::strerror(errno))};
  }
  HugePages pages;
  OPTLEASE_TRY(reserve_space(fd.get(), bytes, "shared buffer " + name, &pages));
  // Nobody who maps it can then be made to fault by a peer that resizes it.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status{StatusCode::kIo,
                  format("F_ADD_SEALS on shared buffer %s: %s", name.c_str(), ::strerror(errno))};
  }
  return fd;
}

std::string vault_key(const char* kind, uint32_t rank, const std::string& space) {
  return format("%s.%u.%s", kind, rank, space.c_str());
}

}  // namespace optlease
