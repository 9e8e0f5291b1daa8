// What happens before the first process of a job starts: taking the job's name, looking at what an
// earlier run left under it, deciding whether that is continued, refused or removed, checking the
// memory contract, and writing the plan where every process reads it. Starts no process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/exit_code.h"
#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "shm/job_lock.h"

namespace optlease {

enum class StartMode {
  kNew,     // refuse where a valid state of this name is there
  kResume,  // continue it; refuse where there is none
  kFresh,   // remove it first
};

// The right to run a job: its lock is held, its run directory is empty but for the plan.
struct JobClaim {
  RunDirectory run;
  JobLock lock;
  bool resumed = false;
  Step step_committed = kNoStep;           // where it continues
  std::vector<uint64_t> last_incarnation;  // by rank
  std::vector<std::string> notes;          // what was done about leftovers, for people
};

// A refusal with the code that the program ends with.
struct ClaimFailure {
  ExitCode code = ExitCode::kInternal;
  std::string text;
};

// Exactly one of the two is set.
struct ClaimOutcome {
  std::optional<JobClaim> claim;
  ClaimFailure failure;
};
ClaimOutcome claim_job(const JobPlan& plan, StartMode mode);

// The first step whose gradients a run of the job would need: 1, or with kResume the one after what
// the state in shared memory has, as far as there is one. Claims nothing.
Step next_step(const std::string& job_name, StartMode mode);

// True where a process of the job serves it, even where the job's lock was deleted under it: its
// launcher answers, or, seen from another run directory too, a store serves its control segment or
// a launcher watches its arenas. Connects to nothing in a directory that RunDirectory::check
// refuses.
bool job_answers(const RunDirectory& run);

// In words, what differs between the layout of a stored state and of a plan; empty: nothing that
// the plans show.
std::string layout_difference(const SegmentPlan& stored, const SegmentPlan& wanted);

// Removes every segment of the job but its lock. Permission, and nothing is touched, where one of
// the names is no regular file of this user.
Status remove_segments(const RunDirectory& run);
// With all that is in it. Never follows a symlink; one that is not there is fine.
Status remove_run_directory(const RunDirectory& run);
// True when the control segment of the job is complete and every arena is there.
bool state_is_ready(const RunDirectory& run);

}  // namespace optlease
