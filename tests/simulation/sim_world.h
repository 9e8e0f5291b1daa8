// A node with a job: its processes, their deaths, and what goes wrong with them. One seed makes one
// world; run() takes it to the end of its job, through as many lives of the launcher as it takes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/sim_actor.h"
#include "tests/simulation/sim_launcher.h"
#include "tests/simulation/sim_store.h"
#include "tests/simulation/sim_trainer.h"

namespace optlease {

class SimWorld {
 public:
  explicit SimWorld(const SimOptions& options, bool traced = false);
  ~SimWorld();

  // Empty, or the first rule that was found broken, with the event at which it was.
  std::string run();
  uint64_t events() const { return context_.clock.events(); }
  uint64_t virtual_us() const { return context_.clock.now_us() - SimClock::kStartUs; }
  uint64_t deaths() const { return deaths_; }
  uint64_t messages() const { return messages_; }
  const SimLedger& ledger() const { return ledger_; }

 private:
  // sim_world.cc: processes.
  void start_launcher();
  void spawn(Seat seat, uint64_t life, bool create);
  void end_process(SimProcess* process, const ExitInfo& exit);
  void on_launcher_death();
  void resume_when_all_are_gone();
  void on_finished();
  std::unique_ptr<SimProcess> make(Seat seat, uint64_t life, bool create);
  std::unique_ptr<SimProcess> make_store(uint64_t life, bool create);
  std::unique_ptr<SimProcess> make_actor(uint32_t rank, uint64_t life);
  std::unique_ptr<SimProcess> make_trainer(uint32_t rank, uint64_t life);
  void store_listens(uint64_t number);
  void actor_listens(uint32_t rank, uint64_t number);
  void send_from_store(const std::string& peer, std::string frame);
  // Who lives in the seat; null: nobody.
  template <class Process>
  Process* living(Seat seat) const;
  SimStore* store() const { return living<SimStore>({Role::kHostStore, 0}); }
  SimActor* actor(uint32_t rank) const { return living<SimActor>({Role::kGpuActor, rank}); }
  SimTrainer* trainer(uint32_t rank) const { return living<SimTrainer>({Role::kTrainer, rank}); }

  // sim_faults.cc: what goes wrong.
  void maybe_fault();
  void fault();
  void kill(SimProcess* process);
  void pause(SimProcess* process, uint64_t most_us);
  void kill_many();
  void arm_store();

  SimContext context_;
  SimModel model_;
  SimNode node_;
  SimLedger ledger_;
  SimMesh mesh_;
  SimPlace place_;
  // Every process that there ever was: events may still name it.
  std::vector<std::unique_ptr<SimProcess>> processes_;  // by number - 1
  std::map<Seat, SimProcess*> seats_;                   // the newest process of each
  std::map<std::string, SimActor*> actors_;             // by the name of their connections
  SimLauncher* launcher_ = nullptr;
  uint64_t launcher_life_ = 0;
  bool done_ = false;
  bool asked_to_stop_ = false;
  uint64_t calm_since_us_ = 0;  // no fault comes after this; 0: they go on
  uint64_t deaths_ = 0;
  uint64_t messages_ = 0;  // that reached the store or left it
};

template <class Process>
Process* SimWorld::living(Seat seat) const {
  const auto found = seats_.find(seat);
  if (found == seats_.end() || !found->second->alive()) return nullptr;
  return static_cast<Process*>(found->second);
}

}  // namespace optlease
