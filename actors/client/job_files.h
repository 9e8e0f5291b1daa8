// Finds a running job from its name: the run directory and the plan in it. Used by the client
// library at attach. It creates nothing and talks to no process.
#pragma once

#include <cstdint>
#include <string>

#include "actors/runtime/clock.h"
#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "shm/contract/status.h"

namespace optlease {

struct RunningJob {
  RunDirectory directory;
  JobPlan plan;
};

// `job`, or OPTLEASE_JOB of the environment where it is null.
Result<std::string> job_name_or_environment(const char* job);
// `rank`, or OPTLEASE_RANK of the environment where it is negative.
Result<uint32_t> rank_or_environment(int32_t rank);

// NotFound at once where there is no run directory; Permission where it is not this user's alone. A
// job file that is not there yet is waited for.
Result<RunningJob> find_running_job(const std::string& job, Deadline deadline);

// PeerLost, in words, where the run directory is gone: the job has ended.
Status check_still_running(const RunDirectory& directory);

}  // namespace optlease
