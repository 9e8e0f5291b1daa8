// Collectives of a simulated node: what CollectiveWorker and the network between ranks are to an
// actor, in virtual time. A worker does one job at a time, in order; a call ends when every rank of
// its group has joined it, when its group is aborted, when a peer that died is noticed, or at its
// time limit. A reduction of a process that was killed may still write into the gradient segment
// until that process is reaped.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "actors/gpu_actor/collective_worker.h"
#include "tests/simulation/sim_node.h"

namespace optlease {

class SimMesh;

class SimWorker {
 public:
  // `poke`: an outcome is there. `is_final`: whether the rank's own shards of a step are final.
  // `reaped`: its process is gone.
  struct Owner {
    Rank rank;
    std::function<void()> poke;
    std::function<bool(Step step)> is_final;
    std::function<bool()> reaped;
  };
  SimWorker(SimContext& context, SimModel& model, SimNode& node, SimMesh& mesh, Owner owner);

  void connect(uint64_t group_epoch);
  void abort(uint64_t group_epoch);
  void fill_gradients(Step step, uint32_t attempt);
  void reduce(GoOrder order, int64_t updates_before);
  void gather(GoOrder order);
  // More of its own shards may be final.
  void feed();
  std::vector<WorkOutcome> take_outcomes() { return std::exchange(outcomes_, {}); }
  void die();
  // The call under way fails.
  void disturb();
  // Its process stands still: nothing ends meanwhile.
  void set_paused(bool paused);

 private:
  friend class SimMesh;
  struct Job {
    WorkOutcome::Kind kind = WorkOutcome::Kind::kConnected;
    GoOrder order;
    int64_t updates_before = 0;
    uint32_t attempt = 0;
    uint64_t number = 0;
    bool met = false;        // all ranks have joined: it ends by itself
    bool ends = false;       // its outcome is decided and on its way
    Attempts attempts = {};  // whose gradients a reduction sums
  };
  void post(Job job);
  void begin();
  void wait_for_peers();
  void meet(const Attempts& attempts);
  void fill();
  void write_shards(const Job& job, uint64_t words) const;
  void finish_reduce(uint64_t number);
  void finish_gather(uint64_t number);
  void end_later(uint64_t delay_us, Status status);
  void end(uint64_t number, const Status& status);
  bool is_current(uint64_t number) const { return job_ && job_->number == number; }
  bool waits_for(WorkOutcome::Kind kind, const GoOrder& order) const;

  SimContext& context_;
  SimModel& model_;
  SimNode& node_;
  SimMesh& mesh_;
  Owner owner_;
  bool alive_ = true, paused_ = false;
  uint64_t aborted_ = 0;
  uint64_t next_ = 1;
  std::deque<Job> jobs_;
  std::optional<Job> job_;
  std::vector<std::function<void()>> owed_;  // came while it was stopped
  std::vector<WorkOutcome> outcomes_;
};

// Who is in which call now.
class SimMesh {
 public:
  explicit SimMesh(SimContext& context) : context_(context), workers_(context.options.ranks) {}
  void join(SimWorker* worker) { workers_[worker->owner_.rank.value] = worker; }
  void leave(SimWorker* worker);
  // A rank has joined a call, or more of a gather's shards are final.
  void advance(const SimWorker& by);
  SimWorker* worker(uint32_t rank) const { return workers_[rank]; }

 private:
  void advance_gather(const GoOrder& order);

  SimContext& context_;
  std::vector<SimWorker*> workers_;  // by rank: of the process that lives; null: none
  // Of the newest gather: which ranks have sent what others need. They may be gone from it.
  uint64_t gather_group_ = 0;
  Step gather_step_ = kNoStep;
  std::set<uint32_t> sent_;
};

}  // namespace optlease
