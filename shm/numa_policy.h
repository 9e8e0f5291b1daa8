// On which NUMA node memory comes to lie, asked of the kernel directly (no libnuma). Used by
// ChunkStore, whose thread is the first to touch an arena's pages, and by the launcher, which looks
// where they lie at the end. It chooses no node: the plan does.
//
// A preference, not a binding: where the node is full the kernel takes another one, instead of
// ending processes for memory that the machine has. What came of it is looked at and said.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/contract/status.h"

namespace optlease {

inline constexpr uint32_t kNumaNodeMax = 1022;  // the largest node number that this can name

// While it lives, pages that this thread is the first to touch, by posix_fallocate too, are taken
// from `node` where that has room. Ends in the thread that made it, with the policy of before.
class NumaPreference {
 public:
  // InvalidArgument: no such node here. Permission or Unsupported: the kernel, or a container's
  // filter, refuses.
  static Result<NumaPreference> of(uint32_t node);
  NumaPreference(NumaPreference&& other) noexcept;
  NumaPreference& operator=(NumaPreference&&) = delete;
  ~NumaPreference();

 private:
  NumaPreference(int mode, std::vector<unsigned long> mask)
      : mode_(mode), mask_(std::move(mask)), owner_(true) {}
  int mode_;
  std::vector<unsigned long> mask_;  // the policy of before
  bool owner_;
};

// Where some pages of a mapping lie, spread over it evenly.
struct NumaSample {
  uint32_t pages = 0;      // whose node the kernel told
  uint32_t elsewhere = 0;  // of them, on another node than the wanted one
  int64_t other = -1;      // one of those nodes
};
inline constexpr uint32_t kNumaSampleMax = 64;

// REQUIRES: [base, +bytes) is readable and its space is reserved: each page looked at is read.
Result<NumaSample> sample_numa_pages(const void* base, uint64_t bytes, uint32_t node);
// "all 64 sampled pages are on NUMA node 1", or how many are not, and what that costs.
std::string numa_text(const NumaSample& sample, uint32_t node);

// What a sample of memory that was meant for `node` comes to: its numbers (pages is 0 where it
// failed) and a sentence, for logs and reports.
struct NumaFinding {
  NumaSample sample;
  std::string text;
  bool as_wanted() const { return sample.pages > 0 && sample.elsewhere == 0; }
};
NumaFinding numa_finding(const Result<NumaSample>& sample, uint32_t node);

// Where arenas are to lie, and what came of it: in and out of ChunkStore::create.
struct ArenaPlacement {
  std::vector<int64_t> nodes;         // by rank; -1 or missing: wherever the kernel likes
  std::vector<std::string> done;      // sentences on what is as it should be
  std::vector<std::string> warnings;  // one a rank that is not, or of which it is not known
};

}  // namespace optlease
