// The moments of a step that others may care for: what is final and may be gathered, rehearsed
// kills, and what is counted at its end.
#include <algorithm>
#include <cmath>
#include <vector>

#include "actors/gpu_actor/gpu_actor.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"

namespace optlease {
namespace {

constexpr uint64_t kRehearseTimeoutMsMax = 5000;
// A rehearsed moment between answer and commit that does not come: another rank's new incarnation
// cannot be gathered before the commit.
constexpr int64_t kKeepCommitMsMax = 2000;

}  // namespace

void GpuActor::start_gather(const GoOrder& order) {
  gather_begun_us_ = static_cast<uint64_t>(now_us());
  feeder_->begin(order.step, &worker_->feed());
  worker_->gather(order);
  feed_gather();
}

// Its thread sends what is final and waits for the rest. While the step is open some rank's windows
// may be slow, and so may this one's own that publish a committed step again: no time counts.
void GpuActor::feed_gather() {
  const Step open = machine_->open();
  if (open > computed_to_ && pipeline_->computed()) {
    computed_to_ = open;
    at_phase(RehearsePhase::kGather, open);
  }
  if (!machine_->gathering()) return;
  if (feeder_->step() == open || !pipeline_->idle()) worker_->feed().renew();
  feeder_->advance([this](uint32_t chunk) { return pipeline_->published(chunk); },
                   &worker_->feed());
}

// The moments at the end of a step, after the trainer was answered.
void GpuActor::tell_moments() {
  const Step published = machine_->published();
  const auto& request = desk_->in_hand();
  const bool asked = request && request->body.step <= published;  // and not answered yet
  if (published > answered_ && !asked) {
    answered_ = published;
    if (published > 0) at_phase(RehearsePhase::kAnswered, published);
  }
  if (published > finished_ && published <= machine_->committed()) {
    finished_ = published;
    count_step(published);
    if (published > 0) at_phase(RehearsePhase::kBetweenSteps, published);
  }
}

void GpuActor::count_step(Step step) {
  if (step_started_us_ != 0 && step > 0) {
    last_step_seconds_ = static_cast<double>(now_us() - step_started_us_) * 1e-6;
    step_times_.add(last_step_seconds_);
    ++steps_done_;
    const DeviceCounters now = device_->counters();
    const double streaming = timeline_.stream > 0 ? timeline_.stream : HUGE_VAL;  // skipped: 0
    h2d_rate_ = static_cast<double>(now.bytes_in - counters_at_run_.bytes_in) / streaming;
    d2h_rate_ = static_cast<double>(now.bytes_out - counters_at_run_.bytes_out) / streaming;
    last_timeline_ = timeline_;
    const PipelineCounters& waits = pipeline_->counters();
    step_lease_wait_seconds_ = waits.lease_wait_seconds - waits_at_step_.lease_wait_seconds;
    step_stall_seconds_ = waits.stall_seconds - waits_at_step_.stall_seconds;
    figures_->step_over(step, last_step_seconds_);
    if (step_log_) step_log_->step_over(step, last_step_seconds_);
  }
  step_started_us_ = 0;
  timeline_ = {};
  waits_at_step_ = pipeline_->counters();
}

bool GpuActor::is_rehearsed_here(uint32_t index, RehearsePhase phase, Step step) const {
  if (index >= plan_.rehearsals.size()) return false;
  const Rehearsal& rehearsal = plan_.rehearsals[index];
  return rehearsal.at_rank == rank_.value && rehearsal.step == step && rehearsal.phase == phase;
}

// Between answer and commit there is no time worth a kill, unless the commit waits for it.
bool GpuActor::keeps_last_commit(Step step) {
  bool keeps = answered_ < step;
  keeps = keeps && std::any_of(rehearsals_left_.begin(), rehearsals_left_.end(), [&](uint32_t i) {
            return is_rehearsed_here(i, RehearsePhase::kAnswered, step);
          });
  if (!keeps) {
    keeps_commit_since_ms_ = 0;
    return false;
  }
  if (keeps_commit_since_ms_ == 0) keeps_commit_since_ms_ = now_ms();
  return now_ms() - keeps_commit_since_ms_ < kKeepCommitMsMax;
}

// All that are due at this moment; one that ends this process comes last, or the others were lost.
void GpuActor::at_phase(RehearsePhase phase, Step step) {
  std::vector<uint32_t> due;
  for (const uint32_t index : rehearsals_left_) {
    if (is_rehearsed_here(index, phase, step)) due.push_back(index);
  }
  if (due.empty()) return;
  std::stable_partition(due.begin(), due.end(), [&](uint32_t index) {
    const Rehearsal& what = plan_.rehearsals[index];
    return what.role != Role::kGpuActor || what.rank != rank_.value;
  });
  // The loop stands still meanwhile: neither lease nor heartbeat may run out.
  const Deadline deadline = Deadline::after_ms(
      static_cast<int64_t>(std::min({kRehearseTimeoutMsMax, plan_.restart.lease_ms / 2,
                                     plan_.restart.heartbeat_timeout_ms / 2})));
  for (const uint32_t index : due) {
    std::erase(rehearsals_left_, index);
    log_info("rehearsal %u: %s of step %lld", index, name_of(phase), static_cast<long long>(step));
    const Status done = lifeline_.rehearse(index, deadline.remaining_ms());
    if (!done.is_ok()) log_warn("rehearsal %u: %s", index, done.text().c_str());
  }
}

}  // namespace optlease
