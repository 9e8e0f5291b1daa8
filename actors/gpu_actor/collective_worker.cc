#include "actors/gpu_actor/collective_worker.h"

#include <unistd.h>

#include <cmath>

#include "kernels/adam_math.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

struct NormShare {
  double sum_squares;
  uint64_t nonfinite;
};

}  // namespace

float average_of(const JobPlan& plan, const SpaceSpec& space) {
  return plan.gradients.average ? 1.0f / static_cast<float>(space.members.size()) : 1.0f;
}

CollectiveWorker::CollectiveWorker(const JobPlan& plan, Rank rank, RankBuffers& buffers,
                                   std::unique_ptr<Collectives> collectives,
                                   std::unique_ptr<GradientMath> math, int completion_fd)
    : plan_(plan),
      rank_(rank),
      buffers_(buffers),
      collectives_(std::move(collectives)),
      math_(std::move(math)),
      completion_fd_(completion_fd) {
  if (plan.gradients.source != GradientSource::kTrainer) filler_.emplace(plan, rank, math_.get());
  thread_ = std::thread([this] { run(); });
}

CollectiveWorker::~CollectiveWorker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  more_.notify_all();
  abort(UINT64_MAX);
  math_->stop();
  thread_.join();
  collectives_.reset();  // before the math frees memory: that waits for all of the device
}

void CollectiveWorker::abort(uint64_t group_epoch) {
  uint64_t before = aborted_epoch_.load();
  while (before < group_epoch && !aborted_epoch_.compare_exchange_weak(before, group_epoch)) {
  }
  collectives_->abort(group_epoch);
  feed_.look_now();
}

void CollectiveWorker::run() {
  while (true) {
    std::function<WorkOutcome()> job;
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    WorkOutcome outcome = job();
    {
      std::lock_guard lock(mutex_);
      outcomes_.push_back(std::move(outcome));
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(completion_fd_, &one, sizeof one);
  }
}

void CollectiveWorker::post(std::function<WorkOutcome()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  more_.notify_all();
}

std::vector<WorkOutcome> CollectiveWorker::take_outcomes() {
  std::lock_guard lock(mutex_);
  return std::exchange(outcomes_, {});
}

void CollectiveWorker::connect(uint64_t group_epoch) {
  post([this, group_epoch] {
    WorkOutcome outcome{.kind = WorkOutcome::Kind::kConnected, .group_epoch = group_epoch};
    outcome.status = collectives_->connect(group_epoch, rank_, plan_.segment.world_size,
                                           plan_.gradients.collective_timeout_ms);
    KILL_POINT("collective.connected");
    return outcome;
  });
}

void CollectiveWorker::fill_gradients(Step step) {
  OPTLEASE_CHECK(filler_.has_value(), "the trainer fills step %lld", static_cast<long long>(step));
  post([this, step] {
    WorkOutcome outcome{.kind = WorkOutcome::Kind::kFilled, .step = step};
    for (RankSpace& mine : buffers_.spaces()) {
      if (!outcome.status.is_ok()) break;
      outcome.status = filler_->fill(step, mine.space, mine.grads.data());
    }
    KILL_POINT("gradients.filled");
    return outcome;
  });
}

void CollectiveWorker::reduce(GoOrder order, StepOverrides overrides, int64_t updates_before) {
  post([this, order = std::move(order), overrides, updates_before] {
    WorkOutcome outcome{
        .kind = WorkOutcome::Kind::kReduced, .group_epoch = order.group_epoch, .step = order.step};
    outcome.sums.step = order.step;
    KILL_POINT("collective.reduce_begun");
    outcome.status = reduce_spaces(order);
    KILL_POINT("collective.reduced");
    if (!outcome.status.is_ok()) return outcome;
    const Result<GradStats> mine = sum_up(overrides.grad_scale, &outcome.sums);
    outcome.status = mine.status();
    KILL_POINT("checksum.summed");
    if (!outcome.status.is_ok()) return outcome;
    outcome.status = make_record(order, overrides, updates_before, mine.value(), &outcome.record);
    // Before anybody can know the record, and so before the step can open.
    if (outcome.status.is_ok() && plan_.gradients.durable) {
      outcome.status = buffers_.save_shards(outcome.sums.digest());
    }
    return outcome;
  });
}

// This rank's share of the norm, and the checksums of its chunks: one reading of its shards, the
// first that the sums get.
Result<GradStats> CollectiveWorker::sum_up(double grad_scale, ShardSums* sums) {
  GradStats share;
  for (const RankSpace& mine : buffers_.spaces()) {
    if (mine.shard.size() == 0) continue;
    const SpaceSpec& space = plan_.segment.spaces[mine.space];
    const float scale = average_of(plan_, space) / static_cast<float>(grad_scale);
    const uint64_t chunks = (mine.shard.size() + space.chunk_elements - 1) / space.chunk_elements;
    std::vector<uint64_t> of_chunk(chunks);
    const GradSums into{of_chunk.data(), space.chunk_elements, 0, mine.first_word};
    const Result<GradStats> stats =
        math_->stats(mine.grad_shard, mine.shard.begin, mine.shard.size(), scale, into);
    if (!stats.is_ok()) return stats.status();
    share.sum_squares += stats.value().sum_squares;
    share.nonfinite += stats.value().nonfinite;
    sums->of_chunk.insert(sums->of_chunk.end(), of_chunk.begin(), of_chunk.end());
  }
  return share;
}

Status CollectiveWorker::reduce_spaces(const GoOrder& order) {
  for (RankSpace& mine : buffers_.spaces()) {
    const SpaceSpec& space = plan_.segment.spaces[mine.space];
    const ShardMap map = shard_map_of(space);
    const std::vector<uint8_t> needs = needs_of_members(space, order.needs);
    ReduceScatterCall call;
    call.tag = {order.step, mine.space};
    call.map = &map;
    call.needs = needs;
    call.grad_dtype = space.grad_dtype;
    call.grads = mine.grads.data();
    call.shard_out = mine.grad_shard;
    OPTLEASE_TRY(collectives_->reduce_scatter(call));
  }
  return Status::ok();
}

// Every rank computes the same record from the same numbers: partial sums in rank order.
Status CollectiveWorker::make_record(const GoOrder& order, const StepOverrides& overrides,
                                     int64_t updates_before, const GradStats& mine,
                                     StepRecord* record) {
  const NormShare share{mine.sum_squares, mine.nonfinite};
  std::vector<NormShare> shares(plan_.segment.world_size);
  OPTLEASE_TRY(
      collectives_->all_gather_fixed({order.step, 0}, &share, sizeof share, shares.data()));
  double sum_squares = 0;
  uint64_t nonfinite = 0;
  for (const NormShare& each : shares) {
    sum_squares += each.sum_squares;
    nonfinite += each.nonfinite;
  }
  const double norm = std::sqrt(sum_squares);
  const double max_norm =
      std::isnan(overrides.max_norm) ? plan_.gradients.max_norm : overrides.max_norm;
  *record = StepRecord{};
  record->step = order.step;
  record->skipped = nonfinite > 0 || !std::isfinite(norm) ? 1 : 0;
  const double clip = record->skipped ? 0 : clip_coefficient(norm, max_norm);
  record->update_count = updates_before + (record->skipped ? 0 : 1);
  record->group_count = static_cast<uint32_t>(plan_.optimizer.groups.size());
  for (uint32_t g = 0; g < record->group_count; ++g) {
    record->groups[g] = plan_.optimizer.groups[g];
    if (std::isnan(overrides.lr)) continue;
    const double base = plan_.optimizer.lr;
    record->groups[g].lr = base > 0 ? overrides.lr * (record->groups[g].lr / base) : overrides.lr;
  }
  // One bit pattern for "not a number", so that ranks' records are equal byte for byte.
  record->grad_norm = std::isnan(norm) ? std::nan("") : norm;
  record->grad_coefficient = static_cast<float>(clip / overrides.grad_scale);
  record->checksum = checksum_of(*record);
  return Status::ok();
}

void CollectiveWorker::gather(GoOrder order) {
  post([this, order = std::move(order)] {
    WorkOutcome outcome{
        .kind = WorkOutcome::Kind::kGathered, .group_epoch = order.group_epoch, .step = order.step};
    KILL_POINT("collective.gather_begun");
    outcome.status = gather_spaces(order);
    KILL_POINT("collective.gathered");
    return outcome;
  });
}

Status CollectiveWorker::gather_spaces(const GoOrder& order) {
  for (RankSpace& mine : buffers_.spaces()) {
    const SpaceSpec& space = plan_.segment.spaces[mine.space];
    const ShardMap map = shard_map_of(space);
    const std::vector<uint8_t> needs = needs_of_members(space, order.needs);
    AllGatherCall call;
    call.tag = {order.step, mine.space};
    call.map = &map;
    call.needs = needs;
    call.param_dtype = space.param_dtype;
    call.params = mine.params.data();
    call.feed = &feed_;
    OPTLEASE_TRY(collectives_->all_gather(call));
  }
  // Nobody may have been in need of this rank's shards, and still it has the step only with them.
  const auto check = [&] {
    return aborted_epoch_.load() < order.group_epoch
               ? Status::ok()
               : Status(StatusCode::kCancelled, "the group was aborted");
  };
  for (const RankSpace& mine : buffers_.spaces()) {
    OPTLEASE_TRY(
        feed_.await(mine.space, mine.shard.end, plan_.gradients.collective_timeout_ms, check));
  }
  return Status::ok();
}

}  // namespace optlease
