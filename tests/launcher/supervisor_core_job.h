// A job without processes around SupervisorCore, as a small language: kill(seat), answer(step),
// advance_ms(n), and questions about what the core asked of its shell. For tests alone.
#pragma once

#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "launcher/supervisor_core.h"

namespace optlease {

using Kind = Action::Kind;

inline constexpr Seat kStore{Role::kHostStore, 0};
inline Seat actor(uint32_t rank) { return {Role::kGpuActor, rank}; }
inline Seat trainer(uint32_t rank) { return {Role::kTrainer, rank}; }

class CoreJob {
 public:
  explicit CoreJob(CoreOptions options) : options_(std::move(options)), core_(options_, now_) {
    tick();
  }

  static CoreOptions options(uint32_t world_size, bool trainers, int64_t steps = 10) {
    CoreOptions out;
    out.world_size = world_size;
    out.trainers = trainers;
    out.steps = steps;
    out.restart.intensity = 3;
    out.restart.period_ms = 1000;
    out.restart.backoff_ms = 20;
    out.restart.backoff_ms_max = 100;
    out.restart.start_timeout_ms = 500;
    out.restart.heartbeat_timeout_ms = 200;
    out.restart.stop_timeout_ms = 300;
    out.store_start_timeout_ms = 500;
    out.kill_wait_ms = 400;
    return out;
  }

  void tick() {
    core_.advance(now_);
    take();
  }
  void take() {
    for (Action& action : core_.take_actions()) all_.push_back(std::move(action));
  }
  void advance_ms(uint64_t ms) {
    now_ += ms;
    tick();
  }
  // Time that the launcher itself slept through: events come before its next turn.
  void pause_ms(uint64_t ms) { now_ += ms; }
  void phase(uint32_t rank, Phase phase) {
    phases_.resize(options_.world_size);
    phases_[rank] = phase;
  }
  // The store answers; every actor whose seat has a life is attached, unless `silent` says
  // otherwise.
  void answer(Step committed, Step open = kNoStep) {
    StoreFacts facts;
    facts.body.step_committed = committed;
    facts.body.step_open = open;
    facts.body.rank_count = options_.world_size;
    for (uint32_t r = 0; r < options_.world_size; ++r) {
      RankStatus rank{};
      rank.incarnation = core_.life(actor(r));
      rank.silent_ms = r < silent_.size() ? silent_[r] : 0;
      rank.phase = r < phases_.size() ? static_cast<uint32_t>(phases_[r]) : 0;
      facts.ranks.push_back(rank);
    }
    core_.store_answered(facts, now_);
    tick();
  }
  void close(Seat seat) {
    core_.lifeline_closed(seat, core_.life(seat), now_);
    take();
  }
  void reap(Seat seat, uint64_t life, ExitInfo info = {true, SIGKILL}, bool fatal = false) {
    core_.reaped(seat, life, info, fatal, now_);
    take();
  }
  void die(Seat seat, ExitInfo info = {true, SIGKILL}) {
    const uint64_t life = core_.life(seat);
    close(seat);
    reap(seat, life, info);
  }
  void start_all() {
    answer(kNoStep);
    answer(0);
    tick();
  }
  void silent(uint32_t rank, uint64_t ms) {
    silent_.resize(options_.world_size);
    silent_[rank] = ms;
  }

  size_t count(Kind kind, Seat seat) const {
    return static_cast<size_t>(std::count_if(all_.begin(), all_.end(), [&](const Action& a) {
      return a.kind == kind && a.seat == seat;
    }));
  }
  size_t position(Kind kind, Seat seat, uint64_t life) const {
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].kind == kind && all_[i].seat == seat && all_[i].life == life) return i;
    }
    return SIZE_MAX;
  }
  bool asked(Kind kind) const {
    return std::any_of(all_.begin(), all_.end(), [&](const Action& a) { return a.kind == kind; });
  }
  void forget() { all_.clear(); }
  const std::vector<Action>& actions() const { return all_; }
  SupervisorCore& core() { return core_; }
  uint64_t now() const { return now_; }

 private:
  uint64_t now_ = 1000;
  CoreOptions options_;
  SupervisorCore core_;
  std::vector<Action> all_;
  std::vector<uint64_t> silent_;
  std::vector<Phase> phases_;
};

}  // namespace optlease
