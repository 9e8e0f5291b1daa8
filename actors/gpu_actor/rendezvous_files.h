// The files through which the ranks of a group epoch find each other: each epoch has a folder, each
// file is written under a temporary name and renamed, so that readers see all of it or nothing.
// Used by gloo_rendezvous.h and nccl_rendezvous.h, which say what is in them. Nothing waits here.
#pragma once

#include <cstdint>
#include <string>

#include "shm/contract/status.h"
#include "shm/shared_buffer.h"

namespace optlease {

struct GroupPlace {
  std::string directory;  // holds one folder a group epoch
  uint64_t group_epoch = 0;
  uint32_t rank = 0;
  uint32_t world = 0;
};

std::string folder_of(const GroupPlace& place);

// Writes `name` into the epoch's folder, which is created (mode 0700) where it is missing. The file
// (mode 0600) carries an exclusive flock from before it has its name until the result is closed, by
// hand or by the end of this process.
Result<UniqueFd> publish_file(const GroupPlace& place, const std::string& name,
                              const std::string& bytes);

// Busy: not there yet; ask again.
Result<std::string> read_rendezvous_file(const std::string& path);

// Removes the folders of all earlier epochs; what cannot be removed stays for the next time.
void remove_earlier_epochs(const GroupPlace& place);

}  // namespace optlease
