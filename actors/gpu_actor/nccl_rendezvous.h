// How the ranks of a group epoch on GPUs find each other and notice each other's end. Each rank
// publishes a presence file, with the GPU that it uses, and keeps it locked (flock) for as long as
// it belongs to the epoch: the kernel releases the lock when the process ends, however it ends, and
// NCCL alone would not notice. When all are there, rank 0 publishes NCCL's unique id; so nothing of
// NCCL's waits for a rank that never comes. Used by nccl_group.h. Nothing waits here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/gpu_actor/rendezvous_files.h"
#include "shm/contract/status.h"

namespace optlease {

using GpuUuid = std::array<unsigned char, 16>;
using NcclIdBytes = std::array<char, 128>;

class NcclRendezvous {
 public:
  explicit NcclRendezvous(GroupPlace place);

  // This rank belongs to the epoch from here to leave() or destruction.
  Status announce(const GpuUuid& gpu);
  void leave();

  // Looks for peers that were not there yet. The first that is missing, or world().
  // Corrupt: a file that is none of this epoch's. Unsupported: two ranks on one GPU.
  Result<uint32_t> first_missing();
  // A rank that was there and has ended or left the epoch, or world().
  uint32_t first_gone() const;

  Status publish_id(const NcclIdBytes& id);  // rank 0
  // Busy: not there yet.
  Result<NcclIdBytes> read_id() const;

  const GroupPlace& place() const { return place_; }
  uint32_t world() const { return place_.world; }

 private:
  Status meet(uint32_t peer);

  GroupPlace place_;
  UniqueFd presence_;            // locked
  std::vector<UniqueFd> peers_;  // by rank: the peer's presence file, once it was met
  std::vector<GpuUuid> gpus_;    // by rank
};

}  // namespace optlease
