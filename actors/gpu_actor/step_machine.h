// What a GPU actor does next. Pure: facts come in (from store, trainer, pipeline, collectives),
// `next` says what to start now. It holds no socket, clock, mapping or stream; the shell is
// gpu_actor.h. docs/PROTOCOL.md, "One step", is the story; this is the actor's half of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "actors/gpu_actor/window_pipeline.h"
#include "shm/contract/ids.h"
#include "shm/contract/messages.h"

namespace optlease {

// What the machine must know about the rank's chunks; read from the control segment and the
// pipeline.
struct ChunkFacts {
  // Chunks whose committed version is below `step`.
  std::function<std::vector<uint32_t>(Step step)> behind;
  // Chunks whose parameters in the buffer are not those of `step`.
  std::function<std::vector<uint32_t>(Step step)> unpublished;
  // Whether the durable record of `step` says that it is skipped.
  std::function<bool(Step step)> skipped;
  // Whether the summed gradients of open step `step` are known to be those that were recorded.
  std::function<bool(Step step)> sums_are_sound;
};

struct GoOrder {
  bool gather = false;
  uint64_t group_epoch = 0;
  Step step = kNoStep;
  std::vector<uint8_t> needs;  // one byte a rank
};

struct NextAction {
  enum class Kind {
    kStartRun,       // run, step, chunks
    kPrefetch,       // step, chunks: the first windows of the update run to come
    kEndPrefetch,    // it comes to nothing
    kCheckSums,      // step: its update run starts once sums_are_sound says so
    kFillGradients,  // step
    kSendReady,      // step
    kSendRecord,     // step
    kRunCollective,  // order
  };
  Kind kind;
  RunKind run = RunKind::kUpdate;
  Step step = kNoStep;
  std::vector<uint32_t> chunks;
  GoOrder order;
};

class StepMachine {
 public:
  StepMachine(int64_t steps, bool own_gradients, ChunkFacts facts)
      : steps_(steps), own_gradients_(own_gradients), facts_(std::move(facts)) {}

  // From the store.
  void on_welcome(Step committed, Step open);
  void on_group_formed(uint64_t group_epoch);
  void on_group_broken(uint64_t group_epoch);
  void on_order(GoOrder order);
  void on_step_open(Step step);
  void on_step_committed(Step step);
  // The store is gone or calls us stale: nothing is started until the next welcome.
  void on_detached() {
    attached_ = false;
    order_.reset();
    prefetching_ = kNoStep;
  }

  // From the trainer, the gradient source, the collectives thread, the pipeline.
  // The gradients of `step` are complete. REQUIRES: step == committed() + 1.
  void on_gradients(Step step) {
    gradients_of_ = step;
    filling_ = kNoStep;
  }
  // The trainer is computing the gradients of `step`; kNoStep: of none that it told of.
  void on_prepare(Step step) { prepared_ = step; }
  void on_reduced(uint64_t group_epoch, Step step);
  void on_gathered(uint64_t group_epoch, Step step);
  void on_collective_failed() { collective_busy_ = gathering_ = false; }
  void on_run_over() { running_ = false; }
  // Every window of the run under way is computed: only copies out and commits are left of it.
  void on_run_computed() { run_computed_ = true; }

  // What to start now; never the same thing twice. Ready and record are repeated until answered.
  std::vector<NextAction> next(uint64_t now_ms);

  Step committed() const { return committed_; }
  Step open() const { return open_; }
  Step published() const { return published_; }
  // A gather is under way.
  bool gathering() const { return gathering_; }
  uint64_t group_epoch() const { return group_epoch_; }
  bool attached() const { return attached_; }
  // No step of this rank is under way: a trainer may attach and compute gradients.
  bool quiet() const;
  Phase phase() const;

 private:
  void forget_reduction();
  void next_prefetch(std::vector<NextAction>* out);
  void next_run(std::vector<NextAction>* out);
  void next_check(std::vector<NextAction>* out);
  void next_gradients(uint64_t now_ms, std::vector<NextAction>* out);
  void next_collective(std::vector<NextAction>* out);

  // Constant after construction.
  int64_t steps_;
  bool own_gradients_;
  ChunkFacts facts_;
  // Told by the store.
  bool attached_ = false;
  Step committed_ = kNoStep;
  Step open_ = kNoStep;
  uint64_t group_epoch_ = 0;      // 0: no group
  std::optional<GoOrder> order_;  // not started yet
  // Our own progress.
  Step published_ = kNoStep;
  Step gradients_of_ = kNoStep;
  Step filling_ = kNoStep;
  Step reduced_ = kNoStep;      // its record is computed and not yet known to be durable
  bool reduce_seen_ = false;    // GoReduce came: Ready was heard
  Step prepared_ = kNoStep;     // its gradients are coming
  Step prefetching_ = kNoStep;  // the pipeline holds its first windows
  Step checking_ = kNoStep;     // its sums are being read through, or were
  bool running_ = false;        // a pipeline run
  bool run_computed_ = false;
  bool collective_busy_ = false;
  bool gathering_ = false;
  uint64_t ask_again_ms_ = 0;
};

}  // namespace optlease
