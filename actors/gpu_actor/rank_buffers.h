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
#include "actors/gpu_actor/shard_sums.h"
#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "shm/contract/segment_layout.h"
#include "shm/segment.h"

namespace optlease {

// One space in which the rank is a member. The pointers are the device's (host memory on the cpu
// device).
struct RankSpace {
  uint32_t space = 0;   // index into the plan
  uint32_t member = 0;  // this rank's
  ElementRange shard;
  uint64_t first_word = 0;               // the shard's first among the words of all
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
  // The same; Corrupt where the copy is not what `sums`, made of them before, says.
  Status save_shards(const SumsDigest& sums);

  // Where each chunk's summed gradients lie.
  std::vector<GradRange> chunk_gradients(const ArenaSpec& arena) const;
  // Where the shards lie, in words.
  std::string place_of_shards() const;
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

  DeviceMemory memory_;
  Rank rank_;
  std::vector<RankSpace> spaces_;
  std::optional<Segment> segment_;    // kSegment
  std::optional<SavedShards> saved_;  // kVault
  std::optional<ResidentArena> resident_;
};

}  // namespace optlease
