#include "tests/simulation/sim_collectives.h"

#include <algorithm>
#include <utility>

namespace optlease {
namespace {

using Kind = WorkOutcome::Kind;

}  // namespace

SimWorker::SimWorker(SimContext& context, SimModel& model, SimNode& node, SimMesh& mesh,
                     Owner owner)
    : context_(context), model_(model), node_(node), mesh_(mesh), owner_(std::move(owner)) {
  mesh_.join(this);
}

void SimWorker::connect(uint64_t group_epoch) {
  post({.kind = Kind::kConnected, .order = {.group_epoch = group_epoch}});
}

void SimWorker::fill_gradients(Step step, uint32_t attempt) {
  post({.kind = Kind::kFilled, .order = {.step = step}, .attempt = attempt});
}

void SimWorker::reduce(GoOrder order, int64_t updates_before) {
  post({.kind = Kind::kReduced, .order = std::move(order), .updates_before = updates_before});
}

void SimWorker::gather(GoOrder order) {
  post({.kind = Kind::kGathered, .order = std::move(order)});
}

void SimWorker::post(Job job) {
  job.number = next_++;
  jobs_.push_back(std::move(job));
  begin();
}

void SimWorker::begin() {
  if (job_ || jobs_.empty() || !alive_) return;
  job_ = std::move(jobs_.front());
  jobs_.pop_front();
  if (job_->kind == Kind::kFilled) return end_later(context_.dice.spread(50, 20'000), {});
  if (job_->order.group_epoch <= aborted_) {
    return end_later(5, {StatusCode::kCancelled, "the group was aborted"});
  }
  wait_for_peers();
}

void SimWorker::wait_for_peers() {
  const uint64_t number = job_->number;
  context_.clock.after(context_.options.collective_timeout_ms * 1000, [this, number] {
    const bool late = alive_ && is_current(number) && !job_->ends;
    if (late) end_later(1, {StatusCode::kTimeout, "a peer did not come"});
  });
  mesh_.advance(*this);
}

bool SimWorker::waits_for(WorkOutcome::Kind kind, const GoOrder& order) const {
  return alive_ && job_ && !job_->ends && job_->kind == kind && job_->order.step == order.step &&
         job_->order.group_epoch == order.group_epoch;
}

void SimWorker::feed() {
  if (alive_ && job_ && job_->kind == Kind::kGathered) mesh_.advance(*this);
}

void SimWorker::abort(uint64_t group_epoch) {
  aborted_ = std::max(aborted_, group_epoch);
  if (!job_ || job_->ends || job_->kind == Kind::kFilled) return;
  if (job_->order.group_epoch > aborted_) return;
  end_later(context_.dice.spread(1, 5'000), {StatusCode::kCancelled, "the group was aborted"});
}

// A peer may notice, or wait until its group is aborted.
void SimWorker::die() {
  alive_ = false;
  owed_.clear();
  mesh_.leave(this);
}

// What its network brings: a connection is reset.
void SimWorker::disturb() {
  const bool in_call = alive_ && job_ && !job_->ends && job_->kind != Kind::kFilled;
  if (in_call) end_later(1, {StatusCode::kPeerLost, "a connection was reset"});
}

void SimWorker::set_paused(bool paused) {
  paused_ = paused;
  if (paused) return;
  for (const auto& what : std::exchange(owed_, {})) what();
}

// Every rank of the group is in this call.
void SimWorker::meet(const Attempts& attempts) {
  job_->met = true;
  job_->attempts = attempts;
  const uint64_t number = job_->number;
  const uint64_t delay_us = context_.dice.spread(20, 8'000);
  if (job_->kind == Kind::kConnected) return end_later(delay_us, {});
  context_.clock.after(delay_us, [this, number] { finish_reduce(number); });
}

void SimWorker::write_shards(const Job& job, uint64_t words) const {
  SimRankMemory& memory = node_.ranks[owner_.rank.value];
  memory.summed_attempts = job.attempts;
  for (uint32_t s = 0; s < memory.shards.size(); ++s) {
    const std::vector<float> summed = model_.summed(job.order.step, job.attempts, s, owner_.rank);
    const uint64_t count = std::min<uint64_t>(words, summed.size());
    std::copy_n(summed.begin(), count, memory.shards[s].begin());
    words -= count;
  }
}

void SimWorker::finish_reduce(uint64_t number) {
  if (!is_current(number) || owner_.reaped()) return;
  if (!alive_) {
    // A dead process' system call: some of what it was receiving.
    if (context_.dice.one_in(2)) write_shards(*job_, 1 + context_.dice.below(150));
    return;
  }
  if (job_->ends) return;  // aborted meanwhile
  if (paused_) return owed_.push_back([this, number] { finish_reduce(number); });
  write_shards(*job_, UINT64_MAX);
  end_later(context_.dice.spread(5, 2'000), {});
}

void SimWorker::finish_gather(uint64_t number) {
  if (!alive_ || !is_current(number) || job_->ends) return;
  if (paused_) return owed_.push_back([this, number] { finish_gather(number); });
  const GoOrder& order = job_->order;
  for (uint32_t r = 0; r < node_.ranks.size() && order.needs[owner_.rank.value] != 0; ++r) {
    if (r == owner_.rank.value) continue;
    for (uint32_t s = 0; s < context_.plan.spaces.size(); ++s) {
      std::vector<float>& mine = node_.ranks[owner_.rank.value].params[s];
      const ElementRange shard = shard_of(context_.plan, s, Rank{r});
      if (mine.empty() || shard.size() == 0) continue;
      std::copy_n(node_.ranks[r].params[s].begin() + static_cast<int64_t>(shard.begin),
                  shard.size(), mine.begin() + static_cast<int64_t>(shard.begin));
    }
  }
  end_later(1, {});
}

void SimWorker::end_later(uint64_t delay_us, Status status) {
  job_->ends = true;
  const uint64_t number = job_->number;
  context_.clock.after(delay_us,
                       [this, number, status = std::move(status)] { end(number, status); });
}

void SimWorker::end(uint64_t number, const Status& status) {
  if (!alive_ || !is_current(number)) return;
  if (paused_) return owed_.push_back([this, number, status] { end(number, status); });
  WorkOutcome outcome{.kind = job_->kind,
                      .group_epoch = job_->order.group_epoch,
                      .step = job_->order.step,
                      .status = status};
  if (status.is_ok() && job_->kind == Kind::kReduced) {
    outcome.record = model_.record_of(job_->order.step, job_->attempts, job_->updates_before);
    outcome.sums = model_.sums_of(job_->order.step, job_->attempts, owner_.rank);
  } else if (job_->kind == Kind::kFilled) {
    SimRankMemory& memory = node_.ranks[owner_.rank.value];
    memory.grads_step = job_->order.step;
    memory.grads_attempt = job_->attempt;
  }
  job_.reset();
  outcomes_.push_back(std::move(outcome));
  owner_.poke();
  begin();
}

void SimMesh::leave(SimWorker* worker) {
  const uint32_t rank = worker->owner_.rank.value;
  if (workers_[rank] != worker) return;
  workers_[rank] = nullptr;
  for (SimWorker* other : workers_) {
    const bool in_call =
        other != nullptr && other->job_ && !other->job_->ends && other->job_->kind != Kind::kFilled;
    if (!in_call || context_.dice.one_in(3)) continue;  // it hangs, or has what it needs
    other->end_later(context_.dice.spread(50, 50'000), {StatusCode::kPeerLost, "a peer died"});
  }
}

void SimMesh::advance(const SimWorker& by) {
  const SimWorker::Job& job = *by.job_;
  if (job.kind == Kind::kGathered) return advance_gather(job.order);
  const GoOrder order = job.order;
  const Kind kind = job.kind;
  Attempts attempts;
  for (uint32_t r = 0; r < workers_.size(); ++r) {
    if (workers_[r] == nullptr || !workers_[r]->waits_for(kind, order)) return;
    if (workers_[r]->job_->met) return;
    const SimRankMemory& memory = by.node_.ranks[r];
    attempts.push_back(memory.grads_attempt);
    if (kind == Kind::kReduced && memory.grads_step != order.step) {
      return context_.fail(format("step %lld is reduced, and rank %u has gradients of step %lld",
                                  static_cast<long long>(order.step), r,
                                  static_cast<long long>(memory.grads_step)));
    }
  }
  for (SimWorker* worker : workers_) worker->meet(attempts);
}

// Who is in need waits for everybody's shards, who is not for the needy to have come; and all for
// their own to be final.
void SimMesh::advance_gather(const GoOrder& order) {
  if (gather_group_ != order.group_epoch || gather_step_ != order.step) sent_.clear();
  gather_group_ = order.group_epoch;
  gather_step_ = order.step;
  const auto has_joined = [&](uint32_t r) {
    return workers_[r] != nullptr && workers_[r]->waits_for(Kind::kGathered, order);
  };
  for (uint32_t r = 0; r < workers_.size(); ++r) {
    if (order.needs[r] != 0 && !has_joined(r)) return;
  }
  for (uint32_t r = 0; r < workers_.size(); ++r) {
    if (has_joined(r) && workers_[r]->owner_.is_final(order.step)) sent_.insert(r);
  }
  for (uint32_t r = 0; r < workers_.size(); ++r) {
    SimWorker* worker = workers_[r];
    if (!has_joined(r) || worker->job_->met || !sent_.contains(r)) continue;
    if (order.needs[r] != 0 && sent_.size() < workers_.size()) continue;
    worker->job_->met = true;
    const uint64_t number = worker->job_->number;
    context_.clock.after(context_.dice.spread(20, 8'000),
                         [worker, number] { worker->finish_gather(number); });
  }
}

}  // namespace optlease
