// Collectives over NCCL between the ranks of one node: the CUDA device's. All pointers of calls but
// those of all_gather_fixed are device pointers of `device`. Ranks find each other through files in
// `group_directory`/<group epoch>/ (nccl_rendezvous.h). NCCL only moves bytes, from point to point:
// the sums are this project's own kernel over pieces in bounded scratch, in member order, so that
// their bits are Gloo's. A world of one uses neither files nor NCCL nor scratch.
//
// NCCL needs a GPU a rank: two ranks of one GPU are refused at connect() with Unsupported. Beside
// the errors of collectives.h, Internal means that CUDA or NCCL failed in this process in a way
// from which only a new process recovers; one is an abort by NCCL that does not come back within
// seconds. Nothing can be taken down around that one: the destructor then ends the process
// (leave_process.h). NCCL itself is loaded where a world has several ranks (nccl_library.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actors/gpu_actor/collectives.h"

namespace optlease {

struct NcclOptions {
  std::string group_directory;
  int device = 0;  // CUDA ordinal
  // Received pieces that wait for their sum, all peers together. Equal on every rank.
  uint64_t scratch_bytes_max = 64u << 20;
};

// Sets those variables of NCCL's environment that are not set and that this use of it wants:
// loopback for its own sockets, no multicast. REQUIRES: no other thread runs yet.
void set_nccl_defaults();

// Creates streams, events and, for summing, kernels in the device's context.
Result<std::unique_ptr<Collectives>> make_nccl_collectives(NcclOptions options);

}  // namespace optlease
