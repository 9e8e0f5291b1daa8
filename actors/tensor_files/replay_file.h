// The name of a file of recorded gradients. Used by the actor, which reads it, and by the launcher,
// which looks before it starts anything that the next one is there.
#pragma once

#include <string>

#include "shm/contract/ids.h"

namespace optlease {

// `pattern` with each "{step}" and "{rank}" replaced by the number.
std::string replay_file_of(const std::string& pattern, Step step, Rank rank);

}  // namespace optlease
