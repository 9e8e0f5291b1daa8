// The actor's second thread: what may block for long (connecting a group, collectives, filling
// gradients) runs here in order, so that heartbeats, leases and telemetry go on meanwhile. The
// actor's thread posts jobs and collects outcomes; it alone may abort a group.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "actors/gpu_actor/collectives.h"
#include "actors/gpu_actor/gradient_math.h"
#include "actors/gpu_actor/gradient_source.h"
#include "actors/gpu_actor/rank_buffers.h"
#include "actors/gpu_actor/shard_sums.h"
#include "actors/gpu_actor/step_machine.h"
#include "actors/runtime/job_plan.h"

namespace optlease {

// What the trainer asked for beyond the configuration.
struct StepOverrides {
  double lr = std::numeric_limits<double>::quiet_NaN();  // NaN: as configured
  double grad_scale = 1;
  double max_norm = std::numeric_limits<double>::quiet_NaN();  // NaN: as configured
};

struct WorkOutcome {
  enum class Kind { kConnected, kReduced, kGathered, kFilled };
  Kind kind = Kind::kConnected;
  uint64_t group_epoch = 0;
  Step step = kNoStep;
  Status status;
  StepRecord record{};  // kReduced
  ShardSums sums;       // kReduced: of this rank's shards
};

class CollectiveWorker {
 public:
  // Everything given by reference outlives the worker. Collectives and math are those of the
  // device whose memory the buffers are.
  CollectiveWorker(const JobPlan& plan, Rank rank, RankBuffers& buffers,
                   std::unique_ptr<Collectives> collectives, std::unique_ptr<GradientMath> math,
                   int completion_fd);
  ~CollectiveWorker();  // aborts every group, drops what is queued, stops the math, joins

  void connect(uint64_t group_epoch);
  void abort(uint64_t group_epoch);
  void fill_gradients(Step step);
  // `updates_before`: optimizer updates applied up to the previous step.
  void reduce(GoOrder order, StepOverrides overrides, int64_t updates_before);
  // Its outcome is ok once the others' parameters are there and the feed says that this rank's own
  // shards are final. REQUIRES: feed().begin() was called for it, and no gather is under way.
  void gather(GoOrder order);
  GatherFeed& feed() { return feed_; }

  // Outcomes since the last call; never blocks. completion_fd was written for each.
  std::vector<WorkOutcome> take_outcomes();

 private:
  void run();
  void post(std::function<WorkOutcome()> job);
  Status reduce_spaces(const GoOrder& order);
  Status gather_spaces(const GoOrder& order);
  Status make_record(const GoOrder& order, const StepOverrides& overrides, int64_t updates_before,
                     const GradStats& mine, StepRecord* record);
  Result<GradStats> sum_up(double grad_scale, ShardSums* sums);

  const JobPlan& plan_;
  Rank rank_;
  RankBuffers& buffers_;
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<GradientMath> math_;
  int completion_fd_;
  std::optional<GradientFiller> filler_;  // none: the trainer fills the buffers
  GatherFeed feed_;
  std::atomic<uint64_t> aborted_epoch_{0};
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::function<WorkOutcome()>> jobs_;  // guarded by mutex_
  std::vector<WorkOutcome> outcomes_;              // guarded by mutex_
  bool stopping_ = false;                          // guarded by mutex_
  std::thread thread_;
};

// The averaging factor of a space: 1 / members, or 1.
float average_of(const JobPlan& plan, const SpaceSpec& space);

}  // namespace optlease
