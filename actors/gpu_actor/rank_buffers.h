// The buffers a rank's actor shares: parameters and gradients with its trainer, and the summed
// gradient shards with its next incarnation. The first incarnation makes them, later ones find them
// as they were left. On the cpu device parameters and gradients are memfds whose duplicates the
// launcher's vault keeps, and the shards a named segment: a step whose records are durable can be
// finished from it even after every process of the node is gone. On the cuda device all three are
// HBM that the vault keeps, and the named segment is where the shards are saved when they must
// outlive the vault (saved_shards.h). A state with a resident part has that here, too
// (resident_arena.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/device_memory/device_memory.h"
#include "actors/gpu_actor/resident_arena.h"
#include "actors/gpu_actor/saved_shards.h"
#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "shm/contract/segment_layout.h"
#include "shm/segment.h"
#include "shm/sums_hasher.h"

namespace optlease {

// One space in which the rank is a member. The pointers are the device's (host memory on the cpu
// device).
struct RankSpace {
  uint32_t space = 0;   // index into the plan
  uint32_t member = 0;  // this rank's
  ElementRange shard;
  MappedDeviceBuffer params;             // whole space in param_dtype
  MappedDeviceBuffer grads;              // whole space in grad_dtype
  float* grad_shard = nullptr;           // FP32, the sum over the members; null for an empty shard
  MappedDeviceBuffer grad_shard_buffer;  // where the shard is a vault buffer
};

// Where the summed shards lie: in the named segment itself, or in device memory that the vault
// keeps, with the segment to save them in.
enum class ShardHome { kSegment, kVault };

struct RankBuffersSetup {
  Rank rank;
  std::string vault_socket;
  std::string gradient_segment;
  uint8_t job_id[16] = {};
  // The resident part of the state; none where all of it is the host's.
  std::optional<ResidentSegment::Shape> resident;
  std::string resident_segment;
  bool has_state = false;  // some chunk is committed
  // kNoStep: none is open. Otherwise the shards' bytes are needed: where they are missing or torn,
  // open() is Corrupt.
  Step open_step = kNoStep;
  uint64_t timeout_ms = 0;
  ShardHome home = ShardHome::kSegment;
};
// kVault for every device but the CPU, whose memory is the host's.
ShardHome shard_home_of(DeviceKind kind);

// A buffer of the vault that is to be found or made, and where its mapping goes.
struct WantedBuffer {
  std::string key;
  std::string words;  // for the table of what a device lacks
  uint64_t bytes = 0;
  MappedDeviceBuffer* into = nullptr;
  // What new memory must hold before anybody else can find it; may be empty.
  std::function<Status(void*)> prepare;
};

// How far a reading of the shards has come.
struct ShardsReading {
  SumsHasher hasher;
  size_t space = 0;  // of spaces(), the one that is being read
  uint64_t at = 0;   // bytes of its shard that are read
  std::vector<char> piece;
};
struct SumsCheck {
  explicit SumsCheck(const SumsDigest& digest) : recorded(digest) {}
  SumsDigest recorded;
  ShardsReading reading;
};

class RankBuffers {
 public:
  // NoSpace, with a table of what is needed and what there is, where the device has not the room.
  static Result<RankBuffers> open(const JobPlan& plan, const RankBuffersSetup& setup,
                                  DeviceMemory memory);
  std::vector<RankSpace>& spaces() { return spaces_; }
  const DeviceMemory& memory() const { return memory_; }

  // Whether the shards die with the vault unless they are saved.
  bool can_save_shards() const { return saved_.has_value(); }
  // Saves them as those of `step`, for a job whose processes all end while it is open. Nothing to
  // do where they lie in the segment. REQUIRES: no stream writes to them.
  Status save_shards(Step step);

  // The sums of `step` are complete: saves them where the job is `durable`, and returns what they
  // hash to. Of a device's memory that is known where they are saved, and not known otherwise: to
  // read them back would cost a copy a step. REQUIRES: no stream writes to them.
  Result<SumsDigest> seal_sums(Step step, bool durable);
  // Reads the shards that an earlier incarnation left; Corrupt, with both digests, where they are
  // not what `recorded` says. A digest that is not known is no complaint.
  Status check_sums(const SumsDigest& recorded) const;
  // The same, one piece a call; true once it is over. REQUIRES: nothing writes to the shards from
  // the first call to the last.
  Result<bool> check_sums_some(SumsCheck* check) const;
  // Null where all of the state is the host's.
  ResidentArena* resident() { return resident_ ? &*resident_ : nullptr; }

 private:
  explicit RankBuffers(DeviceMemory memory) : memory_(std::move(memory)) {}
  void list_spaces(const JobPlan& plan, Rank rank);
  std::vector<WantedBuffer> trainer_buffers(const JobPlan& plan, const RankBuffersSetup& setup);
  Status open_segment(const RankBuffersSetup& setup);
  Status find_shards(const JobPlan& plan, const RankBuffersSetup& setup,
                     std::vector<WantedBuffer>* missing);
  Status find_resident(const RankBuffersSetup& setup, std::vector<WantedBuffer>* missing);
  std::vector<uint64_t> shard_bytes() const;
  Result<uint64_t> digest_of_shards() const;
  Result<bool> read_some(ShardsReading* reading) const;

  DeviceMemory memory_;
  Rank rank_;
  std::vector<RankSpace> spaces_;
  std::optional<Segment> segment_;    // kSegment
  std::optional<SavedShards> saved_;  // kVault
  std::optional<ResidentArena> resident_;
};

}  // namespace optlease
