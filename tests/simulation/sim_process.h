// A process of a simulated node, whatever it runs: its seat, its life, whether it can still do
// anything, and what it does when it stands still.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "launcher/supervisor_core.h"
#include "tests/simulation/sim_context.h"

namespace optlease {

class SimProcess {
 public:
  SimProcess(SimContext& context, uint64_t number, Seat seat, uint64_t life)
      : context_(context), number_(number), seat_(seat), life_(life) {}
  virtual ~SimProcess() = default;
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  // Its program begins.
  virtual void begin() = 0;
  // SIGTERM. False: it has no handler and dies of it.
  virtual bool terminate() { return false; }

  uint64_t number() const { return number_; }
  Seat seat() const { return seat_; }
  uint64_t life() const { return life_; }
  bool alive() const { return alive_; }
  bool paused() const { return paused_; }
  bool gone() const { return gone_; }  // reaped: the kernel holds nothing of it
  const ExitInfo& exit() const { return exit_; }

  // It ends now, and is reaped after `reaped_us`. What the kernel and the driver still do for it
  // goes on.
  void die(const ExitInfo& exit, uint64_t reaped_us) {
    if (!alive_) return;
    alive_ = false;
    exit_ = exit;
    reaped_us_ = reaped_us;
    waiting_.clear();
    on_death();
  }
  void set_gone() { gone_ = true; }
  // SIGSTOP and SIGCONT. What comes meanwhile waits.
  void pause() {
    if (!alive_ || paused_) return;
    paused_ = true;
    on_pause();
  }
  void resume() {
    if (!alive_ || !paused_) return;
    paused_ = false;
    on_resume();
    while (alive_ && !paused_ && !waiting_.empty()) {
      const auto next = std::move(waiting_.front());
      waiting_.pop_front();
      next();
    }
  }
  // Set by the world: told when the process ends by itself.
  std::function<void(const ExitInfo&)> ends_itself;

 protected:
  virtual void on_death() = 0;
  virtual void on_pause() {}
  virtual void on_resume() {}
  // Now, or once it goes on; never where it is dead.
  void run(std::function<void()> what) {
    if (!alive_) return;
    if (paused_) return waiting_.push_back(std::move(what));
    what();
  }
  void run_after(uint64_t delay_us, std::function<void()> what) {
    context_.clock.after(delay_us,
                         [this, what = std::move(what)]() mutable { run(std::move(what)); });
  }
  void leave(int code) { ends_itself(ExitInfo{false, code}); }
  uint64_t reaped_us() const { return reaped_us_; }

  SimContext& context_;

 private:
  const uint64_t number_;
  const Seat seat_;
  const uint64_t life_;
  bool alive_ = true, paused_ = false, gone_ = false;
  ExitInfo exit_;
  uint64_t reaped_us_ = 0;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace optlease
