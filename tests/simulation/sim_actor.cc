#include "tests/simulation/sim_actor.h"

#include <csignal>
#include <cstring>

namespace optlease {
namespace {

constexpr uint64_t kHelloEveryMs = 100;
constexpr uint64_t kHeartbeatEveryMs = 100;
constexpr uint64_t kTurnUsMax = 20'000;
constexpr uint64_t kBreakGraceMs = 1000;
constexpr size_t kMessagesPerTurn = 256;

}  // namespace

SimActor::SimActor(SimContext& context, const SimPlace& place, uint64_t number, uint32_t rank,
                   uint64_t incarnation, Setup setup)
    : SimProcess(context, number, {Role::kGpuActor, rank}, incarnation),
      place_(place),
      rank_(rank),
      peer_(format("r%u.i%llu@%llu", rank, static_cast<unsigned long long>(incarnation),
                   static_cast<unsigned long long>(number))),
      setup_(std::move(setup)),
      link_(
          context, [this](std::string frame) { setup_.hears(frame); },
          [this](std::string frame) {
            run([this, frame = std::move(frame)]() mutable {
              inbox_.push_back(std::move(frame));
              poke();
            });
          }) {}

void SimActor::begin() {
  run([this] { open_parts(); });
}

void SimActor::open_parts() {
  const SimOptions& options = context_.options;
  Result<ChunkWindow> window =
      ChunkWindow::open(context_.names.control, context_.names.arenas[rank_.value], rank_);
  if (!window.is_ok()) return context_.fail("an actor: " + window.status().text());
  window_.emplace(std::move(window).value());
  const ArenaSpec& arena = context_.arenas[rank_.value];
  device_.emplace(
      context_,
      [this](const void* to, uint64_t) {
        const auto offset = static_cast<const char*>(to) - window_->slot(SlotIndex{0});
        const auto slot = static_cast<uint64_t>(offset) / window_->slot_bytes();
        place_.ledger.writes_slot(number(), rank_, static_cast<uint32_t>(slot));
      },
      [this] { poke(); }, [this] { place_.ledger.wrote_somewhere(rank_); });
  (void)device_->allocate_staging(options.staging_buffers, arena.slot_bytes * options.window_chunks)
      .is_ok();
  pipeline_.emplace(
      *device_, *window_, rank_, arena, ResidentSlots{},
      PipelineLimits{options.window_chunks, options.staging_buffers, options.prefetch_windows + 1},
      *this);
  worker_.emplace(context_, place_.model, place_.node, place_.mesh,
                  SimWorker::Owner{.rank = rank_,
                                   .poke = [this] { poke(); },
                                   .is_final = [this](Step step) { return is_final(step); },
                                   .reaped = [this] { return gone(); }});
  machine_.emplace(options.steps, !options.trainers, chunk_facts());
  desk_.emplace(rank_);
  check_sums_at_start();
}

// What another incarnation summed is read through before this one says anything.
void SimActor::check_sums_at_start() {
  const Step step = step_to_finish();
  if (step != kNoStep && !sums_) {
    if (!sums_check_) begin_sums_check(step);
    check_sums_some();
    if (exit_code_) return;
    if (!sums_) return run_after(50, [this] { check_sums_at_start(); });
  }
  opened_ = true;
  detached_since_ms_ = context_.clock.now_ms();
  setup_.listens();
  poke();
}

ChunkFacts SimActor::chunk_facts() {
  const auto select = [this](auto&& wanted) {
    std::vector<uint32_t> chunks;
    for (uint32_t c = 0; c < context_.arenas[rank_.value].chunks.size(); ++c) {
      if (wanted(c)) chunks.push_back(c);
    }
    return chunks;
  };
  ChunkFacts facts;
  facts.behind = [this, select](Step step) {
    return select([&](uint32_t c) { return view().version(rank_, ChunkIndex{c}) < step; });
  };
  facts.unpublished = [this, select](Step step) {
    return select([&](uint32_t c) { return pipeline_->published(c) != step; });
  };
  facts.skipped = [this](Step step) {
    const auto record = view().step_record(rank_, step);
    return record && record->skipped != 0;
  };
  facts.sums_are_sound = [this](Step step) { return sums_are_sound(step); };
  return facts;
}

bool SimActor::is_final(Step step) const {
  for (uint32_t c = 0; c < context_.arenas[rank_.value].chunks.size(); ++c) {
    if (pipeline_->published(c) != step) return false;
  }
  return true;
}

Step SimActor::step_to_finish() const {
  const Step step = view().step_committed() + 1;
  if (!view().step_is_open()) return kNoStep;
  const auto record = view().step_record(rank_, step);
  if (record && record->skipped != 0) return kNoStep;
  for (uint32_t c = 0; c < context_.arenas[rank_.value].chunks.size(); ++c) {
    if (view().version(rank_, ChunkIndex{c}) < step) return step;
  }
  return kNoStep;
}

// Kernels end with the process, or until it is reaped; a copy that the driver has begun may end
// even later, within the grace period.
void SimActor::on_death() {
  link_.close();
  if (worker_) worker_->die();
  if (!device_) return;
  const uint64_t grace_us = context_.options.grace_us();
  const bool at_once = context_.dice.one_in(3);
  const uint64_t rest_us = at_once ? 0 : context_.dice.below(reaped_us());
  const uint64_t copies_us =
      at_once ? 0 : rest_us + context_.dice.below(reaped_us() - rest_us + grace_us);
  device_->die(rest_us, copies_us);
}

void SimActor::on_pause() {
  if (worker_) worker_->set_paused(true);
  if (device_ && context_.options.streams_stop_too) device_->freeze();
}

void SimActor::on_resume() {
  if (device_) device_->thaw();
  if (worker_) worker_->set_paused(false);
  if (opened_) poke();
}

void SimActor::poke() {
  if (!opened_ || turns_soon_ || !alive()) return;
  turns_soon_ = true;
  context_.clock.after(context_.dice.below(40), [this] {
    turns_soon_ = false;
    run([this] { turn(); });
  });
}

void SimActor::turn_later(uint64_t delay_us) {
  const uint64_t mine = ++timer_;
  run_after(delay_us, [this, mine] {
    if (mine == timer_) turn();
  });
}

void SimActor::turn() {
  if (exit_code_) return;
  for (size_t i = 0; i < kMessagesPerTurn && !inbox_.empty() && !exit_code_; ++i) {
    const std::string frame = std::move(inbox_.front());
    inbox_.pop_front();
    SIM_TRACE(context_, "%s <- store: %s", peer_.c_str(), name_of(decode(frame).value().kind));
    on_store_message(decode(frame).value());
  }
  if (exit_code_) return;
  take_outcomes();
  take_trainer_requests();
  pipeline_->advance(context_.clock.now_us());
  if (!pipeline_->failure().is_ok() && !exit_code_) {
    return end(exit_code_for(pipeline_->failure()), pipeline_->failure().text());
  }
  check_sums_some();
  if (pipeline_->computed()) machine_->on_run_computed();
  if (pipeline_->idle()) machine_->on_run_over();
  worker_->feed();
  answer_trainer();
  for (const NextAction& action : machine_->next(context_.clock.now_ms())) start(action);
  if (exit_code_) return;
  if (!machine_->attached()) say_hello();
  heartbeat();
  check_deadlines();
  worker_->feed();
  turn_later(kTurnUsMax);
}

DeskFacts SimActor::desk_facts() const {
  return {machine_->committed(), machine_->published(), context_.options.steps, machine_->quiet(),
          machine_->open()};
}

void SimActor::on_trainer_frame(const std::string& peer, std::string frame) {
  run([this, peer, frame = std::move(frame)]() mutable {
    desk_inbox_.emplace_back(peer, std::move(frame));
    poke();
  });
}

void SimActor::take_trainer_requests() {
  for (; !desk_inbox_.empty(); desk_inbox_.pop_front()) {
    desk_->handle(desk_inbox_.front().first, desk_inbox_.front().second, desk_facts());
  }
  machine_->on_prepare(desk_->prepared());
  const auto& request = desk_->in_hand();
  if (!machine_->attached() || !request || request->body.step != machine_->committed() + 1) return;
  machine_->on_gradients(request->body.step);
}

void SimActor::answer_trainer() {
  desk_->answer(desk_facts(), view());
  for (Message& message : std::exchange(*desk_->outgoing(), {})) {
    setup_.to_trainer(message.peer, std::move(message.frame));
  }
}

void SimActor::start(const NextAction& action) {
  switch (action.kind) {
    case NextAction::Kind::kStartRun:
      return start_run(action);
    case NextAction::Kind::kPrefetch:
      pipeline_->prefetch(action.step, action.chunks);
      return pipeline_->advance(context_.clock.now_us());
    case NextAction::Kind::kEndPrefetch:
      return pipeline_->release_prefetch();
    case NextAction::Kind::kCheckSums:
      return begin_sums_check(action.step);
    case NextAction::Kind::kFillGradients:
      return worker_->fill_gradients(action.step, 0);
    case NextAction::Kind::kSendReady:
      return send_ready(action.step);
    case NextAction::Kind::kSendRecord:
      return send_record(action.step);
    case NextAction::Kind::kRunCollective:
      break;
  }
  if (action.order.gather) return worker_->gather(action.order);
  const Step before = machine_->committed();
  const auto record = view().step_record(rank_, before);
  if (before > 0 && !record) return end(ExitCode::kCorruptState, "no record of a committed step");
  worker_->reduce(action.order, record ? record->update_count : 0);
}

void SimActor::take_outcomes() {
  for (const WorkOutcome& outcome : worker_->take_outcomes()) on_outcome(outcome);
}

void SimActor::on_outcome(const WorkOutcome& outcome) {
  if (outcome.kind == WorkOutcome::Kind::kFilled) return machine_->on_gradients(outcome.step);
  if (!outcome.status.is_ok()) {
    if (outcome.kind != WorkOutcome::Kind::kConnected) machine_->on_collective_failed();
    if (outcome.group_epoch != machine_->group_epoch()) return;
    if (group_failures_.failed()) return end(ExitCode::kTimeout, "no working collectives");
    if (!pipeline_->idle()) {
      failed_group_ = outcome.group_epoch;
      failed_group_since_ms_ = context_.clock.now_ms();
      return;
    }
    return reattach("the group's collectives failed");
  }
  group_failures_.worked();
  if (outcome.kind == WorkOutcome::Kind::kReduced) {
    computed_ = outcome.record;
    sums_ = outcome.sums;
    machine_->on_reduced(outcome.group_epoch, outcome.step);
  } else if (outcome.kind == WorkOutcome::Kind::kGathered) {
    machine_->on_gathered(outcome.group_epoch, outcome.step);
    if (machine_->published() == outcome.step && outcome.group_epoch == machine_->group_epoch()) {
      send(MessageKind::kPublished, PublishedBody{outcome.step, outcome.group_epoch});
    }
  }
}

void SimActor::check_deadlines() {
  if (exit_code_) return;
  const uint64_t now_ms = context_.clock.now_ms();
  const uint64_t limit_ms = context_.options.restart.start_timeout_ms;
  if (!machine_->attached() && now_ms - detached_since_ms_ > limit_ms) {
    return end(ExitCode::kStoreLost, "no answer from the host store");
  }
  if (machine_->attached() && failed_group_ != 0 && failed_group_ == machine_->group_epoch() &&
      now_ms - failed_group_since_ms_ > kBreakGraceMs) {
    return reattach("the group's collectives failed and the group did not break");
  }
  if (machine_->attached() && !pipeline_->idle() &&
      now_ms - pipeline_->last_progress_us() / 1000 > limit_ms) {
    end(ExitCode::kTimeout, "no window moved: " + pipeline_->describe());
  }
}

void SimActor::end(ExitCode code, const std::string& reason) {
  if (exit_code_) return;
  exit_code_ = code;
  SIM_TRACE(context_, "%s ends: %s, %s", peer_.c_str(), name_of(code), reason.c_str());
  if (code == ExitCode::kCorruptState || code == ExitCode::kBadConfiguration) {
    context_.fail(peer_ + " ends: " + reason);
  }
  context_.clock.after(1, [this] { leave(static_cast<int>(*exit_code_)); });
}

void SimActor::say_hello() {
  const uint64_t now_ms = context_.clock.now_ms();
  if (now_ms < hello_at_ms_ || !pipeline_->drained()) return;
  if (device_->writes_pending()) context_.fail(peer_ + " says hello and has not drained");
  hello_at_ms_ = now_ms + kHelloEveryMs;
  store_epoch_ = 0;
  HelloBody body{};
  std::memcpy(body.job_id, view().header().job_id, sizeof body.job_id);
  body.layout_hash = view().header().layout_hash;
  body.pid = 1;
  body.step_published = machine_->published();
  send(MessageKind::kHello, body);
  if (first_hello_ == 0) first_hello_ = sequence_;
}

void SimActor::heartbeat() {
  const uint64_t now_ms = context_.clock.now_ms();
  if (!machine_->attached() || now_ms < heartbeat_at_ms_) return;
  heartbeat_at_ms_ = now_ms + kHeartbeatEveryMs;
  const Step step = machine_->open() != kNoStep ? machine_->open() : machine_->committed();
  send(MessageKind::kHeartbeat, HeartbeatBody{step, static_cast<uint32_t>(machine_->phase()), 0});
}

}  // namespace optlease
