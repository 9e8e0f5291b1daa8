// A life of the launcher: the real SupervisorCore with what Supervisor does around it (launcher/
// supervisor*.cc): it hears of deaths and of the store, gives the core its time, and does what the
// core asks for.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tests/simulation/sim_link.h"
#include "tests/simulation/sim_process.h"

namespace optlease {

class SimLauncher final : public SimProcess {
 public:
  struct Setup {
    bool resumed = false;  // there was a state when it came
    CoreOptions core;
    std::function<bool()> state_is_ready;
    std::function<void(Seat seat, uint64_t life, bool create)> spawn;
    std::function<void(Seat seat, uint64_t life)> kill, terminate;
    std::function<void(std::string frame)> to_store;
    std::function<void()> finished;
  };
  SimLauncher(SimContext& context, uint64_t number, uint64_t life, Setup setup);

  void begin() override;
  // Its connection to the store of now; null before the first one was started.
  SimLink* link() { return links_.empty() ? nullptr : links_.back().get(); }
  void on_first_sign(Seat seat, uint64_t life);
  void on_reaped(Seat seat, uint64_t life, const ExitInfo& exit);
  void restart_on_purpose(Seat seat);
  void stop();
  const SupervisorCore& core() const { return *core_; }

 private:
  void on_death() override;
  void turn();
  void turn_later(uint64_t delay_us);
  void act();
  void execute(const Action& action);
  void spawn(const Action& action);
  void tell(MessageKind kind, const Action& action);
  void on_frame(const std::string& frame);

  Setup setup_;
  std::optional<SupervisorCore> core_;
  std::vector<std::unique_ptr<SimLink>> links_;  // one a life of the store
  uint64_t sequence_ = 0;
  uint64_t next_query_ms_ = 0;
  uint64_t timer_ = 0;
  bool store_was_up_ = false;
  bool finished_ = false;
};

}  // namespace optlease
