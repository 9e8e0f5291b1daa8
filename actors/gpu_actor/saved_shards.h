// A rank's gradient segment on a device whose shards lie in its own memory (docs/SHM_LAYOUT.md,
// "Saved shards"): the summed gradients of one step, saved so that an open step can be finished
// after every process of the node is gone. Used by RankBuffers. It copies and checks; it decides
// neither when to save nor which step is open.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/device_memory/device_memory.h"
#include "shm/contract/ids.h"
#include "shm/contract/segment_layout.h"
#include "shm/segment.h"

namespace optlease {

class SavedShards {
 public:
  struct Owner {
    uint8_t job_id[16] = {};
    Rank rank;
  };

  // Opens the segment or makes it, its space reserved, so that a later save cannot lack it. One of
  // another size was torn or is another job's, and is made again; while a step is open it is
  // Corrupt, and left alone. `shard_bytes`: of each shard, which may be 0.
  static Result<SavedShards> open(const std::string& name, const Owner& owner,
                                  std::vector<uint64_t> shard_bytes, bool step_is_open);

  // Says that this process lives, until it ends; others may live beside it.
  Status say_alive(uint64_t timeout_ms);
  // The same, once nobody else is alive: an actor of an earlier launcher may still be saving, or
  // its copies may still reach its slots. Timeout with words.
  Status wait_until_alone(uint64_t timeout_ms);

  // The step whose shards are there, whole and of this job and rank; kNoStep: none. `why` (may be
  // null) then says what is wrong in words.
  Step step(std::string* why = nullptr) const;

  // What is there is nobody's any more: a later reduction of the same step may have other sums.
  void discard();
  // Saves all shards (device addresses, one a shard) as those of `step`. What was there is void
  // from the first byte on. REQUIRES: no stream writes to them.
  Status save(Step step, std::span<const float* const> shards, const DeviceMemory& memory);
  // The digest of what was saved, as its header says. REQUIRES: step() is not kNoStep.
  uint64_t digest() const { return header()->digest; }
  // Reads all that was saved; Corrupt, with both digests, where it is not what the header says.
  // REQUIRES: step() is not kNoStep.
  Status check_digest() const;
  // Copies shard `index` to the device. REQUIRES: step() is what the caller wants.
  Status restore(size_t index, void* shard, const DeviceMemory& memory) const;

 private:
  SavedShards(Segment segment, const Owner& owner, std::vector<uint64_t> shard_bytes);
  SavedShardsHeader* header() const { return static_cast<SavedShardsHeader*>(segment_.data()); }
  uint64_t digest_of_data() const;
  char* data() const { return static_cast<char*>(segment_.data()) + kSavedShardsOffset; }

  Segment segment_;
  Owner owner_;
  std::vector<uint64_t> shard_bytes_;
  std::vector<uint64_t> offsets_;  // within the data
};

}  // namespace optlease
