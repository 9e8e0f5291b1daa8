// Which model a stored state was begun with: the plan of the run that made it, as far as its run
// directory still has it (job.json after a failure or a kill, kept.json after a clean end). Used
// where a job is claimed and where it ends; it reads no state.
#pragma once

#include <optional>
#include <string>

#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"

namespace optlease {

// The plan of the run that the job's state is of; nothing where no file tells, or tells of another
// layout.
std::optional<JobPlan> plan_of_stored_state(const RunDirectory& run, uint64_t layout_hash);

// True where the initial weights depend on model.seed.
bool draws_weights(const JobPlan& plan);

// Why a run of `wanted` would not go on with the model that `stored` began; empty: it would.
// `complete`: step 0 is committed, so that no initial weight is made any more.
std::string model_difference(const JobPlan& stored, const JobPlan& wanted, bool complete);

// The clean end of a job whose state is kept: of its run directory only kept.json stays.
Status keep_only_origin(const RunDirectory& run);

}  // namespace optlease
