// The moments of a step that others may care for: rehearsed kills, and what is counted at its end.
#include <algorithm>
#include <cmath>

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
    after_step(published);
  }
}

void GpuActor::after_step(Step step) {
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
  if (step > 0) at_phase(RehearsePhase::kBetweenSteps, step);
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

void GpuActor::at_phase(RehearsePhase phase, Step step) {
  for (size_t i = 0; i < rehearsals_left_.size(); ++i) {
    const uint32_t index = rehearsals_left_[i];
    if (!is_rehearsed_here(index, phase, step)) continue;
    rehearsals_left_.erase(rehearsals_left_.begin() + static_cast<std::ptrdiff_t>(i));
    log_info("rehearsal %u: %s of step %lld", index, name_of(phase), static_cast<long long>(step));
    // The loop stands still meanwhile: neither lease nor heartbeat may run out.
    const uint64_t wait_ms = std::min({kRehearseTimeoutMsMax, plan_.restart.lease_ms / 2,
                                       plan_.restart.heartbeat_timeout_ms / 2});
    const Status done = lifeline_.rehearse(index, static_cast<int>(wait_ms));
    if (!done.is_ok()) log_warn("rehearsal %u: %s", index, done.text().c_str());
    return;
  }
}

}  // namespace optlease
