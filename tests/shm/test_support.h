// What the shm tests share: small plans, names that no other run uses, forked helpers that die, and
// a fixture that leaves nothing in /dev/shm.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shm/chunk_store.h"
#include "shm/contract/geometry.h"
#include "shm/element_reader.h"
#include "shm/leftovers.h"

namespace optlease::test {

// A space of `tensors` (elements each) over ranks [0, members).
SpaceSpec make_space(const std::string& name, uint32_t members,
                     const std::vector<uint64_t>& tensors);
// Laid out, or the test fails.
SegmentPlan make_plan(const std::string& job, uint32_t world, uint64_t chunk_bytes,
                      const std::vector<SpaceSpec>& spaces);
// Two ranks, one space of 1000 elements in two tensors, several chunks a rank.
SegmentPlan small_plan(const std::string& job);

// "/<prefix><job>.<suffix>" as leftovers.h has it, with a prefix of this test process.
class Names {
 public:
  Names();
  ~Names();  // unlinks everything with the prefix
  std::string segment(const std::string& job, const std::string& suffix) const;
  SegmentNames all(const std::string& job, uint32_t world) const;
  const std::string& prefix() const { return prefix_; }
  const std::string& run_root() const { return run_root_; }  // a directory of mode 0700
  LeftoverPlaces places() const { return {prefix_, run_root_}; }
  std::vector<std::string> left_in_shm() const;

 private:
  std::string prefix_;
  std::string run_root_;
};

// All arenas of a job, read-only, by rank; or the test fails.
std::vector<Segment> open_arenas(const SegmentNames& names, const ControlView& view);

// How a forked child ended: exit code, or -signal.
int run_in_child(const std::function<int()>& body);
// Starts a child; finish() waits for it.
pid_t start_child(const std::function<int()>& body);
int finish(pid_t child);

// A rule of sums like kernels/checksum.h's, so that the test needs no kernels.
uint64_t sum_words(const void* words, uint64_t count, uint64_t first_word);

// The value of an element that tests write: depends on space, array, element and version only.
float value_of(uint32_t space, uint32_t array, uint64_t element, Step version);

// Commits version `step` of one chunk of `store`, with value_of in every element, into the lowest
// slot that nothing occupies.
void write_version(ChunkStore* store, const SegmentNames& names, Rank rank, ChunkIndex chunk,
                   Step step);
// All chunks of all ranks, then the step word.
void write_step(ChunkStore* store, const SegmentNames& names, Step step);

StepRecord make_record(Step step);

}  // namespace optlease::test
