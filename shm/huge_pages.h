// 2 MiB pages for shared memory, taken one by one as the memory is reserved (MADV_COLLAPSE, Linux
// 6.1), so that no mount option or system setting is needed. Used by reserve.cc, which takes them,
// and by those who map such memory.
//
// What it is for: a process that comes to an arena maps 1 GiB with 512 faults instead of 262144,
// the driver registers it in half the time, and the kernel gives it up at the process's death as
// much sooner. Where they cannot be had, memory is slower to map and the same in all else.
#pragma once

#include <cstdint>
#include <string>

namespace optlease {

inline constexpr uint64_t kHugePageBytes = 2ull << 20;

// What came of it. `refusal`: errno of the last piece that was refused (reserve.h).
struct HugePages {
  uint64_t bytes = 0;
  int refusal = 0;
};

// Fills the 2 MiB pages that lie wholly in [offset, offset + bytes) of the tmpfs file or memfd
// `fd`, zeroed where nothing was there; the rest is left alone. Extends the file as far as it fills
// it. Pages come from the NUMA node that the calling thread prefers. REQUIRES: signals are held
// back (reserve.cc says why).
HugePages fill_with_huge_pages(int fd, uint64_t offset, uint64_t bytes);

// "5368709120 of 5369757696 bytes lie in 2 MiB pages", and why not more.
std::string huge_pages_text(const HugePages& got, uint64_t bytes);

// Address space for a mapping of `bytes`, placed so that the file's huge pages are mapped as such.
// Map over it with MAP_FIXED, then release(); what is not released is given back.
class AddressRange {
 public:
  // at() is null where the mapping is smaller than a huge page or no address space is left: the
  // kernel then chooses.
  explicit AddressRange(uint64_t bytes);
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange();
  void* at() const { return at_; }
  void release() { at_ = nullptr; }

 private:
  void* at_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace optlease
