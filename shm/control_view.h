// A validated, read-only look at a control segment: what actors, tools and the store itself read.
// All pointers live as long as the mapping. Commit words may flip at any time: read one with
// commit_word() (acquire) and use its bank's entries.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "shm/contract/geometry.h"
#include "shm/contract/segment_layout.h"
#include "shm/contract/status.h"

namespace optlease {

class ControlView {
 public:
  // Validates header and every table (ranges, indices, names zero-terminated, chunks covering each
  // shard exactly) so that no later access can leave the mapping.
  static Result<ControlView> over(const void* data, uint64_t bytes);

  const SegmentHeader& header() const { return *header_; }
  std::span<const SpaceRecord> spaces() const;
  std::span<const uint32_t> members(uint32_t space) const;
  std::span<const TensorRecord> tensors(uint32_t space) const;
  const RankRecord& rank(Rank rank) const;
  std::span<const ChunkRecord> chunks(Rank rank) const;
  uint64_t commit_word(Rank rank, ChunkIndex chunk) const;  // acquire
  Step version(Rank rank, ChunkIndex chunk) const;
  // Of the committed bank; they mean nothing where version() is kNoStep.
  std::span<const SlotEntry> entries(Rank rank, ChunkIndex chunk) const;
  std::span<const SlotEntry> entries(Rank rank, ChunkIndex chunk, uint32_t bank) const;
  // A copy of the record of `step`; none where the bank holds another or a torn one. (A copy,
  // because the store writes the same bank again two steps later.)
  std::optional<StepRecord> step_record(Rank rank, Step step) const;
  // A copy of what the rank's summed gradients of `step` hash to; none as above. Who finds a record
  // finds this too.
  std::optional<SumsDigest> sums_digest(Rank rank, Step step) const;
  // A copy of the blob committed with `step`; none where there is no whole one.
  std::optional<std::string> blob(Rank rank, Step step) const;
  Step step_committed() const;
  // True when every rank has a valid record for step_committed() + 1: that step must be finished.
  bool step_is_open() const;
  // How every chunk's bytes are split between arena and resident arena.
  StateSplit split() const;
  // Rebuilds the plan that made the segment.
  SegmentPlan plan() const;

 private:
  const char* base_ = nullptr;
  const SegmentHeader* header_ = nullptr;
};

}  // namespace optlease
