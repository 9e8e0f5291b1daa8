// How the ranks of a group epoch learn each other's addresses: one file a rank in the epoch's
// folder, written under a temporary name and renamed. Used by gloo_mesh.h. Addresses are opaque
// bytes here; nothing waits here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/gpu_actor/rendezvous_files.h"
#include "shm/contract/status.h"

namespace optlease {

// Entry p is what peer p connects to in order to reach this rank; this rank's own entry is empty.
using PeerAddresses = std::vector<std::string>;

// Creates the epoch's folder (mode 0700) where it is missing.
Status publish_addresses(const GroupPlace& place, const PeerAddresses& addresses);

// What `peer` published for place.rank. Busy: nothing yet; ask again. Corrupt: no such file of
// ours.
Result<std::string> read_address(const GroupPlace& place, uint32_t peer);

}  // namespace optlease
