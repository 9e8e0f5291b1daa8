// The flat parameter and gradient buffers of one rank, mapped from the launcher's vault. Used by
// the client; the mappings stay for its life. It does not look into the buffers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/runtime/clock.h"
#include "shm/contract/geometry.h"
#include "shm/contract/status.h"
#include "shm/shared_buffer.h"

namespace optlease {

struct ClientSpaceBuffers {
  bool is_member = false;  // otherwise both are empty
  MappedBuffer params;
  MappedBuffer grads;
};

// One entry a space of `plan`, in order. Buffers that the actor has not made yet are waited for.
Result<std::vector<ClientSpaceBuffers>> map_space_buffers(const SegmentPlan& plan, uint32_t rank,
                                                          const std::string& vault_socket,
                                                          Deadline deadline);

}  // namespace optlease
