// The actor's device and shared buffers: opened at its start, and the gradient shards saved at its
// end where they would die with the launcher's vault.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "actors/gpu_actor/gpu_actor.h"
#include "actors/gpu_actor/predecessor.h"
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

// A predecessor's device memory is free only once its driver has torn it down.
Status GpuActor::open_device() {
  const bool successor = replaces_a_dead_one(args_);
  const StatusCode full = StatusCode::kNoSpace;
  Result<std::unique_ptr<Device>> device = once_predecessor_is_gone(
      full, successor, [&] { return make_device(plan_.device.c_str(), rank_); });
  if (!device.is_ok()) return device.status();
  device_ = std::move(device).value();
  return once_predecessor_is_gone(full, successor, [&] {
    return device_->allocate_staging(arena_.chunks.empty() ? 0 : plan_.staging_buffers,
                                     arena_.slot_bytes * plan_.segment.window_chunks);
  });
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
  const bool has_launcher = lifeline_.fd() >= 0;
  return buffers_->can_save_shards() && has_launcher ? outlive_launcher() : Status::ok();
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
