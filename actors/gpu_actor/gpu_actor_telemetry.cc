// What the actor tells of itself: telemetry, and the figures of its steps.
#include <unistd.h>

#include <algorithm>

#include "actors/gpu_actor/gpu_actor.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/process_memory.h"

namespace optlease {
namespace {
constexpr int kSnapshotEveryMs = 20;
}  // namespace

// Before the device holds anything of the job's.
Status GpuActor::open_step_log() {
  if (!plan_.telemetry.step_log) return Status::ok();
  Result<StepLog> log =
      StepLog::open(step_log_file(directory_, rank_), args_.incarnation, *device_);
  if (!log.is_ok()) return log.status();
  step_log_.emplace(std::move(log).value());
  return Status::ok();
}

// What RankBuffers took of the accelerator's memory; nothing on the CPU device.
uint64_t GpuActor::device_buffer_bytes() {
  if (plan_.device == "cpu") return 0;
  uint64_t bytes = 0;
  for (const RankSpace& space : buffers_->spaces()) {
    for (const MappedDeviceBuffer* buffer :
         {&space.params, &space.grads, &space.grad_shard_buffer}) {
      if (buffer->bytes() > 0) bytes += buffers_->memory().allocation_bytes(buffer->bytes());
    }
  }
  if (const ResidentArena* resident = buffers_->resident()) {
    bytes += buffers_->memory().allocation_bytes(resident->bytes());
  }
  return bytes;
}

// Of a gather that has just ended: what it took beyond this rank's own windows.
double GpuActor::exposed_gather_seconds() const {
  const uint64_t hidden_until = std::max(gather_begun_us_, pipeline_->times().computed_us);
  const auto now = static_cast<uint64_t>(now_us());
  return now > hidden_until ? static_cast<double>(now - hidden_until) * 1e-6 : 0;
}

void GpuActor::account_phase_time() {
  const int64_t now = now_us();
  const double seconds = static_cast<double>(now - phase_since_us_) * 1e-6;
  phase_since_us_ = now;
  switch (machine_->phase()) {
    case Phase::kWaitPeers:
      timeline_.wait_peers += seconds;
      break;
    case Phase::kReduce:
      timeline_.reduce += seconds;
      break;
    case Phase::kWaitOpen:
      timeline_.wait_open += seconds;
      break;
    case Phase::kStream:
      timeline_.stream += seconds;
      break;
    case Phase::kWaitCommitted:
      timeline_.wait_committed += seconds;
      break;
    case Phase::kGather:
      timeline_.gather += seconds;
      break;
    case Phase::kStarting:
    case Phase::kIdle:
    case Phase::kInitialise:
    case Phase::kStopping:
      break;
  }
}

void GpuActor::publish_telemetry() {
  const int64_t now = now_ms();
  figures_->set_credit(pipeline_->counters().deferred, pipeline_->counters().credit_wait_seconds);
  if (publisher_->due(now)) {
    figures_->set_pin_refused(device_->host_pins().refused_bytes);
    if (step_log_) step_log_->look_at_memory(*device_);
    publisher_->publish(telemetry(), now);
  }
  if (now < snapshots_at_ms_) return;  // gathering the numbers costs a look at every chunk
  snapshots_at_ms_ = now + kSnapshotEveryMs;
  publisher_->answer_snapshots(telemetry());
}

// Whoever asked for snapshots hears how it ended: the launcher's report has the last step's time
// from here. The order to stop may have come together with that step's commit.
void GpuActor::say_last_words() {
  const Step published = machine_->published();
  if (published > finished_ && published <= machine_->committed()) {
    finished_ = published;
    count_step(published);
  }
  ActorTelemetry last = telemetry();
  last.phase = Phase::kStopping;
  publisher_->answer_last(last);
}

ActorTelemetry GpuActor::telemetry() const {
  ActorTelemetry t;
  t.job = plan_.segment.job_name;
  t.rank = rank_.value;
  t.incarnation = args_.incarnation;
  t.pid = static_cast<uint32_t>(getpid());
  t.device = device_->name();
  t.phase = machine_->phase();
  t.step_committed = machine_->committed();
  t.step = machine_->open() != kNoStep ? machine_->open() : machine_->committed() + 1;
  t.chunks_total = static_cast<uint32_t>(arena_.chunks.size());
  if (machine_->open() != kNoStep) {
    for (uint32_t c = 0; c < t.chunks_total; ++c) {
      t.chunks_done += window_->view().version(rank_, ChunkIndex(c)) >= t.step ? 1 : 0;
    }
  }
  const DeviceCounters device = device_->counters();
  const PipelineCounters& pipeline = pipeline_->counters();
  t.h2d_bytes_total = device.bytes_in;
  t.d2h_bytes_total = device.bytes_out;
  t.bounced_bytes_total = device.bounced_bytes;
  t.step_h2d_bytes_per_second = h2d_rate_;
  t.step_d2h_bytes_per_second = d2h_rate_;
  t.lease_wait_seconds_total = pipeline.lease_wait_seconds;
  t.leases_deferred_total = pipeline.deferred;
  t.credit_wait_seconds_total = pipeline.credit_wait_seconds;
  t.exposed_stall_seconds_total = pipeline.stall_seconds;
  t.step_lease_wait_seconds = step_lease_wait_seconds_;
  t.step_exposed_stall_seconds = step_stall_seconds_;
  t.kernel_seconds_total = device.kernel_seconds;
  t.commits_total = pipeline.commits;
  t.refusals_total = refusals_ + desk_->refusals();
  t.restarts_total = args_.incarnation - 1;
  t.staging_bytes = device_->staging_bytes();
  t.staging_peak_bytes = device_->staging_bytes();  // made once, never grown
  t.staging_budget_bytes = plan_.staging_budget_bytes(rank_);
  const HostPins pins = device_->host_pins();
  t.pinned_bytes = pins.pinned_bytes;
  t.pin_refused_bytes = pins.refused_bytes;
  t.resident_bytes = arena_.resident_slot_bytes * arena_.slot_count;
  const ProcessMemory memory = own_memory();
  t.rss_bytes = memory.rss_bytes;
  t.private_bytes = memory.private_bytes;
  t.steps_total = steps_done_;
  t.steps_skipped_total = steps_skipped_;
  t.step_seconds = last_step_seconds_;
  t.step_seconds_history = step_times_.summary();
  t.timeline = last_timeline_;
  t.grad_norm = last_grad_norm_;
  return t;
}

}  // namespace optlease
