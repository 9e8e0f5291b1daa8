// Collectives over Gloo's TCP transport on the loopback interface: the CPU device's. Ranks find
// each other through files in `group_directory`/<group epoch>/. The only place that includes Gloo
// is its implementation; no exception leaves it.
#pragma once

#include <memory>
#include <string>

#include "actors/gpu_actor/collectives.h"

namespace optlease {

// Staging in use during reduce_scatter: at most this over all peers together.
inline constexpr uint64_t kGlooStagingBytesMax = 32u << 20;
// Bytes a piece of a transfer has at most, and one of an all-gather at least (where its shard has).
inline constexpr uint64_t kGlooPieceBytesMax = 4u << 20;
inline constexpr uint64_t kGlooGatherPieceBytesMin = 16u << 10;

std::unique_ptr<Collectives> make_gloo_collectives(std::string group_directory);

}  // namespace optlease
