#include "actors/host_store/step_coordinator.h"

#include <algorithm>

namespace optlease {
namespace {

constexpr uint64_t kGroupCounterBits = 32;

long long num(Step step) { return static_cast<long long>(step); }

Status stale_step(const char* what, Step named, Step expected) {
  return {StatusCode::kStaleStep,
          format("%s of step %lld, while step %lld is at work", what, num(named), num(expected))};
}

Status no_such_hold(uint64_t hold_id) {
  return {StatusCode::kNotFound,
          format("hold %llu ended, or an earlier life of the store gave it: ask for a new one",
                 static_cast<unsigned long long>(hold_id))};
}

uint64_t after(uint64_t now_ms, uint64_t ms) {
  return ms > UINT64_MAX - 1 - now_ms ? UINT64_MAX - 1 : now_ms + ms;
}

}  // namespace

const char* name_of(StoreAction::Kind kind) {
  switch (kind) {
    case StoreAction::Kind::kGroupBroken:
      return "group_broken";
    case StoreAction::Kind::kVoidRecords:
      return "void_records";
    case StoreAction::Kind::kGroupFormed:
      return "group_formed";
    case StoreAction::Kind::kApplySkip:
      return "apply_skip";
    case StoreAction::Kind::kStepOpen:
      return "step_open";
    case StoreAction::Kind::kCommitStep:
      return "commit_step";
    case StoreAction::Kind::kGoGather:
      return "go_gather";
    case StoreAction::Kind::kGoReduce:
      return "go_reduce";
    case StoreAction::Kind::kHoldGranted:
      return "hold_granted";
    case StoreAction::Kind::kHoldEnded:
      return "hold_ended";
    case StoreAction::Kind::kStop:
      return "stop";
  }
  return "?";
}

StepCoordinator::StepCoordinator(const CoordinatorFacts& facts)
    : epoch_(facts.epoch), committed_(facts.step_committed) {
  OPTLEASE_CHECK(!facts.ranks.empty(), "a job without ranks");
  // Hold ids of different lives differ too: an old one is never taken for a new one.
  next_hold_ = (epoch_.value << kGroupCounterBits) + 1;
  for (const RankFacts& rank : facts.ranks) {
    ranks_.push_back({.chunk_count = rank.chunk_count,
                      .chunks_done = rank.chunks_done,
                      .has_record = rank.has_record && committed_ >= 0});
    skipped_ = skipped_ || (rank.has_record && rank.skipped && committed_ >= 0);
  }
  // Nobody is attached who would have to be told: a welcome says it. Where a record is missing, the
  // others are of a group that ended with the store.
  open_ = all_recorded();
  group_stale_ = true;
}

StepCoordinator::RankState& StepCoordinator::at(Rank rank) {
  OPTLEASE_CHECK(rank.value < ranks_.size(), "rank %u of %zu", rank.value, ranks_.size());
  return ranks_[rank.value];
}

void StepCoordinator::on_attached(Rank rank, Step published, bool same_incarnation) {
  RankState& state = at(rank);
  if (!same_incarnation) state.ready = kNoStep;
  state.attached = true;
  state.published = std::min(published, step_known());
  group_stale_ = true;
}

void StepCoordinator::on_lost(Rank rank) {
  RankState& state = at(rank);
  if (!state.attached) return;
  state.attached = false;
  state.ready = kNoStep;
  state.published = kNoStep;
  group_stale_ = true;
}

Status StepCoordinator::check_ready(Step step) const {
  if (committed_ >= 0 && step == committed_ + 1) return Status::ok();
  return stale_step("Ready", step, committed_ + 1);
}

void StepCoordinator::on_ready(Rank rank, Step step) {
  OPTLEASE_CHECK(check_ready(step).is_ok(), "ready for step %lld", num(step));
  at(rank).ready = step;
}

Status StepCoordinator::may_record(Step step, uint64_t group_epoch) const {
  if (committed_ < 0 || step != committed_ + 1) {
    return stale_step("a record", step, committed_ + 1);
  }
  if (open_ || (group_formed_ && reduce_ordered_ && group_epoch == group_epoch_)) {
    return Status::ok();
  }
  return {
      StatusCode::kStaleStep,
      format("group %llx computed this record of step %lld and is over: the step is reduced again",
             static_cast<unsigned long long>(group_epoch), num(step))};
}

void StepCoordinator::on_record(Rank rank, Step step, bool skipped) {
  OPTLEASE_CHECK(may_record(step, group_epoch_).is_ok() && !open_, "record of step %lld",
                 num(step));
  at(rank).has_record = true;
  skipped_ = skipped;
}

void StepCoordinator::on_chunks(Rank rank, Step step, uint32_t count) {
  OPTLEASE_CHECK(step == lease_step(), "chunks of step %lld, not %lld", num(step),
                 num(lease_step()));
  RankState& state = at(rank);
  OPTLEASE_CHECK(count <= state.chunk_count - state.chunks_done, "%u + %u of %u chunks",
                 state.chunks_done, count, state.chunk_count);
  state.chunks_done += count;
}

Status StepCoordinator::on_published(Rank rank, Step step) {
  if (step < 0 || (step != committed_ && step != step_known())) {
    return stale_step("Published", step, step_known());
  }
  RankState& state = at(rank);
  state.published = std::max(state.published, step);
  return Status::ok();
}

void StepCoordinator::on_older_reaped(Rank rank, bool reaped) { at(rank).older_reaped = reaped; }

uint64_t StepCoordinator::hold(uint64_t ttl_ms, uint64_t now_ms) {
  const uint64_t id = next_hold_++;
  holds_[id] = Hold{.ends_ms = after(now_ms, ttl_ms)};
  return id;
}

Status StepCoordinator::renew_hold(uint64_t hold_id, uint64_t ttl_ms, uint64_t now_ms) {
  const auto found = holds_.find(hold_id);
  if (found == holds_.end() || found->second.ends_ms <= now_ms) return no_such_hold(hold_id);
  found->second.ends_ms = after(now_ms, ttl_ms);
  return Status::ok();
}

Status StepCoordinator::release_hold(uint64_t hold_id) {
  return holds_.erase(hold_id) == 1 ? Status::ok() : no_such_hold(hold_id);
}

bool StepCoordinator::hold_is_granted(uint64_t hold_id) const {
  const auto found = holds_.find(hold_id);
  return found != holds_.end() && found->second.granted;
}

void StepCoordinator::stop(uint64_t ttl_ms, uint64_t now_ms) {
  if (stopping_) return;
  stopping_ = true;
  stop_at_ms_ = after(now_ms, ttl_ms);
}

Step StepCoordinator::lease_step() const {
  if (committed_ == kNoStep) return 0;
  return open_ && !skipped_ ? committed_ + 1 : kNoStep;
}

bool StepCoordinator::may_lease(Step step) const {
  const bool ahead = committed_ >= 0 && !open_ && step == committed_ + 1;
  return ahead || (step >= 0 && step == lease_step());
}

uint32_t StepCoordinator::chunks_done(Rank rank) const { return ranks_[rank.value].chunks_done; }

bool StepCoordinator::at_work() const {
  return committed_ == kNoStep || open_ || (group_formed_ && reduce_ordered_);
}

std::vector<StoreAction> StepCoordinator::advance(uint64_t now_ms) {
  std::vector<StoreAction> out;
  if (stopped_) return out;
  for (auto next = holds_.begin(); next != holds_.end();) {
    const auto hold = next++;
    if (hold->second.ends_ms > now_ms) continue;
    out.push_back({.kind = StoreAction::Kind::kHoldEnded, .hold_id = hold->first});
    holds_.erase(hold);
  }
  open_step(&out);  // first: whoever is lost, durable records of all ranks are an open step
  break_group(&out);
  form_group(&out);
  commit_step(&out);
  grant_holds(&out);
  order_gather(&out);
  order_reduce(&out);
  end_at_boundary(now_ms, &out);
  return out;
}

void StepCoordinator::break_group(std::vector<StoreAction>* out) {
  if (!group_stale_) return;
  group_stale_ = false;
  reduce_ordered_ = false;
  gather_ordered_ = kNoStep;
  if (group_formed_) {
    group_formed_ = false;
    out->push_back({.kind = StoreAction::Kind::kGroupBroken, .group_epoch = group_epoch_});
  }
  void_records(out);
}

void StepCoordinator::void_records(std::vector<StoreAction>* out) {
  if (open_ || every([](const RankState& rank) { return !rank.has_record; })) return;
  for (RankState& rank : ranks_) rank.has_record = false;
  skipped_ = false;
  out->push_back({.kind = StoreAction::Kind::kVoidRecords, .step = committed_ + 1});
}

void StepCoordinator::form_group(std::vector<StoreAction>* out) {
  if (group_formed_ || !every([](const RankState& rank) { return rank.attached; })) return;
  group_epoch_ = (epoch_.value << kGroupCounterBits) | ++groups_;
  group_formed_ = true;
  out->push_back({.kind = StoreAction::Kind::kGroupFormed, .group_epoch = group_epoch_});
}

void StepCoordinator::open_step(std::vector<StoreAction>* out) {
  if (!open_ && committed_ >= 0 && all_recorded()) {
    open_ = true;
    reduce_ordered_ = false;
    out->push_back({.kind = StoreAction::Kind::kStepOpen, .step = committed_ + 1});
  }
  if (!open_ || !skipped_ || skip_applied_) return;
  skip_applied_ = true;
  for (RankState& rank : ranks_) rank.chunks_done = rank.chunk_count;
  out->push_back({.kind = StoreAction::Kind::kApplySkip, .step = committed_ + 1});
}

void StepCoordinator::commit_step(std::vector<StoreAction>* out) {
  if (!open_ && committed_ != kNoStep) return;
  const auto complete = [](const RankState& rank) {
    return rank.chunks_done == rank.chunk_count && rank.older_reaped;
  };
  if (!every(complete)) return;
  ++committed_;
  open_ = false;
  skipped_ = false;
  skip_applied_ = false;
  for (RankState& rank : ranks_) {
    rank.chunks_done = 0;
    rank.has_record = false;
  }
  out->push_back({.kind = StoreAction::Kind::kCommitStep, .step = committed_});
}

void StepCoordinator::order_gather(std::vector<StoreAction>* out) {
  if (!group_formed_ || committed_ < 0) return;
  // An open step is gathered under its windows: its records are durable, so that what they compute
  // is final, and each rank sends what it has computed. A skipped one computes nothing and is
  // committed in a moment.
  const Step step = step_known();
  if (open_ && skipped_) return;
  if (gather_ordered_ == step || all_published(step)) return;
  StoreAction go{.kind = StoreAction::Kind::kGoGather, .step = step, .group_epoch = group_epoch_};
  for (const RankState& rank : ranks_) go.needs.push_back(rank.published == step ? 0 : 1);
  gather_ordered_ = step;
  out->push_back(std::move(go));
}

void StepCoordinator::order_reduce(std::vector<StoreAction>* out) {
  // One collective at a time: a gather that somebody needs goes first.
  if (!group_formed_ || reduce_ordered_ || open_ || committed_ < 0) return;
  if (stopping_ || !holds_.empty() || !all_published(committed_)) return;
  const Step step = committed_ + 1;
  if (!every([&](const RankState& rank) { return rank.ready == step; })) return;
  // A dying incarnation may still write the gradient shard that its successor would sum into.
  if (!every([](const RankState& rank) { return rank.older_reaped; })) return;
  StoreAction go{.kind = StoreAction::Kind::kGoReduce, .step = step, .group_epoch = group_epoch_};
  for (const RankState& rank : ranks_) go.needs.push_back(rank.has_record ? 0 : 1);
  reduce_ordered_ = true;
  out->push_back(std::move(go));
}

void StepCoordinator::grant_holds(std::vector<StoreAction>* out) {
  if (at_work()) return;
  for (auto& [id, hold] : holds_) {
    if (hold.granted) continue;
    hold.granted = true;
    out->push_back({.kind = StoreAction::Kind::kHoldGranted, .step = committed_, .hold_id = id});
  }
}

bool StepCoordinator::all_recorded() const {
  return every([](const RankState& rank) { return rank.has_record; });
}

bool StepCoordinator::all_published(Step step) const {
  return every([step](const RankState& rank) { return rank.published == step; });
}

bool StepCoordinator::may_end() const {
  if (every([](const RankState& rank) { return !rank.attached; })) return !open_;
  return !at_work() && (!group_formed_ || all_published(committed_));
}

void StepCoordinator::end_at_boundary(uint64_t now_ms, std::vector<StoreAction>* out) {
  if (!stopping_ || (!may_end() && now_ms < stop_at_ms_)) return;
  stopped_ = true;
  out->push_back({.kind = StoreAction::Kind::kStop, .step = committed_});
}

uint64_t StepCoordinator::next_deadline_ms() const {
  uint64_t next = stopped_ ? UINT64_MAX : stop_at_ms_;
  for (const auto& [id, hold] : holds_) next = std::min(next, hold.ends_ms);
  return next;
}

}  // namespace optlease
