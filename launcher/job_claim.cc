#include "launcher/job_claim.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "actors/wire/socket.h"
#include "launcher/files.h"
#include "launcher/job_origin.h"
#include "launcher/job_state.h"
#include "launcher/memory_contract.h"
#include "shm/found_state.h"
#include "shm/kill_point.h"
#include "shm/segment_removal.h"

namespace optlease {
namespace {

// A failure without words is none.
ClaimFailure refuse(ExitCode code, std::string text) { return {code, std::move(text)}; }

ClaimFailure refuse(const Status& status) {
  return status.is_ok() ? ClaimFailure{} : refuse(exit_code_for(status), status.message());
}

// What an earlier run left under the job's name.
struct Found : FoundState {
  std::optional<JobState> state;  // kWhole
};

Found look(const RunDirectory& run) {
  Found found{find_state(run), std::nullopt};
  if (found.kind != StateKind::kWhole) return found;
  auto state = JobState::open(run);
  if (state) {
    found.state.emplace(std::move(state).value());
    return found;
  }
  found.kind = StateKind::kForeign;  // it was whole just now: it cannot be looked at, no more
  found.why = state.status();
  return found;
}

// Of what is under the job's names and must not be used or removed.
ClaimFailure refuse_foreign(const std::string& job, const Status& why) {
  const bool is_strange =
      why.code() == StatusCode::kPermission || why.code() == StatusCode::kWrongVersion;
  return refuse(is_strange ? ExitCode::kCorruptState : exit_code_for(why),
                "a segment stands under the name of job " + job +
                    " that is not used or removed by this program: " + why.message());
}

ClaimFailure refuse_damaged(const std::string& job, const Status& why) {
  return refuse(ExitCode::kCorruptState,
                "job " + job +
                    " may have a state in shared memory, and it cannot be used: " + why.message() +
                    ". Nothing of it was touched: mend it and --resume, or discard "
                    "it with --fresh or `optlease clean " +
                    job + "`");
}

std::string choices(const std::string& job, Step step) {
  return format(
      "job %s has a state in shared memory at step %lld. --resume continues from it, "
      "--fresh discards it and starts anew, `optlease clean %s` removes it",
      job.c_str(), static_cast<long long>(step), job.c_str());
}

std::vector<uint64_t> incarnations_of(const ControlView& view) {
  std::vector<uint64_t> out;
  for (uint32_t r = 0; r < view.header().world_size; ++r) {
    out.push_back(view.rank(Rank(r)).incarnation.load());
  }
  return out;
}

// A state that was begun with another seed is another model than the one that is asked for.
ClaimFailure check_origin(const JobPlan& plan, const ControlView& view, JobClaim* claim) {
  const auto stored = plan_of_stored_state(claim->run, view.header().layout_hash);
  if (!stored) {
    if (draws_weights(plan)) {
      claim->notes.push_back("the run that began this state left no plan in " + claim->run.path() +
                             ": whether its model.seed was the same is not known");
    }
    return {};
  }
  const std::string difference = model_difference(*stored, plan, view.step_committed() != kNoStep);
  if (difference.empty()) return {};
  return refuse(ExitCode::kBadConfiguration,
                "the state in shared memory was begun with another model: " + difference +
                    "; resume with the value that it was begun with (--set is not remembered), or "
                    "discard it with --fresh");
}

ClaimFailure check_layout(const JobPlan& plan, const Found& found, JobClaim* claim) {
  const ControlView& view = found.state->view();
  if (view.header().layout_hash != layout_hash(plan.segment)) {
    std::string difference = layout_difference(view.plan(), plan.segment);
    if (difference.empty()) difference = "the layout hashes differ";
    return refuse(ExitCode::kBadConfiguration,
                  "the state in shared memory was made under another layout: " + difference +
                      "; resume with the configuration that made it, or discard it with --fresh");
  }
  // The step in the middle of which everything ended is finished first, so it counts.
  const Step reached = view.step_committed() + (view.step_is_open() ? 1 : 0);
  if (plan.steps < reached) {
    return refuse(
        ExitCode::kBadConfiguration,
        format("the state is at step %lld, and job.steps is %lld: give the job.steps that "
               "it was started with, or more (--set is not remembered)",
               static_cast<long long>(reached), static_cast<long long>(plan.steps)));
  }
  ClaimFailure another_model = check_origin(plan, view, claim);
  if (!another_model.text.empty()) return another_model;
  KILL_POINT("claim.resumed");
  claim->resumed = true;
  claim->step_committed = view.step_committed();
  claim->last_incarnation = incarnations_of(view);
  return {};
}

ClaimFailure check_resume(const JobPlan& plan, const Found& found, JobClaim* claim) {
  const std::string& job = claim->run.job_name();
  switch (found.kind) {
    case StateKind::kNothing:
      return refuse(ExitCode::kStateAbsent,
                    "job " + job +
                        " has no state in shared memory to resume; leave --resume out to start it");
    case StateKind::kUnfinished:
      return refuse(ExitCode::kStateAbsent, "job " + job +
                                                " has no state to resume: " + found.why.message() +
                                                "; leave --resume out to start it");
    case StateKind::kDamaged:
      return refuse_damaged(job, found.why);
    case StateKind::kForeign:
      return refuse_foreign(job, found.why);
    case StateKind::kWhole:
      return check_layout(plan, found, claim);
  }
  return refuse(ExitCode::kInternal, "what is under the name of job " + job + " is not known");
}

// Says why what stands in the way of a new job must not be removed, or what will be.
ClaimFailure may_make_room(StartMode mode, const Found& found, JobClaim* claim) {
  const std::string& job = claim->run.job_name();
  switch (found.kind) {
    case StateKind::kNothing:
      return {};
    case StateKind::kForeign:
      return refuse_foreign(job, found.why);
    case StateKind::kDamaged:
      if (mode != StartMode::kFresh) return refuse_damaged(job, found.why);
      claim->notes.push_back("removed what an earlier run left (" + found.why.message() + ")");
      return {};
    case StateKind::kUnfinished:
      claim->notes.push_back("removed the remains of an earlier run, in which no step is (" +
                             found.why.message() + ")");
      return {};
    case StateKind::kWhole:
      if (mode == StartMode::kNew && found.step_committed != kNoStep) {
        return refuse(ExitCode::kStateExists, choices(job, found.step_committed));
      }
      claim->notes.push_back(format("removed the state of an earlier run (step %lld)",
                                    static_cast<long long>(found.step_committed)));
      return {};
  }
  return refuse(ExitCode::kInternal, "what is under the name of job " + job + " is not known");
}

ClaimFailure check_memory(const JobPlan& plan, const RunDirectory& run) {
  const MachineFacts facts = read_machine_facts(run, plan.segment.world_size);
  const Status status = check(memory_rows(needs_of(plan), facts));
  return status.is_ok() ? ClaimFailure{} : refuse(ExitCode::kNoResources, status.message());
}

ClaimFailure write_plan(const JobPlan& plan, const RunDirectory& run) {
  const Status made = run.create();  // a refused starter may have removed it, still bare
  return refuse(made.is_ok() ? write_file_atomically(run.job_file(), to_json(plan)) : made);
}

// The plan stays at every instant: it says what the state was begun with. A resumed run goes on in
// the logs and loss curves of the one before it.
Status make_room(const RunDirectory& run, StartMode mode) {
  return remove_entries(run.path(), [&](const std::string& path) {
    const bool is_log = path.ends_with(".log") || path.ends_with(".jsonl");
    return path == run.job_file() || (is_log && mode == StartMode::kResume);
  });
}

ClaimFailure prepare(const JobPlan& plan, StartMode mode, JobClaim* claim) {
  ClaimFailure failure;
  {
    const Found found = look(claim->run);
    failure = mode == StartMode::kResume ? check_resume(plan, found, claim)
                                         : may_make_room(mode, found, claim);
  }
  // What is removed counts as free; a job that does not fit, or whose plan cannot be written, costs
  // no earlier state.
  if (failure.text.empty()) failure = check_memory(plan, claim->run);
  if (failure.text.empty()) failure = write_plan(plan, claim->run);
  if (failure.text.empty() && mode != StartMode::kResume) {
    failure = refuse(remove_segments(claim->run));
  }
  KILL_POINT("claim.plan_written");
  if (failure.text.empty()) failure = refuse(make_room(claim->run, mode));
  KILL_POINT("claim.emptied");
  return failure;
}

}  // namespace

bool job_answers(const RunDirectory& run) {
  return (run.check().is_ok() && is_listening(run.launcher_socket())) ||
         Segment::in_use(run.control_segment()) || Segment::in_use(run.arena_segment(Rank(0)));
}

namespace {

// `was_there`: the run directory is not of our making.
ClaimOutcome claim_in(const JobPlan& plan, StartMode mode, const RunDirectory& run,
                      bool was_there) {
  const auto probe = JobLock::try_probe(run.lock_segment());
  const bool lock_is_new = probe && probe.value() == JobLock::State::kAbsent;
  auto lock = JobLock::acquire(run.lock_segment(), false);
  if (!lock) {
    const bool busy = lock.status().code() == StatusCode::kBusy;
    const ExitCode code = busy ? ExitCode::kAlreadyRunning : exit_code_for(lock.status());
    return {std::nullopt, refuse(code, lock.status().message())};
  }
  KILL_POINT("claim.locked");
  if (job_answers(run)) {
    // The job lives, and somebody removed its lock's name: ours is no claim to anything.
    lock.value().release_and_unlink();
    return {std::nullopt, refuse(ExitCode::kAlreadyRunning,
                                 "job " + run.job_name() +
                                     " is running, although its lock's name was removed; stop it "
                                     "with `optlease stop`")};
  }
  JobClaim claim{run, std::move(lock).value(), false, kNoStep, {}, {}};
  ClaimFailure failure = prepare(plan, mode, &claim);
  if (failure.text.empty()) return {std::move(claim), {}};
  // A refusal leaves nothing new behind, and the logs of an earlier run where they are.
  if (!was_there) (void)remove_run_directory(claim.run).is_ok();
  if (lock_is_new || segments_of_job(claim.run).size() <= 1) claim.lock.release_and_unlink();
  return {std::nullopt, std::move(failure)};
}

}  // namespace

ClaimOutcome claim_job(const JobPlan& plan, StartMode mode) {
  auto run = RunDirectory::of(plan.segment.job_name);
  if (!run) return {std::nullopt, refuse(run.status())};
  const bool was_there = access(run.value().path().c_str(), F_OK) == 0;
  // What is another's is not touched, not even to look whether it is empty.
  if (const Status made = run.value().create(); !made) return {std::nullopt, refuse(made)};
  ClaimOutcome outcome = claim_in(plan, mode, run.value(), was_there);
  // Without the lock somebody else's may lie in it: then it stays.
  if (!outcome.claim && !was_there) (void)rmdir(run.value().path().c_str());
  return outcome;
}

Step next_step(const std::string& job_name, StartMode mode) {
  const auto run = RunDirectory::of(job_name);
  if (mode != StartMode::kResume || !run) return 1;
  const auto state = JobState::open(run.value());
  if (!state) return 1;
  // A step that is open has its summed gradients.
  const ControlView& view = state.value().view();
  return std::max<Step>(0, view.step_committed() + (view.step_is_open() ? 1 : 0)) + 1;
}

std::string layout_difference(const SegmentPlan& stored, const SegmentPlan& wanted) {
  const auto differs = [](const std::string& what, uint64_t was, uint64_t is) {
    return what + format(" was %llu and is now %llu", static_cast<unsigned long long>(was),
                         static_cast<unsigned long long>(is));
  };
  if (stored.world_size != wanted.world_size) {
    return differs("ranks.world_size", stored.world_size, wanted.world_size);
  }
  if (stored.window_chunks != wanted.window_chunks) {
    return differs("offload.window_chunks", stored.window_chunks, wanted.window_chunks);
  }
  if (stored.prefetch_windows != wanted.prefetch_windows) {
    return differs("offload.prefetch_windows", stored.prefetch_windows, wanted.prefetch_windows);
  }
  if (stored.split.main != wanted.split.main) {
    return std::string("optimizer.main is ") + name_of(wanted.split.main) + ", the state has " +
           name_of(stored.split.main);
  }
  if (stored.split.resident_millionths != wanted.split.resident_millionths) {
    return differs("millionths of the state that stay on the device (offload.fraction)",
                   stored.split.resident_millionths, wanted.split.resident_millionths);
  }
  if (stored.spaces.size() != wanted.spaces.size()) {
    return differs("the number of spaces", stored.spaces.size(), wanted.spaces.size());
  }
  for (size_t s = 0; s < stored.spaces.size(); ++s) {
    const SpaceSpec& a = stored.spaces[s];
    const SpaceSpec& b = wanted.spaces[s];
    if (a.name != b.name) return "space " + a.name + " is now called " + b.name;
    const std::string space = "space " + a.name + ": ";
    if (a.members != b.members) return space + "other ranks hold it";
    if (a.tensors.size() != b.tensors.size()) {
      return space + differs("the number of parameters", a.tensors.size(), b.tensors.size());
    }
    for (size_t t = 0; t < a.tensors.size(); ++t) {
      if (a.tensors[t].name != b.tensors[t].name) {
        return space + "parameter " + a.tensors[t].name + " is now called " + b.tensors[t].name;
      }
      if (a.tensors[t].shape != b.tensors[t].shape) {
        return space + "parameter " + a.tensors[t].name + " has another shape";
      }
    }
    if (a.param_dtype != b.param_dtype) return space + "another param_dtype";
    if (a.grad_dtype != b.grad_dtype) return space + "another grad_dtype";
    if (a.group != b.group) return space + "another hyper-parameter group";
    if (a.chunk_elements != b.chunk_elements) {
      return space + differs("elements a chunk (offload.chunk_size_mb)", a.chunk_elements,
                             b.chunk_elements);
    }
  }
  return "";
}

Status remove_segments(const RunDirectory& run) {
  std::vector<std::string> names;
  for (const std::string& name : segments_of_job(run)) {
    if (name == run.lock_segment()) continue;
    const std::string path = Segment::path_of(name);
    struct stat found {};
    if (lstat(path.c_str(), &found) != 0) continue;
    if (!S_ISREG(found.st_mode) || found.st_uid != geteuid()) {
      return {StatusCode::kPermission,
              path + " is no regular file of this user: it is left alone; remove it yourself"};
    }
    names.push_back(name);
  }
  begin_removal(run.control_segment());
  names = in_removal_order(std::move(names));
  for (const std::string& name : names) {
    Segment::unlink(name);
    KILL_POINT("removal.segment");
  }
  return Status::ok();
}

Status remove_run_directory(const RunDirectory& run) {
  OPTLEASE_TRY(remove_entries(run.path(), [](const std::string&) { return false; }));
  KILL_POINT("directory.emptied");
  const bool gone = rmdir(run.path().c_str()) == 0 || errno == ENOENT || errno == ENOTDIR;
  return gone ? Status::ok()
              : Status(StatusCode::kIo, "cannot remove " + run.path() + ": " + strerror(errno));
}

bool state_is_ready(const RunDirectory& run) {
  const auto state = JobState::open(run);
  return state &&
         state.value().view().header().state.load() == static_cast<uint32_t>(SegmentState::kReady);
}

}  // namespace optlease
