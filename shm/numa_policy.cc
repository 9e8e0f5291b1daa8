#include "shm/numa_policy.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr unsigned long kMaskBits = 1024;  // of any kernel's node mask
constexpr unsigned long kWordBits = 8 * sizeof(unsigned long);

using Mask = std::vector<unsigned long>;
Mask empty_mask() { return Mask(kMaskBits / kWordBits, 0); }

Status refused(const char* call, int error) {
  const std::string text = format("%s: %s", call, ::strerror(error));
  if (error == EPERM) return {StatusCode::kPermission, text + " (a container's filter?)"};
  if (error == ENOSYS) return {StatusCode::kUnsupported, text + " (a kernel without NUMA)"};
  return {StatusCode::kIo, text};
}

}  // namespace

Result<NumaPreference> NumaPreference::of(uint32_t node) {
  if (node > kNumaNodeMax) {
    return Status{StatusCode::kInvalidArgument,
                  format("NUMA node %u: the largest number is %u", node, kNumaNodeMax)};
  }
  int mode = MPOL_DEFAULT;
  Mask before = empty_mask();
  if (::syscall(SYS_get_mempolicy, &mode, before.data(), kMaskBits, nullptr, 0ul) != 0) {
    return refused("get_mempolicy", errno);
  }
  Mask wanted = empty_mask();
  wanted[node / kWordBits] |= 1ul << (node % kWordBits);
  if (::syscall(SYS_set_mempolicy, MPOL_PREFERRED, wanted.data(), kMaskBits) != 0) {
    if (errno != EINVAL) return refused("set_mempolicy", errno);
    return Status{StatusCode::kInvalidArgument,
                  format("NUMA node %u is not there, or this process may not use it", node)};
  }
  return NumaPreference(mode, std::move(before));
}

NumaPreference::NumaPreference(NumaPreference&& other) noexcept
    : mode_(other.mode_),
      mask_(std::move(other.mask_)),
      owner_(std::exchange(other.owner_, false)) {}

NumaPreference::~NumaPreference() {
  if (!owner_) return;
  // It was this thread's policy a moment ago; a node that went since then leaves the default.
  if (::syscall(SYS_set_mempolicy, mode_, mask_.data(), kMaskBits) != 0) {
    (void)::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0ul);
  }
}

Result<NumaSample> sample_numa_pages(const void* base, uint64_t bytes, uint32_t node) {
  const uint64_t pages = bytes / kPageBytes;
  const uint64_t count = std::min<uint64_t>(pages, kNumaSampleMax);
  std::vector<void*> at;
  for (uint64_t i = 0; i < count; ++i) {
    const auto* page = static_cast<const volatile char*>(base) + pages * i / count * kPageBytes;
    (void)*page;  // mapped here only once it is read
    at.push_back(const_cast<char*>(page));
  }
  std::vector<int> nodes(count, -1);
  // Without target nodes it moves nothing and tells where each page is.
  if (count > 0 && ::syscall(SYS_move_pages, 0, count, at.data(), nullptr, nodes.data(), 0) != 0) {
    return refused("move_pages", errno);
  }
  NumaSample sample;
  for (const int found : nodes) {
    if (found < 0) continue;
    ++sample.pages;
    if (static_cast<uint32_t>(found) == node) continue;
    ++sample.elsewhere;
    sample.other = found;
  }
  if (sample.pages > 0) return sample;
  return Status{StatusCode::kIo,
                format("the kernel tells the node of none of %zu pages", nodes.size())};
}

std::string numa_text(const NumaSample& sample, uint32_t node) {
  if (sample.elsewhere == 0) {
    return format("all %u sampled pages are on NUMA node %u", sample.pages, node);
  }
  return format(
      "%u of %u sampled pages are not on NUMA node %u (one is on node %lld): that node had too "
      "little free memory, and copies from there cross the sockets; free memory on it, or give "
      "other nodes with ranks.numa, before the next start",
      sample.elsewhere, sample.pages, node, static_cast<long long>(sample.other));
}

NumaFinding numa_finding(const Result<NumaSample>& sample, uint32_t node) {
  if (!sample.is_ok()) return {{}, "where it lies is not known: " + sample.status().message()};
  return {sample.value(), numa_text(sample.value(), node)};
}

}  // namespace optlease
