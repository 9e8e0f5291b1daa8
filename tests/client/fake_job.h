// A running job as a trainer sees it, without launcher, store or actor: a run directory under a
// temporary XDG_RUNTIME_DIR, a vault with one rank's buffers, and one rank's actor that answers the
// client protocol and can be told to misbehave. Used by the tests of the client and of the trainer.
// One thread serves; every method may be called from the test's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/runtime/job_plan.h"
#include "shm/contract/messages.h"

namespace optlease {

// What the fake has seen so far.
struct FakeSeen {
  uint32_t attaches = 0;
  uint32_t detaches = 0;
  uint32_t step_requests = 0;  // repeats counted
  uint32_t steps_applied = 0;
  AttachBody attach{};     // the last one
  StepRequestBody step{};  // the last one
  uint32_t prepares = 0;
  int64_t prepared = 0;  // the last one's step
};

// One rank's buffers of one space.
struct FakeSpace {
  void* params = nullptr;
  void* grads = nullptr;
  uint64_t elements = 0;
};

class FakeJob {
 public:
  // Updates parameters from gradients when a step is applied; called on the fake's thread.
  using Update = std::function<void(const StepRequestBody&, const std::vector<FakeSpace>&)>;

  // The buffers and the actor are those of `rank`. REQUIRES: lay_out has run on plan.segment.
  FakeJob(const JobPlan& plan, uint32_t rank, Update update);
  ~FakeJob();  // removes everything that it made, also a second XDG_RUNTIME_DIR

  std::string run_directory() const;
  std::vector<FakeSpace> spaces() const;  // [space]; nulls where the rank is no member
  FakeSeen seen() const;
  int64_t step_committed() const;
  std::string blob() const;

  // The next StepRequest for a new step makes the actor die, before or after it has applied the
  // step, and come back `down_ms` later.
  void crash_on_step(bool after_commit, uint32_t down_ms);
  // The next `times` answers to Attach or StepRequest are this refusal.
  void refuse(StatusCode code, const std::string& text, uint32_t times);
  // As refuse, but in the form of a StepReply.
  void refuse_in_reply(StatusCode code, const std::string& text, uint32_t times);
  // The next applied step is reported as skipped and changes no parameter.
  void skip_next_step();
  // While true nobody listens at the actor's socket.
  void set_down(bool down);
  // The actor hears Attach and StepRequest and does not answer.
  void set_silent(bool silent);
  // Each answer is preceded by noise: a frame that is none, and an answer to another request.
  void set_noisy(bool noisy);
  // What Attached says from now on.
  void set_committed(int64_t step, const std::string& blob);
  // Takes the buffers' keys out of the vault, and puts them back `after_ms` later.
  void hide_buffers(uint32_t after_ms);
  void remove_run_directory();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Two ranks; space "dense" of both (F32: w [3,4], b [4]; then s, a scalar), space "experts" of rank
// 1 alone, and space "half" of both with BF16 parameters and F16 gradients (h [5]).
JobPlan three_space_plan(const std::string& job);

}  // namespace optlease
