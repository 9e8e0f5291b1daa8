// What an error of opening a segment means to a process of a job that has a state. Used by the host
// store and the actors; tools, which look at what may not be there, do not.
#pragma once

#include "shm/contract/status.h"

namespace optlease {

// A segment that is gone, or a file in its place that may not be trusted (another mode, owner or
// kind): damage, which no restart mends. Corrupt with the same words for NotFound and Permission,
// any other status as it is.
inline Status as_damage(const Status& status) {
  const bool is_damage =
      status.code() == StatusCode::kNotFound || status.code() == StatusCode::kPermission;
  return is_damage ? Status(StatusCode::kCorrupt, status.message()) : status;
}

}  // namespace optlease
