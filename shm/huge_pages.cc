#include "shm/huge_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

#include "shm/contract/status.h"

namespace optlease {
namespace {

#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // Linux 6.1; older headers lack the name, older kernels say EINVAL
#endif

uint64_t align_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// Other sizes exist (arm64 with 64 KiB pages: 512 MiB); for those nothing is tried.
bool kernel_has_them() {
  static const bool has = [] {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    uint64_t bytes = 0;
    return (file >> bytes) && bytes == kHugePageBytes;
  }();
  return has;
}

int allocate(int fd, uint64_t offset, uint64_t bytes) {
  int error = EINTR;
  while (error == EINTR) {
    error = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  return error;
}

// EAGAIN: a page was in somebody's hands for a moment.
int collapse(void* base, uint64_t bytes) {
  int tries = 0;
  while (::madvise(base, bytes, kCollapse) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN || ++tries == 3) return errno;
  }
  return 0;
}

}  // namespace

HugePages fill_with_huge_pages(int fd, uint64_t offset, uint64_t bytes) {
  const uint64_t first = align_up(offset, kHugePageBytes);
  const uint64_t end = (offset + bytes) / kHugePageBytes * kHugePageBytes;
  if (first >= end) return {};
  if (!kernel_has_them()) return {.refusal = EOPNOTSUPP};
  // One small page in each place: the kernel takes the large one from the node where it lies, and
  // knows nothing of the thread's preference otherwise. All of them would be allocated twice.
  for (uint64_t at = first; at < end; at += kHugePageBytes) {
    if (const int error = allocate(fd, at, 1); error != 0) return {.refusal = error};
  }
  // The file must reach the end of what is collapsed.
  if (const int error = allocate(fd, end - 1, 1); error != 0) return {.refusal = error};
  const uint64_t length = end - first;
  const AddressRange range(length);
  if (range.at() == nullptr) return {.refusal = ENOMEM};
  if (::mmap(range.at(), length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             static_cast<off_t>(first)) == MAP_FAILED) {
    return {.refusal = errno};
  }
  const int refusal = collapse(range.at(), length);
  return {.bytes = refusal == 0 ? length : 0, .refusal = refusal};
}

std::string huge_pages_text(const HugePages& got, uint64_t bytes) {
  std::string text =
      format("%llu of %llu bytes lie in 2 MiB pages", static_cast<unsigned long long>(got.bytes),
             static_cast<unsigned long long>(bytes));
  if (got.refusal == 0) return text;
  return text + format(" (the kernel gave no more: %s); the rest takes longer to map and to pin",
                       ::strerror(got.refusal));
}

AddressRange::AddressRange(uint64_t bytes) {
  if (bytes < kHugePageBytes) return;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  bytes_ = align_up(bytes, page);
  void* all = ::mmap(nullptr, bytes_ + kHugePageBytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return;
  const auto begin = reinterpret_cast<uint64_t>(all);
  const uint64_t aligned = align_up(begin, kHugePageBytes);
  if (aligned != begin) ::munmap(all, aligned - begin);
  at_ = reinterpret_cast<void*>(aligned);
  ::munmap(reinterpret_cast<void*>(aligned + bytes_), begin + kHugePageBytes - aligned);
}

AddressRange::~AddressRange() {
  if (at_ != nullptr) ::munmap(at_, bytes_);
}

}  // namespace optlease
