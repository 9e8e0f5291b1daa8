// The GPU actor's shell: sockets, clock, threads and buffers around the pure StepMachine and the
// WindowPipeline. One instance a process, one rank; run() is its event loop. It owns nothing that
// matters: kill it at any instant and the next incarnation goes on from the segment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/gpu_actor/collective_worker.h"
#include "actors/gpu_actor/device.h"
#include "actors/gpu_actor/group_failures.h"
#include "actors/gpu_actor/initial_state.h"
#include "actors/gpu_actor/rank_buffers.h"
#include "actors/gpu_actor/shard_feeder.h"
#include "actors/gpu_actor/step_log.h"
#include "actors/gpu_actor/step_machine.h"
#include "actors/gpu_actor/trainer_desk.h"
#include "actors/gpu_actor/window_pipeline.h"
#include "actors/runtime/child_args.h"
#include "actors/runtime/life_figures.h"
#include "actors/runtime/lifeline.h"
#include "actors/runtime/telemetry.h"
#include "shm/chunk_window.h"

namespace optlease {

class GpuActor final : public PipelinePort {
 public:
  // Opens everything; nothing is leased yet. The error says what is missing. `figures`, which
  // outlive the actor, are where it writes what it has done; null: nobody reads them.
  static Result<std::unique_ptr<GpuActor>> create(const ChildArgs& args, JobPlan plan,
                                                  const RunDirectory& directory, Lifeline lifeline,
                                                  LifeFigures* figures = nullptr);
  ~GpuActor() override;
  // Until the store says stop (kOk), the launcher is gone, or an error. Logs the reason.
  ExitCode run();

  // PipelinePort.
  void request_lease(Step step, uint32_t first_chunk, uint32_t chunk_count) override;
  void request_commit(const CommitRequestBody& body, const std::vector<SlotEntry>& shadow) override;
  void return_lease(uint64_t lease_id) override;
  void at_phase(RehearsePhase phase, Step step) override;
  bool keeps_last_commit(Step step) override;
  void corrupt_chunk(const CorruptChunkBody& body) override;

 private:
  GpuActor(const ChildArgs& args, JobPlan plan, const RunDirectory& directory, Lifeline lifeline);
  Status open_parts();
  Status open_device();
  Status open_window();
  Status open_buffers();
  Status open_step_log();
  uint64_t device_buffer_bytes();
  static bool told_to_end();
  Step step_to_finish() const;
  Result<SumsDigest> recorded_sums(Step step) const;
  bool sums_are_sound(Step step) const;
  Status check_sums_at_start(Step step);
  void begin_sums_check(Step step);
  void check_sums_some();
  void save_at_end();
  Status drain_at_end();
  void save_shards_at_end();
  void on_save_resident(Step step);
  void save_resident_some();
  void save_resident_at_end();
  ChunkFacts chunk_facts();

  // The loop.
  void wait_for_events();
  void turn();
  void say_hello();
  void heartbeat();
  void start(const NextAction& action);
  void start_run(const NextAction& action);
  void start_gather(const GoOrder& order);
  void feed_gather();
  void send_ready(Step step);
  void send_record(Step step);
  void take_trainer_requests();
  void tell_moments();
  bool is_rehearsed_here(uint32_t index, RehearsePhase phase, Step step) const;
  void take_worker_outcomes();
  void on_outcome(const WorkOutcome& outcome);
  void count_step(Step step);
  void check_deadlines();
  void publish_telemetry();
  void say_last_words();
  void account_phase_time();
  double exposed_gather_seconds() const;
  ActorTelemetry telemetry() const;
  DeskFacts desk_facts() const;
  void end(ExitCode code, const std::string& reason);
  void reattach(const char* why);

  // One handler a message of the store.
  void receive_from_store();
  void on_store_message(const Decoded& frame);
  void on_welcome(const Decoded& frame);
  void on_group_formed(const GroupBody& body);
  void on_group_broken(const GroupBody& body);
  void on_go(const Decoded& frame);
  void on_step_committed(const StepBody& body);
  void on_refused(const Decoded& frame);
  template <class Body>
  void send_to_store(MessageKind kind, const Body& body, std::string_view payload = {});

  // Constant after create.
  ChildArgs args_;
  JobPlan plan_;
  RunDirectory directory_;
  Rank rank_;
  ArenaSpec arena_;
  bool own_gradients_;

  Lifeline lifeline_;
  int worker_fd_ = -1;
  SocketContext context_;
  std::optional<Socket> store_;
  std::optional<TrainerDesk> desk_;
  std::optional<TelemetryPublisher> publisher_;
  std::unique_ptr<Device> device_;
  std::optional<ChunkWindow> window_;
  std::optional<RankBuffers> buffers_;
  std::optional<InitialState> initial_;
  std::unique_ptr<CollectiveWorker> worker_;
  std::optional<ShardFeeder> feeder_;
  std::unique_ptr<WindowPipeline> pipeline_;
  std::unique_ptr<StepMachine> machine_;

  uint64_t store_epoch_ = 0;
  uint64_t sequence_ = 0;
  int64_t hello_at_ms_ = 0;   // next hello
  uint64_t first_hello_ = 0;  // its sequence, since the streams were drained; 0: none yet
  int64_t detached_since_ms_ = 0;
  int64_t heartbeat_at_ms_ = 0;
  int64_t snapshots_at_ms_ = 0;
  std::vector<uint32_t> rehearsals_left_;
  Step computed_to_ = kNoStep;  // its last window was, by this incarnation, and that moment told
  Step answered_ = kNoStep;     // gathered, and its trainer told, by this incarnation
  Step finished_ = kNoStep;     // also committed
  int64_t keeps_commit_since_ms_ = 0;
  std::optional<StepRecord> computed_;   // the record in hand, until it is durable
  std::optional<ShardSums> sums_;        // of the shards, as this incarnation made or found them
  std::optional<SumsCheck> sums_check_;  // of what another incarnation left, under way
  StepOverrides overrides_;
  GroupFailures group_failures_;
  uint64_t failed_group_ = 0;  // whose collectives failed under windows
  int64_t failed_group_since_ms_ = 0;
  Step save_wanted_ =
      kNoStep;  // the committed step as of which the store wants resident slots saved
  std::optional<ExitCode> exit_code_;
  std::string exit_reason_;

  // For telemetry.
  LifeFigures own_figures_;
  LifeFigures* figures_ = &own_figures_;
  uint64_t refusals_ = 0;
  uint64_t steps_done_ = 0;
  uint64_t steps_skipped_ = 0;
  StepTimes step_times_;
  StepTimeline timeline_, last_timeline_;
  int64_t phase_since_us_ = 0;
  int64_t step_started_us_ = 0;
  uint64_t gather_begun_us_ = 0;
  double last_step_seconds_ = 0;
  DeviceCounters counters_at_run_;  // what was prefetched is not in the rates
  PipelineCounters waits_at_step_;  // when the last step was over
  double step_lease_wait_seconds_ = 0, step_stall_seconds_ = 0;
  double h2d_rate_ = 0, d2h_rate_ = 0;
  double last_grad_norm_;
  std::optional<StepLog> step_log_;
};

}  // namespace optlease
