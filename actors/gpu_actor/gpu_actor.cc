#include "actors/gpu_actor/gpu_actor.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <thread>

#include "actors/gpu_actor/collective_parts.h"
#include "actors/gpu_actor/end_of_life.h"
#include "actors/gpu_actor/pin_plan.h"
#include "actors/gpu_actor/predecessor.h"
#include "actors/gpu_actor/start_times.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

constexpr int kHelloEveryMs = 100;
constexpr int kHeartbeatEveryMs = 100;
constexpr int kTurnMsMax = 20;
// In which the store breaks a group of which a peer has died.
constexpr int64_t kBreakGraceMs = 1000;

}  // namespace

GpuActor::GpuActor(const ChildArgs& args, JobPlan plan, const RunDirectory& directory,
                   Lifeline lifeline)
    : args_(args),
      plan_(std::move(plan)),
      directory_(directory),
      rank_(args.rank),
      arena_(arena_of(plan_.segment, rank_)),
      own_gradients_(plan_.gradients.source != GradientSource::kTrainer),
      lifeline_(std::move(lifeline)),
      rehearsals_left_(args.rehearsals),
      last_grad_norm_(std::nan("")) {}

GpuActor::~GpuActor() {
  // Streams and threads end before the memory they touch is unmapped.
  worker_.reset();
  device_.reset();
  pipeline_.reset();
  if (worker_fd_ >= 0) close(worker_fd_);
}

Result<std::unique_ptr<GpuActor>> GpuActor::create(const ChildArgs& args, JobPlan plan,
                                                   const RunDirectory& directory, Lifeline lifeline,
                                                   LifeFigures* figures) {
  if (args.rank >= plan.segment.world_size) {
    return Status(StatusCode::kInvalidArgument,
                  format("rank %u of a job with %u ranks", args.rank, plan.segment.world_size));
  }
  std::unique_ptr<GpuActor> actor(
      new GpuActor(args, std::move(plan), directory, std::move(lifeline)));
  if (figures != nullptr) actor->figures_ = figures;
  const Status opened = actor->open_parts();
  if (!opened.is_ok()) return opened;
  return actor;
}

Status GpuActor::open_parts() {
  StartTimes times;
  const bool successor = replaces_a_dead_one(args_);
  worker_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (worker_fd_ < 0) return {StatusCode::kIo, format("eventfd: %s", std::strerror(errno))};
  // A successor takes the names over; else an earlier run's process may still be dying.
  const StatusCode taken = StatusCode::kAlreadyExists;
  Result<TelemetryPublisher> publisher = once_predecessor_is_gone(taken, true, [&] {
    return TelemetryPublisher::open(context_, directory_, rank_, plan_.telemetry.interval_ms,
                                    successor);
  });
  if (!publisher.is_ok()) return publisher.status();
  publisher_.emplace(std::move(publisher).value());
  Result<TrainerDesk> desk = once_predecessor_is_gone(
      taken, true, [&] { return TrainerDesk::open(context_, directory_, rank_, successor); });
  if (!desk.is_ok()) return desk.status();
  desk_.emplace(std::move(desk).value());
  SocketOptions options;
  options.routing_id = private_routing_id(
      format("r%u.i%llu", rank_.value, static_cast<unsigned long long>(args_.incarnation)));
  Result<Socket> store =
      Socket::connect(context_, Socket::Type::kDealer, directory_.store_socket(), options);
  if (!store.is_ok()) return store.status();
  store_.emplace(std::move(store).value());
  times.done("sockets");
  KILL_POINT("actor.sockets_bound");

  OPTLEASE_TRY(open_device());
  times.done("device");
  OPTLEASE_TRY(open_window());
  KILL_POINT("actor.window_mapped");
  const SegmentPlan& segment = plan_.segment;
  OPTLEASE_TRY(device_->adopt_host_memory(arena_memory(
      *window_, rank_, arena_, segment.window_chunks * (segment.prefetch_windows + 1))));
  KILL_POINT("actor.pinned");
  times.done("state");
  OPTLEASE_TRY(open_buffers());
  if (step_log_) step_log_->set_buffer_bytes(device_buffer_bytes());
  times.done("buffers");
  Result<InitialState> initial = InitialState::open(plan_);
  if (!initial.is_ok()) return initial.status();
  initial_.emplace(std::move(initial).value());

  PipelineLimits limits;
  limits.window_chunks = plan_.segment.window_chunks;
  limits.staging_buffers = plan_.staging_buffers;
  limits.leases_ahead = plan_.segment.prefetch_windows + 1;
  const ResidentSlots resident =
      buffers_->resident() == nullptr ? ResidentSlots{} : buffers_->resident()->slots();
  pipeline_ =
      std::make_unique<WindowPipeline>(*device_, *window_, rank_, arena_, resident, limits, *this);
  Result<CollectiveParts> parts =
      make_collective_parts(plan_.device, rank_, directory_.group_directory());
  if (!parts.is_ok()) return parts.status();
  worker_ = std::make_unique<CollectiveWorker>(plan_, rank_, *buffers_,
                                               std::move(parts.value().collectives),
                                               std::move(parts.value().math), worker_fd_);
  feeder_.emplace(plan_.segment, rank_, arena_);
  machine_ = std::make_unique<StepMachine>(plan_.steps, own_gradients_, chunk_facts());
  times.done("the rest");
  log_info("started: %s", times.text().c_str());
  return Status::ok();
}

ChunkFacts GpuActor::chunk_facts() {
  const auto select = [this](auto&& wanted) {
    std::vector<uint32_t> chunks;
    for (uint32_t c = 0; c < arena_.chunks.size(); ++c) {
      if (wanted(c)) chunks.push_back(c);
    }
    return chunks;
  };
  ChunkFacts facts;
  facts.behind = [this, select](Step step) {
    return select([&](uint32_t c) { return window_->view().version(rank_, ChunkIndex(c)) < step; });
  };
  facts.unpublished = [this, select](Step step) {
    return select([&](uint32_t c) { return pipeline_->published(c) != step; });
  };
  facts.skipped = [this](Step step) {
    const auto record = window_->view().step_record(rank_, step);
    return record && record->skipped != 0;
  };
  facts.sums_are_sound = [this](Step step) { return sums_are_sound(step); };
  return facts;
}

ExitCode GpuActor::run() {
  log_info("rank %u incarnation %llu: %zu chunks, slots of %llu bytes, staging %llu bytes",
           rank_.value, static_cast<unsigned long long>(args_.incarnation), arena_.chunks.size(),
           static_cast<unsigned long long>(arena_.slot_bytes),
           static_cast<unsigned long long>(device_->staging_bytes()));
  KILL_POINT("actor.started");
  detached_since_ms_ = now_ms();
  phase_since_us_ = now_us();
  while (!exit_code_) {
    turn();
    if (!exit_code_) wait_for_events();
  }
  KILL_POINT("actor.ending");
  if (pipeline_ != nullptr) pipeline_->abandon();
  if (*exit_code_ == ExitCode::kOk) say_last_words();
  if (saves_at_end(*exit_code_, told_to_end(), lifeline_.closed())) save_at_end();
  const auto log = *exit_code_ == ExitCode::kOk ? log_info : log_error;
  log("rank %u ends: %s", rank_.value, exit_reason_.c_str());
  return *exit_code_;
}

void GpuActor::wait_for_events() {
  PollSet set;
  set.sockets = {&*store_, desk_->socket(), publisher_->snapshot_socket()};
  set.fds = {device_->completion_fd(), worker_fd_};
  if (lifeline_.fd() >= 0) set.fds.push_back(lifeline_.fd());
  std::vector<bool> ready;
  const bool saves = save_wanted_ != kNoStep && pipeline_->writes_nothing();
  const int wait_ms = saves ? 0 : kTurnMsMax;
  const Status polled = poll_sockets(set, wait_ms, &ready);
  if (!polled.is_ok()) end(ExitCode::kIo, polled.text());
  device_->drain_completions();
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(worker_fd_, &count, sizeof count);
}

void GpuActor::turn() {
  if (lifeline_.closed()) return end(ExitCode::kLauncherLost, "the launcher is gone");
  if (told_to_end()) return end(ExitCode::kOk, "told to end by a signal");
  account_phase_time();
  receive_from_store();
  if (exit_code_) return;
  take_worker_outcomes();
  take_trainer_requests();
  pipeline_->advance(static_cast<uint64_t>(now_us()));
  if (!pipeline_->failure().is_ok() && !exit_code_) {
    return end(exit_code_for(pipeline_->failure()), pipeline_->failure().text());
  }
  save_resident_some();
  check_sums_some();
  if (pipeline_->computed()) machine_->on_run_computed();
  if (pipeline_->idle()) {
    if (step_log_ && step_log_->run_in_hand()) step_log_->run_over(*device_, *pipeline_);
    machine_->on_run_over();
  }
  feed_gather();
  desk_->answer(desk_facts(), window_->view());
  tell_moments();
  for (const NextAction& action : machine_->next(static_cast<uint64_t>(now_ms()))) start(action);
  if (!machine_->attached()) say_hello();
  heartbeat();
  check_deadlines();
  publish_telemetry();
}

void GpuActor::take_trainer_requests() {
  desk_->receive(desk_facts());
  machine_->on_prepare(desk_->prepared());
  const auto& request = desk_->in_hand();
  if (!machine_->attached() || !request || request->body.step != machine_->committed() + 1) return;
  machine_->on_gradients(request->body.step);
  overrides_ = {request->body.lr, request->body.grad_scale, request->body.max_norm};
}

DeskFacts GpuActor::desk_facts() const {
  return {machine_->committed(), machine_->published(), plan_.steps, machine_->quiet(),
          machine_->open()};
}

void GpuActor::start(const NextAction& action) {
  switch (action.kind) {
    case NextAction::Kind::kStartRun:
      return start_run(action);
    case NextAction::Kind::kPrefetch:
      if (step_log_) step_log_->read_ahead_begins(*device_);
      pipeline_->prefetch(action.step, action.chunks);
      return pipeline_->advance(static_cast<uint64_t>(now_us()));
    case NextAction::Kind::kEndPrefetch:
      return pipeline_->release_prefetch();
    case NextAction::Kind::kCheckSums:
      return begin_sums_check(action.step);
    case NextAction::Kind::kFillGradients:
      return worker_->fill_gradients(action.step);
    case NextAction::Kind::kSendReady:
      return send_ready(action.step);
    case NextAction::Kind::kSendRecord:
      return send_record(action.step);
    case NextAction::Kind::kRunCollective:
      break;
  }
  if (action.order.gather) return start_gather(action.order);
  const Step before = machine_->committed();
  const auto record = window_->view().step_record(rank_, before);
  if (before > 0 && !record) {
    return end(ExitCode::kCorruptState, format("the record of committed step %lld is not readable",
                                               static_cast<long long>(before)));
  }
  step_started_us_ = step_started_us_ == 0 ? now_us() : step_started_us_;
  worker_->reduce(action.order, overrides_, record ? record->update_count : 0);
}

void GpuActor::take_worker_outcomes() {
  for (const WorkOutcome& outcome : worker_->take_outcomes()) on_outcome(outcome);
}

void GpuActor::on_outcome(const WorkOutcome& outcome) {
  if (outcome.kind == WorkOutcome::Kind::kFilled) {
    // A source that cannot give its gradients cannot after a restart either.
    if (!outcome.status.is_ok()) {
      const bool is_source = collectives_can_recover(outcome.status);
      return end(is_source ? ExitCode::kBadConfiguration : exit_code_for(outcome.status),
                 outcome.status.text());
    }
    return machine_->on_gradients(outcome.step);
  }
  if (!outcome.status.is_ok()) {
    if (!collectives_can_recover(outcome.status))
      return end(exit_code_for(outcome.status), outcome.status.text());
    if (outcome.kind != WorkOutcome::Kind::kConnected) machine_->on_collective_failed();
    if (outcome.group_epoch != machine_->group_epoch()) return;  // a group that is gone anyway
    log_warn("group %llx: %s", static_cast<unsigned long long>(outcome.group_epoch),
             outcome.status.text().c_str());
    if (group_failures_.failed()) {
      return end(exit_code_for(outcome.status),
                 format("%u groups in a row had no working collectives; the last: %s",
                        GroupFailures::kInARowMax, outcome.status.text().c_str()));
    }
    // Attaching again gives up the windows under way, which need no group: a dead peer's is broken
    // in a moment without that.
    if (!pipeline_->idle()) {
      failed_group_ = outcome.group_epoch;
      failed_group_since_ms_ = now_ms();
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
    if (step_log_) step_log_->gathered(exposed_gather_seconds());
    machine_->on_gathered(outcome.group_epoch, outcome.step);
    if (machine_->published() == outcome.step && outcome.group_epoch == machine_->group_epoch()) {
      send_to_store(MessageKind::kPublished, PublishedBody{outcome.step, outcome.group_epoch});
      KILL_POINT("actor.published_said");
    }
  }
}

void GpuActor::check_deadlines() {
  if (exit_code_) return;
  const int64_t now = now_ms();
  const auto limit = static_cast<int64_t>(plan_.restart.start_timeout_ms);
  if (!machine_->attached() && now - detached_since_ms_ > limit) {
    return end(ExitCode::kStoreLost, format("no answer from the host store within %lld ms",
                                            static_cast<long long>(limit)));
  }
  if (machine_->attached() && failed_group_ != 0 && failed_group_ == machine_->group_epoch() &&
      now - failed_group_since_ms_ > kBreakGraceMs) {
    return reattach("the group's collectives failed and the group did not break");
  }
  if (machine_->attached() && !pipeline_->idle() &&
      now - static_cast<int64_t>(pipeline_->last_progress_us() / 1000) > limit) {
    end(ExitCode::kTimeout,
        "no window moved within " + std::to_string(limit) + " ms: " + pipeline_->describe());
  }
}

void GpuActor::end(ExitCode code, const std::string& reason) {
  if (exit_code_) return;
  exit_code_ = code;
  exit_reason_ = reason;
}

void GpuActor::say_hello() {
  const int64_t now = now_ms();
  if (now < hello_at_ms_ || !pipeline_->drained()) return;
  hello_at_ms_ = now + kHelloEveryMs;
  store_epoch_ = 0;
  HelloBody body{};
  std::memcpy(body.job_id, window_->view().header().job_id, sizeof body.job_id);
  body.layout_hash = window_->view().header().layout_hash;
  body.pid = static_cast<uint32_t>(getpid());
  body.step_published = machine_->published();
  send_to_store(MessageKind::kHello, body);
  KILL_POINT("actor.hello_said");
  if (first_hello_ == 0) first_hello_ = sequence_;
}

void GpuActor::heartbeat() {
  const int64_t now = now_ms();
  if (!machine_->attached() || now < heartbeat_at_ms_) return;
  heartbeat_at_ms_ = now + kHeartbeatEveryMs;
  const Step step = machine_->open() != kNoStep ? machine_->open() : machine_->committed();
  send_to_store(MessageKind::kHeartbeat,
                HeartbeatBody{step, static_cast<uint32_t>(machine_->phase()), 0});
}

}  // namespace optlease
