// The actor's shared buffers: opened at its start, checked where another incarnation left them,
// given to the pipeline, and the gradient shards saved at its end where they would die with the
// launcher's vault.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "actors/gpu_actor/gpu_actor.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"

namespace optlease {
namespace {

// The longest life after the launcher's: gradient shards leave a device at several GB/s.
constexpr unsigned kSaveSecondsMax = 30;

volatile sig_atomic_t g_told_to_end = 0;

void on_launcher_death(int) {
  g_told_to_end = 1;
  ::alarm(kSaveSecondsMax);
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
  Result<RankBuffers> buffers = RankBuffers::open(plan_, setup, std::move(memory).value());
  if (!buffers.is_ok()) return buffers.status();
  buffers_.emplace(std::move(buffers).value());
  if (setup.open_step != kNoStep) OPTLEASE_TRY(check_sums(setup.open_step));
  const bool has_launcher = lifeline_.fd() >= 0;
  return buffers_->can_save_shards() && has_launcher ? outlive_launcher() : Status::ok();
}

// What an update reads is what this rank's record was made from. Sums that another incarnation left
// are read through once: at the start, and otherwise only where the step opened after that.
Status GpuActor::check_sums(Step step) {
  const auto recorded = window_->view().sums_digest(rank_, step);
  if (!recorded) {
    return {
        StatusCode::kCorrupt,
        format("rank %u: the digest of the summed gradients of open step %lld is not readable "
               "in control segment %s: they cannot be trusted; start again with --fresh "
               "(model.source takes exported weights)",
               rank_.value, static_cast<long long>(step), directory_.control_segment().c_str())};
  }
  if (sums_ && std::memcmp(&*sums_, &*recorded, sizeof *recorded) == 0) return Status::ok();
  OPTLEASE_TRY(buffers_->check_sums(*recorded));
  sums_ = recorded;
  return Status::ok();
}

void GpuActor::start_run(const NextAction& action) {
  std::vector<SpaceBuffers> spaces(plan_.segment.spaces.size());
  const auto record = window_->view().step_record(rank_, action.step);
  if (action.run == RunKind::kUpdate && !record) {
    return end(ExitCode::kCorruptState, format("the record of open step %lld is not readable",
                                               static_cast<long long>(action.step)));
  }
  if (action.run == RunKind::kUpdate) {
    const Status sound = check_sums(action.step);
    if (!sound.is_ok()) return end(exit_code_for(sound), sound.text());
  }
  for (RankSpace& mine : buffers_->spaces()) {
    const SpaceSpec& spec = plan_.segment.spaces[mine.space];
    SpaceBuffers& space = spaces[mine.space];
    space.params = static_cast<char*>(mine.params.data());
    space.grad_shard = mine.grad_shard;
    space.shard = mine.shard;
    space.param_dtype = spec.param_dtype;
    if (action.run == RunKind::kUpdate) {
      space.factors = make_adam_factors(record->groups[spec.group], record->update_count,
                                        record->grad_coefficient * average_of(plan_, spec));
    }
  }
  FillInitial fill;
  if (action.run == RunKind::kInitialise) {
    fill = [this](uint32_t space, ElementRange range, float* main) {
      return initial_->fill_main(space, range, main);
    };
  }
  pipeline_->start(action.run, action.step, action.chunks, std::move(spaces), std::move(fill));
  pipeline_->advance(static_cast<uint64_t>(now_us()));
}

// A step of which this rank has sent its record may be open before it hears so.
void GpuActor::save_shards_at_end() {
  if (!buffers_ || !buffers_->can_save_shards() || plan_.gradients.durable) return;
  if (exit_code_ == ExitCode::kReplaced) return;  // the shards are the newer incarnation's
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

}  // namespace optlease
