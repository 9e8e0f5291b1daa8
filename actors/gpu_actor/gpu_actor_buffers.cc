// The actor's device, segments and shared buffers: opened at its start, checked where another
// incarnation left them, given to the pipeline, and what would die with the launcher's vault saved
// at its end: gradient shards of an open step and the resident part of the state. The latter also
// when tools are about to read it.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "actors/gpu_actor/gpu_actor.h"
#include "actors/gpu_actor/gpu_place.h"
#include "actors/gpu_actor/predecessor.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"
#include "shm/damage.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

// The longest life after the launcher's: what is saved leaves a device at several GB/s.
constexpr unsigned kSaveSecondsMin = 30;
constexpr uint64_t kSaveBytesASecond = 1ull << 30;
constexpr int kDrainMs = 5000;
constexpr int kCheckPollUs = 100;

volatile sig_atomic_t g_told_to_end = 0;
volatile sig_atomic_t g_save_seconds = kSaveSecondsMin;

void on_launcher_death(int) {
  g_told_to_end = 1;
  ::alarm(static_cast<unsigned>(g_save_seconds));
}

void on_terminate(int) { g_told_to_end = 1; }

Status handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (::sigaction(number, &action, nullptr) == 0) return Status::ok();
  return {StatusCode::kInternal, format("sigaction(%d): %s", number, std::strerror(errno))};
}

// By default the launcher's death kills its children at once. This one is told instead, and an
// alarm ends it if it does not come to its end. Called on the main thread, whose setting it is.
Status outlive_launcher() {
  OPTLEASE_TRY(handle(SIGUSR2, on_launcher_death));
  OPTLEASE_TRY(handle(SIGTERM, on_terminate));
  if (::prctl(PR_SET_PDEATHSIG, SIGUSR2) == 0) return Status::ok();
  return {StatusCode::kInternal, format("prctl(PR_SET_PDEATHSIG): %s", std::strerror(errno))};
}

}  // namespace

// The store may be late, or restarting: half of the launcher's patience is left for the words.
// Arenas are made before the control segment is ready: one that is missing then was removed.
Status GpuActor::open_window() {
  const Deadline deadline =
      Deadline::after_ms(static_cast<int64_t>(plan_.restart.start_timeout_ms / 2));
  while (true) {
    Result<ChunkWindow> window =
        ChunkWindow::open(directory_.control_segment(), directory_.arena_segment(rank_), rank_);
    if (window.is_ok()) {
      window_.emplace(std::move(window).value());
      return Status::ok();
    }
    const StatusCode code = window.status().code();
    const bool no_state = !Segment::exists(directory_.control_segment());
    const bool late = code == StatusCode::kBusy || (code == StatusCode::kNotFound && no_state);
    if (!late || lifeline_.closed()) return as_damage(window.status());
    if (deadline.passed()) {
      return {StatusCode::kPeerLost,
              format("the host store has made no state within %llu ms (half of "
                     "restart.start_timeout_s): ",
                     static_cast<unsigned long long>(plan_.restart.start_timeout_ms / 2)) +
                  window.status().message()};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool GpuActor::told_to_end() { return g_told_to_end != 0; }

// The step whose summed gradients this rank still needs; kNoStep where there is none.
Step GpuActor::step_to_finish() const {
  const ControlView& view = window_->view();
  const Step step = view.step_committed() + 1;
  if (!view.step_is_open()) return kNoStep;
  const auto record = view.step_record(rank_, step);
  if (record && record->skipped != 0) return kNoStep;
  for (uint32_t c = 0; c < arena_.chunks.size(); ++c) {
    if (view.version(rank_, ChunkIndex(c)) < step) return step;
  }
  return kNoStep;
}

// A predecessor's device memory is free only once its driver has torn it down.
Status GpuActor::open_device() {
  const bool successor = replaces_a_dead_one(args_);
  const StatusCode full = StatusCode::kNoSpace;
  Result<std::unique_ptr<Device>> device = once_predecessor_is_gone(
      full, successor, [&] { return make_device(plan_.device.c_str(), rank_); });
  if (!device.is_ok()) return device.status();
  device_ = std::move(device).value();
  const std::vector<int64_t>& nodes = plan_.numa.nodes;
  const int64_t node = rank_.value < nodes.size() ? nodes[rank_.value] : -1;
  const std::string elsewhere = numa_mismatch(device_->pci_address(), node);
  if (!elsewhere.empty()) log_warn("%s", elsewhere.c_str());
  device_->count_copies_in(figures_);
  OPTLEASE_TRY(open_step_log());
  OPTLEASE_TRY(once_predecessor_is_gone(full, successor, [&] {
    return device_->allocate_staging(arena_.chunks.empty() ? 0 : plan_.staging_buffers,
                                     arena_.slot_bytes * plan_.segment.window_chunks);
  }));
  figures_->set_staging(device_->staging_bytes(), plan_.staging_budget_bytes(rank_));
  return Status::ok();
}

Status GpuActor::open_buffers() {
  const Result<DevicePlace> place = device_of_rank(plan_.device, rank_.value);
  if (!place.is_ok()) return place.status();
  Result<DeviceMemory> memory = DeviceMemory::open(place.value());
  if (!memory.is_ok()) return memory.status();
  RankBuffersSetup setup;
  setup.rank = rank_;
  setup.vault_socket = directory_.vault_socket();
  setup.gradient_segment = directory_.gradient_segment(rank_);
  std::memcpy(setup.job_id, window_->view().header().job_id, sizeof setup.job_id);
  setup.open_step = step_to_finish();
  setup.timeout_ms = plan_.restart.start_timeout_ms;
  setup.home = shard_home_of(place.value().kind);
  if (arena_.split.has_resident()) {
    setup.resident = ResidentSegment::shape_of(window_->view(), rank_, arena_);
    setup.resident_segment = directory_.resident_segment(rank_);
    for (uint32_t c = 0; c < arena_.chunks.size(); ++c) {
      setup.has_state = setup.has_state || window_->view().version(rank_, ChunkIndex(c)) >= 0;
    }
  }
  // Before anything is taken from the vault: from then on this process may hold what nobody else
  // has. Where nothing would die with the launcher, neither does it live on.
  const bool has_launcher = lifeline_.fd() >= 0;
  if (setup.home == ShardHome::kVault && has_launcher) OPTLEASE_TRY(outlive_launcher());
  Result<RankBuffers> buffers = RankBuffers::open(plan_, setup, std::move(memory).value());
  if (buffers.status().code() == StatusCode::kPermission) return as_damage(buffers.status());
  if (!buffers.is_ok()) return buffers.status();
  buffers_.emplace(std::move(buffers).value());
  if (const ResidentArena* resident = buffers_->resident()) {
    g_save_seconds = static_cast<int>(kSaveSecondsMin + resident->bytes() / kSaveBytesASecond);
  }
  return setup.open_step == kNoStep ? Status::ok() : check_sums_at_start(setup.open_step);
}

// Whole: before its hello it holds no lease and nobody waits for its heartbeats, and the launcher
// gives it restart.start_timeout_s, as for a restoring of the same bytes.
Status GpuActor::check_sums_at_start(Step step) {
  const Result<SumsDigest> recorded = recorded_sums(step);
  if (!recorded.is_ok()) return recorded.status();
  sums_check_.emplace(*device_, rank_, recorded.value(), buffers_->chunk_gradients(arena_),
                      buffers_->place_of_shards());
  const Deadline deadline =
      Deadline::after_ms(static_cast<int64_t>(plan_.restart.start_timeout_ms));
  Result<bool> over = sums_check_->advance();
  while (over.is_ok() && !over.value()) {
    if (deadline.passed()) {
      return {StatusCode::kTimeout,
              format("rank %u: the summed gradients of open step %lld were not read through within "
                     "%llu ms (restart.start_timeout_s)",
                     rank_.value, static_cast<long long>(step),
                     static_cast<unsigned long long>(plan_.restart.start_timeout_ms))};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(kCheckPollUs));
    over = sums_check_->advance();
  }
  if (!over.is_ok()) return over.status();
  sums_ = sums_check_->sums();
  sums_check_.reset();
  KILL_POINT("actor.sums_checked");
  return Status::ok();
}

// What an update reads is what this rank's record was made from. Sums that another incarnation left
// are read through once, at the start, and otherwise only where the step opened after that: then
// there is a sum a chunk to compare each update with, as where this incarnation made them.
Result<SumsDigest> GpuActor::recorded_sums(Step step) const {
  const auto recorded = window_->view().sums_digest(rank_, step);
  if (recorded) return *recorded;
  return Status(
      StatusCode::kCorrupt,
      format("rank %u: the digest of the summed gradients of open step %lld is not readable "
             "in control segment %s: they cannot be trusted; start again with --fresh "
             "(model.source takes exported weights)",
             rank_.value, static_cast<long long>(step), directory_.control_segment().c_str()));
}

bool GpuActor::sums_are_sound(Step step) const {
  const Result<SumsDigest> recorded = recorded_sums(step);
  if (!sums_ || sums_->step != step || !recorded.is_ok()) return false;
  return sums_->digest().digest == recorded.value().digest;
}

void GpuActor::begin_sums_check(Step step) {
  const Result<SumsDigest> recorded = recorded_sums(step);
  if (!recorded.is_ok()) return end(exit_code_for(recorded.status()), recorded.status().text());
  OPTLEASE_CHECK(!sums_check_, "the sums of step %lld while others are being read",
                 static_cast<long long>(step));
  sums_check_.emplace(*device_, rank_, recorded.value(), buffers_->chunk_gradients(arena_),
                      buffers_->place_of_shards());
}

// On the compute stream: tens of GiB of host memory take longer than a lease lives and the launcher
// waits.
void GpuActor::check_sums_some() {
  if (!sums_check_) return;
  const Result<bool> over = sums_check_->advance();
  if (!over.is_ok()) return end(exit_code_for(over.status()), over.status().text());
  if (!over.value()) return;
  sums_ = sums_check_->sums();
  sums_check_.reset();
}

void GpuActor::start_run(const NextAction& action) {
  std::vector<SpaceBuffers> spaces(plan_.segment.spaces.size());
  const auto record = window_->view().step_record(rank_, action.step);
  if (action.run == RunKind::kUpdate && !record) {
    return end(ExitCode::kCorruptState, format("the record of open step %lld is not readable",
                                               static_cast<long long>(action.step)));
  }
  for (RankSpace& mine : buffers_->spaces()) {
    const SpaceSpec& spec = plan_.segment.spaces[mine.space];
    SpaceBuffers& space = spaces[mine.space];
    space.params = static_cast<char*>(mine.params.data());
    space.grad_shard = mine.grad_shard;
    space.grad_first_word = mine.first_word;
    space.shard = mine.shard;
    space.param_dtype = spec.param_dtype;
    if (action.run == RunKind::kUpdate) {
      space.factors = make_adam_factors(record->groups[spec.group], record->update_count,
                                        record->grad_coefficient * average_of(plan_, spec));
    }
  }
  counters_at_run_ = device_->counters();
  if (buffers_->resident() != nullptr && action.run != RunKind::kRepublish) {
    buffers_->resident()->begin_writing();
  }
  GradCheck grads;
  if (action.run == RunKind::kUpdate) grads = {sums_->of_chunk, buffers_->place_of_shards()};
  FillInitial fill;
  if (action.run == RunKind::kInitialise) {
    fill = [this](uint32_t space, ElementRange range, float* main) {
      return initial_->fill_main(space, range, main);
    };
  }
  if (step_log_ && action.run == RunKind::kUpdate) {
    step_log_->run_begins(action.step, *device_, *pipeline_);
  }
  pipeline_->start(action.run, action.step, action.chunks, std::move(spaces), std::move(grads),
                   std::move(fill));
  pipeline_->advance(static_cast<uint64_t>(now_us()));
}

// What dies with the vault. A device whose streams do not end, or that has failed, is not asked for
// anything: a copy from it would not come back.
void GpuActor::save_at_end() {
  if (!buffers_ || (!buffers_->can_save_shards() && buffers_->resident() == nullptr)) return;
  // In segments that went back in time, what is newer would pass for what belongs there.
  if (window_->view().step_committed() < machine_->committed()) {
    return log_error("the segments are older than this actor's state: nothing is saved in them");
  }
  const Status drained = drain_at_end();
  if (!drained.is_ok()) {
    return log_error("nothing of what is on the device is saved: %s", drained.text().c_str());
  }
  save_shards_at_end();
  save_resident_at_end();
}

Status GpuActor::drain_at_end() {
  const Deadline deadline = Deadline::after_ms(kDrainMs);
  while (!pipeline_->drained()) {
    OPTLEASE_TRY(device_->failure());
    if (deadline.passed()) {
      return {StatusCode::kTimeout, format("its streams do not end within %d ms", kDrainMs)};
    }
    heartbeat();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return device_->failure();
}

// A step of which this rank has sent its record may be open before it hears so.
void GpuActor::save_shards_at_end() {
  if (!buffers_->can_save_shards() || plan_.gradients.durable) return;
  const Step next = window_->view().step_committed() + 1;
  if (step_to_finish() == kNoStep && !(computed_ && computed_->step == next)) return;
  const Status saved = buffers_->save_shards(next);
  if (saved.is_ok()) {
    log_info("the gradient shards of step %lld are saved in %s", static_cast<long long>(next),
             directory_.gradient_segment(rank_).c_str());
  } else {
    log_error("the gradient shards of step %lld cannot be saved: %s", static_cast<long long>(next),
              saved.text().c_str());
  }
}

// The store asks at a step boundary, and again until it is answered.
void GpuActor::on_save_resident(Step step) {
  if (step == machine_->committed()) save_wanted_ = step;
}

// A piece a turn, so that heartbeats go on.
void GpuActor::save_resident_some() {
  if (save_wanted_ == kNoStep) return;
  if (machine_->committed() != save_wanted_ || machine_->open() != kNoStep) {
    save_wanted_ = kNoStep;  // the job moved on: whoever asked is gone
    return;
  }
  if (!pipeline_->writes_nothing()) return;
  if (ResidentArena* resident = buffers_->resident()) {
    const Result<bool> saved = resident->save_some(save_wanted_, buffers_->memory());
    if (!saved.is_ok()) return end(exit_code_for(saved.status()), saved.status().text());
    if (!saved.value()) return;
  }
  send_to_store(MessageKind::kResidentSaved, StepBody{save_wanted_});
  KILL_POINT("actor.resident_saved");
  save_wanted_ = kNoStep;
}

// A piece at a time, so that whoever still listens sees this actor alive.
void GpuActor::save_resident_at_end() {
  ResidentArena* resident = buffers_->resident();
  if (resident == nullptr) return;
  Result<bool> saved = false;
  while (saved.is_ok() && !saved.value()) {
    heartbeat();
    saved = resident->save_some(window_->view().step_committed(), buffers_->memory());
  }
  if (saved.is_ok()) return;
  log_error("the resident part of the state cannot be saved in %s: %s",
            directory_.resident_segment(rank_).c_str(), saved.status().text().c_str());
}

}  // namespace optlease
