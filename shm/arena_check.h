// Opens a rank's arena and ties it to its control segment. Used by the store, the lessee and tools.
#pragma once

#include <string>

#include "shm/contract/ids.h"
#include "shm/contract/status.h"
#include "shm/control_view.h"
#include "shm/segment.h"

namespace optlease {

// Corrupt where the header is broken, of another rank or job, or of another shape than the control
// segment says.
Result<Segment> open_arena(const std::string& name, const ControlView& view, Rank rank,
                           Segment::Access access);

}  // namespace optlease
