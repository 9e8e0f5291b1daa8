// What goes wrong in a simulated node: kills at any event, alone, in pairs, within a write of the
// store; processes that stand still; connections between ranks that are reset; restarts on purpose,
// stops, and the launcher's own death.
#include <csignal>

#include "tests/simulation/sim_world.h"

namespace optlease {
namespace {

constexpr const char* kKillPoints[] = {
    "commit.entry_written",
    "commit.before_flip",
    "commit.flipped",
    "record.emptied",
    "record.body_written",
    "record.written",
    "record.voided",
    "sums.emptied",
    "sums.body_written",
    "sums.written",
    "blob.emptied",
    "blob.bytes_written",
    "blob.written",
    "blob.none",
    "step_word.before",
    "step_word.written",
    "commit_unchanged.before_flip",
    "commit_unchanged.flipped",
    "store.epoch_raised",
    "store.arena_made",
    "store.before_ready",
};
constexpr uint64_t kLauncherPauseUs = 3'000'000;
constexpr uint64_t kLauncherLivesMax = 5;

}  // namespace

void SimWorld::maybe_fault() {
  if (calm_since_us_ != 0 || !context_.failure.empty()) return;
  if (context_.clock.events() >= context_.options.faults_end) {
    calm_since_us_ = context_.clock.now_us();
    return;
  }
  if (context_.options.fault_every != 0 && context_.dice.one_in(context_.options.fault_every)) {
    fault();
  }
}

void SimWorld::fault() {
  Dice& dice = context_.dice;
  const auto rank = static_cast<uint32_t>(dice.below(context_.options.ranks));
  const uint64_t heartbeat_us = context_.options.restart.heartbeat_timeout_ms * 1000;
  switch (dice.below(24)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return kill(actor(rank));
    case 5:
    case 6:
    case 7:
      return kill(store());
    case 8:
    case 9:
    case 10:
      return arm_store();
    case 11:
    case 12:
      return kill(trainer(rank));
    case 13:
    case 14:
      return kill_many();
    case 15:
    case 16:
    case 17:
      return pause(actor(rank), 2 * heartbeat_us);
    case 18:
      return pause(store(), 2 * heartbeat_us);
    case 19:
      return pause(trainer(rank), 2 * heartbeat_us);
    case 20:
      return pause(launcher_->alive() ? launcher_ : nullptr, kLauncherPauseUs);
    case 21:
      if (SimWorker* worker = mesh_.worker(rank)) worker->disturb();
      return;
    case 22:
      if (!launcher_->alive()) return;
      return launcher_->restart_on_purpose({Role::kGpuActor, rank});
    default:
      break;
  }
  if (!launcher_->alive() || launcher_life_ >= kLauncherLivesMax) return;
  if (context_.options.stops_midway && !asked_to_stop_) {
    asked_to_stop_ = true;
    return launcher_->stop();
  }
  if (context_.options.launcher_dies) kill(launcher_);
}

void SimWorld::kill(SimProcess* process) {
  if (process != nullptr) end_process(process, {true, SIGKILL});
}

void SimWorld::kill_many() {
  const auto rank = static_cast<uint32_t>(context_.dice.below(context_.options.ranks));
  const uint64_t which = context_.dice.below(4);
  if (which == 0) kill(store());
  if (which <= 1) kill(actor(rank));
  if (which >= 1) kill(trainer(rank));
  if (which == 2) kill(actor(rank));
  if (which != 3) return;
  for (uint32_t r = 0; r < context_.options.ranks; ++r) kill(actor(r));
}

void SimWorld::arm_store() {
  SimStore* victim = store();
  if (victim != nullptr) victim->arm(kKillPoints[context_.dice.below(std::size(kKillPoints))]);
}

void SimWorld::pause(SimProcess* process, uint64_t most_us) {
  if (process == nullptr || process->paused()) return;
  SIM_TRACE(context_, "%s stands still", text_of(process->seat()).c_str());
  process->pause();
  context_.clock.after(context_.dice.spread(1'000, most_us), [this, process] {
    SIM_TRACE(context_, "%s goes on", text_of(process->seat()).c_str());
    process->resume();
  });
}

}  // namespace optlease
