// Which segments a store serves, and whether it creates or recovers them. Used by HostStore.
#pragma once

#include "actors/runtime/exit_code.h"
#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "shm/chunk_store.h"

namespace optlease {

SegmentNames segment_names(const RunDirectory& directory, uint32_t world_size);

// `create`: makes new segments; what a creator left that died half-way is removed first, anything
// else under the name is refused (AlreadyExists) and not touched. Else recovers what is there;
// NotFound where nothing is. REQUIRES: the caller holds the job's store socket.
// New arenas are placed as plan.numa says, and the log tells what came of it; recovered ones stay
// where they are.
Result<ChunkStore> open_segments(const JobPlan& plan, const SegmentNames& names, bool create);

// The code with which a store ends that could not open its segments.
ExitCode exit_code_for_segments(const Status& why);

}  // namespace optlease
