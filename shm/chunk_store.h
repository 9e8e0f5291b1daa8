// The owner's rights over a job's segments: the host store creates or recovers them, and it alone
// flips commit words, writes step records, blobs and step words. Tools open them read-only through
// ControlView. Not thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shm/contract/geometry.h"
#include "shm/contract/ids.h"
#include "shm/contract/segment_layout.h"
#include "shm/contract/status.h"
#include "shm/control_view.h"
#include "shm/numa_policy.h"
#include "shm/segment.h"

namespace optlease {

struct SegmentNames {
  std::string control;
  std::vector<std::string> arenas;  // by rank
};

class ChunkStore {
 public:
  // Creates control and arena segments (mode 0600, space reserved first; O_EXCL). The control
  // segment turns kReady last; a half-made set is removed again on failure. NoSpace names needed,
  // free and path. AlreadyExists where a name is taken.
  // `placement` (may be null): the NUMA node of each arena; what came of it is written there.
  static Result<ChunkStore> create(const SegmentPlan& plan, const SegmentNames& names,
                                   ArenaPlacement* placement = nullptr);
  // Opens and validates what create made (why_invalid of every header and table, layout hash, job
  // id in every arena); changes nothing but the store epoch, which it raises by one.
  static Result<ChunkStore> recover(const SegmentPlan& plan, const SegmentNames& names);

  const ControlView& view() const { return view_; }
  StoreEpoch epoch() const;

  // Makes `shadow` (one entry a slot of the chunk) the canonical version `step` of the chunk.
  // Fills the idle bank, then stores the commit word with release order. The peer may be dead.
  // REQUIRES: the lease table has accepted it; step > current version.
  void commit(Rank rank, ChunkIndex chunk, Step step, std::span<const SlotEntry> shadow);
  // Moves the version to `step` and leaves the values where they are: a skipped step.
  void commit_unchanged(Rank rank, ChunkIndex chunk, Step step);

  // Before the rank's record of the same step: a record that is there says that this is, too.
  void write_sums_digest(Rank rank, const SumsDigest& sums);
  void write_step_record(Rank rank, const StepRecord& record);
  // The record of `step` is none from here on; nothing where the bank holds another's.
  // REQUIRES: no chunk is committed at `step`.
  void void_step_record(Rank rank, Step step);
  // Blob for `step` (bank step & 1), or carries the blob of step - 1 forward.
  void write_blob(Rank rank, Step step, std::string_view blob);
  void keep_blob(Rank rank, Step step);
  void set_incarnation(Rank rank, Incarnation incarnation);
  void set_step_committed(Step step);
  void count_skipped_step();
  void set_kept_on_purpose(bool kept);

  // Slots of `rank`'s arena that no committed version occupies.
  std::vector<SlotIndex> unreferenced_slots(Rank rank) const;

  // Removes the names, the control segment's last; mappings stay. Called at a clean end.
  static void unlink(const SegmentNames& names);

 private:
  explicit ChunkStore(Segment control);
  Status look();  // view_ over control_, validated
  SegmentHeader* mutable_header() const;
  RankRecord* mutable_rank(Rank rank) const;
  ChunkRecord* mutable_chunk(Rank rank, ChunkIndex chunk) const;
  char* mutable_blob(Rank rank, Step step) const;
  Segment control_;
  ControlView view_;
  std::vector<Segment> arenas_;  // mapped nowhere: kept open so that their space is owned
};

}  // namespace optlease
