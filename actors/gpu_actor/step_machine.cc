#include "actors/gpu_actor/step_machine.h"

namespace optlease {
namespace {
constexpr uint64_t kAskAgainMs = 500;
}  // namespace

void StepMachine::on_welcome(Step committed, Step open) {
  attached_ = true;
  committed_ = committed;
  open_ = open;
  order_.reset();
  reduce_seen_ = false;
  ask_again_ms_ = 0;
}

// A step that is not open when its group ends is reduced again by everybody: the store has voided
// the records that were there, since a restarted trainer's gradients need not be the same bits.
void StepMachine::forget_reduction() {
  order_.reset();
  reduced_ = kNoStep;
  reduce_seen_ = false;
  ask_again_ms_ = 0;
}

void StepMachine::on_group_formed(uint64_t group_epoch) {
  group_epoch_ = group_epoch;
  forget_reduction();
}

void StepMachine::on_group_broken(uint64_t group_epoch) {
  if (group_epoch != group_epoch_) return;
  group_epoch_ = 0;
  forget_reduction();
}

void StepMachine::on_order(GoOrder order) {
  if (order.group_epoch != group_epoch_)
    return;  // a group that is gone: the store will order again
  if (!order.gather) reduce_seen_ = true;
  order_ = std::move(order);
}

void StepMachine::on_step_open(Step step) {
  if (step != committed_ + 1) return;
  open_ = step;
  reduced_ = kNoStep;
}

void StepMachine::on_step_committed(Step step) {
  if (step <= committed_) return;
  committed_ = step;
  open_ = kNoStep;
  reduced_ = kNoStep;
  reduce_seen_ = false;
  ask_again_ms_ = 0;
}

void StepMachine::on_reduced(uint64_t group_epoch, Step step) {
  collective_busy_ = false;
  if (group_epoch == group_epoch_ && step == committed_ + 1 && open_ != step) {
    reduced_ = step;
    ask_again_ms_ = 0;
  }
}

void StepMachine::on_gathered(uint64_t group_epoch, Step step) {
  collective_busy_ = false;
  gathering_ = false;
  if (group_epoch == group_epoch_ && step > published_) published_ = step;
}

bool StepMachine::quiet() const {
  return attached_ && committed_ >= 0 && open_ == kNoStep && published_ == committed_ &&
         gradients_of_ <= committed_;
}

Phase StepMachine::phase() const {
  if (!attached_) return Phase::kStarting;
  if (committed_ == kNoStep) return Phase::kInitialise;
  if (collective_busy_ && !gathering_) return Phase::kReduce;
  // A gather that goes on under windows is no phase of its own.
  const bool checks = checking_ == open_ && open_ != kNoStep && !facts_.sums_are_sound(open_);
  const bool computes = open_ != kNoStep && ((running_ && !run_computed_) || checks);
  if (gathering_ && !computes) return Phase::kGather;
  if (open_ != kNoStep) return running_ || checks ? Phase::kStream : Phase::kWaitCommitted;
  if (published_ < committed_) return Phase::kGather;
  if (reduced_ != kNoStep) return Phase::kWaitOpen;
  if (gradients_of_ == committed_ + 1) return Phase::kWaitPeers;
  return Phase::kIdle;
}

std::vector<NextAction> StepMachine::next(uint64_t now_ms) {
  std::vector<NextAction> out;
  if (!attached_) return out;
  next_prefetch(&out);
  next_run(&out);
  next_gradients(now_ms, &out);
  next_collective(&out);
  return out;
}

// The state of the step before does not change until the step at work is open: its first windows
// can be copied in as soon as anybody says that gradients are coming.
void StepMachine::next_prefetch(std::vector<NextAction>* out) {
  const Step step = committed_ + 1;
  const bool coming = own_gradients_ || prepared_ == step || gradients_of_ == step;
  const bool wanted = coming && committed_ >= 0 && open_ == kNoStep && step <= steps_ &&
                      published_ == committed_ && !running_;
  if (prefetching_ != kNoStep) {
    const bool opened = open_ == prefetching_ && !facts_.skipped(open_);
    if (opened || (wanted && prefetching_ == step)) return;
    out->push_back({.kind = NextAction::Kind::kEndPrefetch, .step = prefetching_});
    prefetching_ = kNoStep;
  }
  if (!wanted) return;
  NextAction action{.kind = NextAction::Kind::kPrefetch, .step = step};
  action.chunks = facts_.behind(step);
  if (action.chunks.empty()) return;
  prefetching_ = step;
  out->push_back(std::move(action));
}

void StepMachine::next_run(std::vector<NextAction>* out) {
  if (running_) return;
  NextAction action{.kind = NextAction::Kind::kStartRun};
  if (committed_ == kNoStep) {
    action.run = RunKind::kInitialise;
    action.step = 0;
    action.chunks = facts_.behind(0);
  } else if (open_ != kNoStep) {
    if (facts_.skipped(open_)) return;  // the store moves the versions, the values stay
    action.run = RunKind::kUpdate;
    action.step = open_;
    action.chunks = facts_.behind(open_);
    if (!action.chunks.empty() && !facts_.sums_are_sound(open_)) return next_check(out);
  } else if (published_ < committed_) {
    action.run = RunKind::kRepublish;
    action.step = committed_;
    action.chunks = facts_.unpublished(committed_);
  }
  if (action.chunks.empty()) return;
  running_ = true;
  run_computed_ = false;
  prefetching_ = kNoStep;  // an update run goes on with it
  out->push_back(std::move(action));
}

// It takes as long as reading the shards does, during which this rank still answers, renews the
// leases of what is prefetched and says that it lives. An open step stays so until it is committed:
// whatever happens to the store or the group, one reading of it is enough.
void StepMachine::next_check(std::vector<NextAction>* out) {
  if (checking_ == open_) return;
  checking_ = open_;
  out->push_back({.kind = NextAction::Kind::kCheckSums, .step = open_});
}

void StepMachine::next_gradients(uint64_t now_ms, std::vector<NextAction>* out) {
  const Step step = committed_ + 1;
  if (committed_ < 0 || open_ != kNoStep || step > steps_) return;
  if (own_gradients_ && published_ == committed_ && gradients_of_ < step && filling_ != step &&
      !collective_busy_) {
    filling_ = step;
    out->push_back({.kind = NextAction::Kind::kFillGradients, .step = step});
  }
  if (gradients_of_ != step || now_ms < ask_again_ms_) return;
  if (reduced_ == step) {
    ask_again_ms_ = now_ms + kAskAgainMs;
    out->push_back({.kind = NextAction::Kind::kSendRecord, .step = step});
  } else if (!reduce_seen_) {
    ask_again_ms_ = now_ms + kAskAgainMs;
    out->push_back({.kind = NextAction::Kind::kSendReady, .step = step});
  }
}

void StepMachine::next_collective(std::vector<NextAction>* out) {
  if (!order_ || collective_busy_) return;
  const GoOrder& order = *order_;
  if (order.gather) {
    // Whatever runs now or later makes its shards final, piece by piece: the gather waits for that.
    const bool of_open = open_ != kNoStep && order.step == open_;
    if (!of_open && order.step != committed_) return;
    gathering_ = true;
  } else if (order.step != committed_ + 1 || filling_ != kNoStep) {
    return;
  }
  collective_busy_ = true;
  out->push_back({.kind = NextAction::Kind::kRunCollective, .step = order.step, .order = order});
  order_.reset();
}

}  // namespace optlease
