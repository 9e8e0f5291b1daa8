// A life of a GPU actor: the real StepMachine, WindowPipeline and TrainerRequests over a simulated
// device and simulated collectives. What stands here is GpuActor's part (actors/gpu_actor/
// gpu_actor*.cc): its turn, its handlers, its deadlines; modelled, for that class owns sockets and
// threads. Keep the two alike.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/gpu_actor/group_failures.h"
#include "actors/gpu_actor/shard_sums.h"
#include "actors/gpu_actor/step_machine.h"
#include "actors/gpu_actor/trainer_requests.h"
#include "actors/runtime/exit_code.h"
#include "tests/simulation/sim_collectives.h"
#include "tests/simulation/sim_device.h"
#include "tests/simulation/sim_ledger.h"
#include "tests/simulation/sim_link.h"
#include "tests/simulation/sim_process.h"

namespace optlease {

// Parts of a node that an actor works with.
struct SimPlace {
  SimModel& model;
  SimNode& node;
  SimMesh& mesh;
  SimLedger& ledger;
};

class SimActor final : public SimProcess, public PipelinePort {
 public:
  struct Setup {
    std::function<void()> listens;                        // its trainer can reach it from here on
    std::function<void(const std::string& frame)> hears;  // of the store, its frames
    std::function<void(const std::string& peer, std::string frame)> to_trainer;
  };
  SimActor(SimContext& context, const SimPlace& place, uint64_t number, uint32_t rank,
           uint64_t incarnation, Setup setup);

  void begin() override;
  // Its connection to the store.
  SimLink& link() { return link_; }
  const std::string& peer() const { return peer_; }
  // Its trainer can reach it.
  bool listens() const { return opened_; }
  void on_trainer_frame(const std::string& peer, std::string frame);

  // PipelinePort.
  void request_lease(Step step, uint32_t first_chunk, uint32_t chunk_count) override;
  void request_commit(const CommitRequestBody& body, const std::vector<SlotEntry>& shadow) override;
  void return_lease(uint64_t lease_id) override;
  void at_phase(RehearsePhase, Step) override {}
  bool keeps_last_commit(Step) override { return false; }
  void corrupt_chunk(const CorruptChunkBody& body) override;

 private:
  void on_death() override;
  void on_pause() override;
  void on_resume() override;

  void open_parts();
  void check_sums_at_start();
  ChunkFacts chunk_facts();
  Step step_to_finish() const;
  std::vector<GradRange> chunk_gradients();
  SumsDigest recorded_sums(Step step);
  bool sums_are_sound(Step step);
  bool is_final(Step step) const;
  const ControlView& view() const { return window_->view(); }

  // The loop.
  void poke();
  void turn();
  void turn_later(uint64_t delay_us);
  void take_trainer_requests();
  void answer_trainer();
  void take_outcomes();
  void on_outcome(const WorkOutcome& outcome);
  void start(const NextAction& action);
  void start_run(const NextAction& action);
  void begin_sums_check(Step step);
  void check_sums_some();
  void say_hello();
  void heartbeat();
  void check_deadlines();
  void reattach(const char* why);
  void end(ExitCode code, const std::string& reason);
  DeskFacts desk_facts() const;
  void send_ready(Step step);
  void send_record(Step step);

  // sim_actor_messages.cc: one handler a message of the store.
  void on_store_message(const Decoded& frame);
  void on_welcome(const Decoded& frame);
  void on_group_formed(const GroupBody& body);
  void on_group_broken(const GroupBody& body);
  void on_go(const Decoded& frame);
  void on_step_committed(const StepBody& body);
  void on_refused(const Decoded& frame);
  template <class Body>
  void send(MessageKind kind, const Body& body, std::string_view payload = {}) {
    link_.send(
        encode(Speaker{rank_.value, life(), store_epoch_}, kind, ++sequence_, body, payload));
  }

  SimPlace place_;
  const Rank rank_;
  const std::string peer_;
  Setup setup_;
  SimLink link_;
  std::deque<std::string> inbox_;
  std::deque<std::pair<std::string, std::string>> desk_inbox_;  // peer, frame
  bool turns_soon_ = false;
  uint64_t timer_ = 0;

  std::optional<SimDevice> device_;
  std::optional<ChunkWindow> window_;
  std::optional<SimWorker> worker_;
  std::optional<WindowPipeline> pipeline_;
  std::optional<StepMachine> machine_;
  std::optional<TrainerRequests> desk_;
  bool opened_ = false;
  std::optional<ExitCode> exit_code_;

  uint64_t store_epoch_ = 0;
  uint64_t sequence_ = 0;
  uint64_t hello_at_ms_ = 0;
  uint64_t first_hello_ = 0;
  uint64_t detached_since_ms_ = 0;
  uint64_t heartbeat_at_ms_ = 0;
  uint64_t failed_group_ = 0;
  uint64_t failed_group_since_ms_ = 0;
  GroupFailures group_failures_;
  std::optional<StepRecord> computed_;
  std::optional<ShardSums> sums_;
  std::optional<SumsCheck> sums_check_;
};

}  // namespace optlease
