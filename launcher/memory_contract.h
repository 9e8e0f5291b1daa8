// What a job needs of the machine (shared memory, memory, descriptors, locked bytes), computed from
// its plan and compared with what there is before anything starts. Pure but for
// read_machine_facts(). Used by `optlease plan`, `optlease run` and `optlease doctor`; it reserves
// nothing: the host store does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "shm/contract/status.h"

namespace optlease {

// Bytes that one rank needs.
struct RankNeeds {
  uint64_t state_bytes = 0;     // elements x arrays x 4: what must not be lost
  uint64_t arena_bytes = 0;     // the arena segment, shadow and padding included
  uint64_t shadow_bytes = 0;    // of the arena: slots for versions that are not committed yet
  uint64_t resident_bytes = 0;  // named segment: the part of the state that stays on the device,
                                // or, on the cuda device, where it is saved
  uint64_t gradient_shard_bytes = 0;  // named segment: the reduced gradients of the rank's shards,
                                      // or, on the cuda device, where they are saved
  uint64_t parameter_bytes = 0;       // shared buffers: whole spaces
  uint64_t gradient_bytes = 0;
  uint64_t staging_bytes = 0;  // of the actor
  // 0 on the cpu device, where the three above and the shards are host memory.
  uint64_t pinned_bytes = 0;
  uint64_t device_shard_bytes = 0;     // HBM: the shards themselves
  uint64_t device_bytes = 0;           // HBM: all of these, resident slots, staging, as allocated
  uint64_t device_headroom_bytes = 0;  // HBM: contexts and collectives, an estimate
};

struct MemoryNeeds {
  std::vector<RankNeeds> ranks;
  bool uses_gpus = false;
  uint64_t control_bytes = 0;            // control segment
  uint64_t process_bytes = 0;            // code, heap and sockets of every process, an estimate
  uint64_t descriptors = 0;              // of the process that needs the most, an upper bound
  uint64_t shared_memory_bytes() const;  // everything in /dev/shm
  uint64_t memory_bytes() const;         // everything that counts as memory of this node
  uint64_t pinned_bytes() const;
  // Of the GPU that carries the most, where ranks take `gpu_count` GPUs in turn.
  uint64_t device_bytes(uint64_t gpu_count) const;
};

inline constexpr uint64_t kNoLimit = UINT64_MAX;

// What the machine has. kNoLimit where nothing limits.
struct MachineFacts {
  uint64_t shm_free_bytes = kNoLimit;
  uint64_t shm_held_bytes = 0;  // by an earlier life of this job: will be used again
  uint64_t cgroup_free_bytes = kNoLimit;
  std::string cgroup_limit_file;        // which limit that is, for the table
  uint64_t host_free_bytes = kNoLimit;  // MemAvailable
  uint64_t descriptor_limit = kNoLimit;
  uint64_t memlock_limit_bytes = kNoLimit;
  uint64_t gpu_count = kNoLimit;  // that a process sees; kNoLimit: cannot be told
};

struct MemoryRow {
  std::string name;  // "shared memory (/dev/shm)"
  uint64_t needed = 0;
  uint64_t available = 0;  // kNoLimit: unlimited
  bool is_bytes = true;
  std::string change;  // what to do where it does not fit
  // Where not empty, the row informs and refuses nothing: why not, in words.
  std::string note = {};
  bool fits() const { return needed <= available; }
};

MemoryNeeds needs_of(const JobPlan& plan);
std::vector<MemoryRow> memory_rows(const MemoryNeeds& needs, const MachineFacts& facts);
// NoSpace naming every row that does not fit, with its numbers and what to change.
Status check(const std::vector<MemoryRow>& rows);

std::string memory_text(const MemoryNeeds& needs, const std::vector<MemoryRow>& rows);
// "5.40 MiB of shared memory: arenas 4.20 MiB (state 2.00 MiB), ...": what shared_memory_bytes() is
// made of, in one line.
std::string shared_memory_text(const MemoryNeeds& needs);
std::string memory_json(const MemoryNeeds& needs, const std::vector<MemoryRow>& rows);

// Reads the limits of this process and node; what cannot be read counts as no limit.
MachineFacts read_machine_facts(const RunDirectory& run, uint32_t world_size);

// "1.50 GiB", "64.0 KiB", "17 B".
std::string bytes_text(uint64_t bytes);

}  // namespace optlease
