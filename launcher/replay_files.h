// Looks, before anything starts, whether the gradients that a job would replay first can be read.
// Used by `optlease plan`, `run` and `bench`. Files of later steps may still be on their way.
#pragma once

#include <string>

#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "shm/contract/status.h"

namespace optlease {

// The step that a run under this name would work on next: the one after that of a state which is
// there, else 1.
Step next_step_of(const RunDirectory& run);

// Ok for a job that replays nothing, or has no such step. InvalidArgument names `place`, where the
// configuration has gradients.replay_path, with the file and tensor that is missing or unusable.
Status check_replay_files(const JobPlan& plan, Step next, const std::string& place);

}  // namespace optlease
