// The actor's half of the lease protocol: one handler a message, and what it sends.
#include "actors/gpu_actor/gpu_actor.h"

#include <unistd.h>

#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"

namespace optlease {
namespace {
constexpr int kMessagesPerTurn = 256;
constexpr int kSnapshotEveryMs = 20;
}  // namespace

template <class Body>
void GpuActor::send_to_store(MessageKind kind, const Body& body, std::string_view payload) {
  const Speaker speaker{rank_.value, args_.incarnation, store_epoch_};
  // A full queue means a store that does not read: the request is repeated, the deadline counts.
  const Status sent = store_->send({"", encode(speaker, kind, ++sequence_, body, payload)});
  if (!sent.is_ok() && sent.code() != StatusCode::kBusy) end(ExitCode::kIo, sent.text());
}
template void GpuActor::send_to_store(MessageKind, const HelloBody&, std::string_view);
template void GpuActor::send_to_store(MessageKind, const HeartbeatBody&, std::string_view);
template void GpuActor::send_to_store(MessageKind, const PublishedBody&, std::string_view);

void GpuActor::receive_from_store() {
  Message message;
  for (int i = 0; i < kMessagesPerTurn && !exit_code_ && store_->receive(&message); ++i) {
    const Result<Decoded> frame = decode(message.frame);
    if (!frame.is_ok()) {
      log_error("host store: a frame of %zu bytes was dropped: %s", message.frame.size(),
                frame.status().message().c_str());
      continue;
    }
    on_store_message(frame.value());
  }
}

void GpuActor::on_store_message(const Decoded& frame) {
  if (frame.kind == MessageKind::kWelcome) return on_welcome(frame);
  if (frame.kind == MessageKind::kRefused) return on_refused(frame);
  // Whatever an earlier life of the store said is void.
  if (!machine_->attached() || frame.header.store_epoch != store_epoch_) return;
  const MessageKind kind = frame.kind;
  if (kind == MessageKind::kGroupFormed) return on_group_formed(frame.as<GroupBody>());
  if (kind == MessageKind::kGroupBroken) return on_group_broken(frame.as<GroupBody>());
  if (kind == MessageKind::kGoReduce || kind == MessageKind::kGoGather) return on_go(frame);
  if (kind == MessageKind::kStepOpen) return machine_->on_step_open(frame.as<StepBody>().step);
  if (kind == MessageKind::kLeaseGrant) {
    return pipeline_->on_grant(frame.as<LeaseGrantBody>(), frame.entries<GrantEntry>());
  }
  if (kind == MessageKind::kCommitReply) {
    return pipeline_->on_commit_reply(frame.as<CommitReplyBody>());
  }
  if (kind == MessageKind::kStepCommitted) return on_step_committed(frame.as<StepBody>());
  if (kind == MessageKind::kStopActor) return end(ExitCode::kOk, "the host store said stop");
  log_warn("host store: %s is no message to an actor", name_of(kind));
}

void GpuActor::on_welcome(const Decoded& frame) {
  if (machine_->attached()) return;  // the answer to a repeated hello
  // One that was said before the streams were drained gave no word about them.
  if (first_hello_ == 0 || frame.header.sequence < first_hello_) return;
  const auto body = frame.as<WelcomeBody>();
  if (body.step_committed < machine_->committed()) {
    return end(ExitCode::kCorruptState,
               format("the host store says that step %lld is the last that is committed, and told "
                      "this actor before that step %lld was: the job's segments in /dev/shm were "
                      "exchanged for an older copy while no store ran, or are damaged. Nothing "
                      "goes on from there; put the newer segments back and resume, resume from "
                      "the older ones if that is wanted, or start again with --fresh",
                      static_cast<long long>(body.step_committed),
                      static_cast<long long>(machine_->committed())));
  }
  store_epoch_ = frame.header.store_epoch;
  machine_->on_welcome(body.step_committed, body.step_open);
  log_info("attached: store epoch %llu, committed step %lld, open step %lld",
           static_cast<unsigned long long>(store_epoch_),
           static_cast<long long>(body.step_committed), static_cast<long long>(body.step_open));
}

void GpuActor::on_group_formed(const GroupBody& body) {
  worker_->abort(body.group_epoch - 1);
  machine_->on_group_formed(body.group_epoch);
  worker_->connect(body.group_epoch);
}

void GpuActor::on_group_broken(const GroupBody& body) {
  worker_->abort(body.group_epoch);
  machine_->on_group_broken(body.group_epoch);
}

void GpuActor::on_go(const Decoded& frame) {
  const auto body = frame.as<GoBody>();
  GoOrder order;
  order.gather = frame.kind == MessageKind::kGoGather;
  order.group_epoch = body.group_epoch;
  order.step = body.step;
  order.needs.assign(frame.payload.begin(), frame.payload.end());
  if (order.needs.size() != plan_.segment.world_size) {
    return end(ExitCode::kInternal, format("%s names %zu ranks of %u", name_of(frame.kind),
                                           order.needs.size(), plan_.segment.world_size));
  }
  machine_->on_order(std::move(order));
}

void GpuActor::on_step_committed(const StepBody& body) {
  machine_->on_step_committed(body.step);
  computed_.reset();
  const auto record = window_->view().step_record(rank_, body.step);
  if (!record) return;
  last_grad_norm_ = record->grad_norm;
  if (record->skipped == 0) return;
  ++steps_skipped_;
  log_warn("step %lld was skipped: a gradient was not finite", static_cast<long long>(body.step));
  // The values are those of the step before, and so are the parameters in the buffer.
  for (uint32_t c = 0; c < arena_.chunks.size(); ++c) {
    if (pipeline_->published(c) == body.step - 1) pipeline_->set_published(c, body.step);
  }
}

void GpuActor::on_refused(const Decoded& frame) {
  const auto body = frame.as<RefusedBody>();
  const auto kind = static_cast<MessageKind>(body.kind);
  const auto code = static_cast<StatusCode>(body.status);
  const std::string text(frame.payload);
  if (code == StatusCode::kBusy && kind == MessageKind::kLeaseRequest) {
    return pipeline_->on_lease_busy(static_cast<uint64_t>(now_us()));
  }
  ++refusals_;
  log_warn("%s refused: %s: %s", name_of(kind), name_of(code), text.c_str());
  if (code == StatusCode::kStaleIncarnation) {
    return end(ExitCode::kReplaced, "a newer incarnation of this rank has taken over: " + text);
  }
  if (code == StatusCode::kCorrupt) return end(ExitCode::kCorruptState, text);
  const bool hello = kind == MessageKind::kHello;
  if (hello && (code == StatusCode::kWrongVersion || code == StatusCode::kInvalidArgument)) {
    return end(ExitCode::kBadConfiguration, text);
  }
  const bool of_this_life =
      frame.header.store_epoch == 0 || frame.header.store_epoch == store_epoch_;
  if (code == StatusCode::kStaleEpoch || (code == StatusCode::kStaleLease && of_this_life))
    reattach(text.c_str());
}

void GpuActor::reattach(const char* why) {
  if (!machine_->attached()) return;
  log_warn("drains and attaches again: %s", why);
  worker_->abort(machine_->group_epoch());
  machine_->on_group_broken(machine_->group_epoch());
  machine_->on_detached();
  pipeline_->abandon();
  detached_since_ms_ = now_ms();
  hello_at_ms_ = 0;
  first_hello_ = 0;
}

void GpuActor::request_lease(Step step, uint32_t first_chunk, uint32_t chunk_count) {
  send_to_store(MessageKind::kLeaseRequest, LeaseRequestBody{step, first_chunk, chunk_count});
}

void GpuActor::request_commit(const CommitRequestBody& body, const std::vector<SlotEntry>& shadow) {
  const std::string_view payload(reinterpret_cast<const char*>(shadow.data()),
                                 shadow.size() * sizeof(SlotEntry));
  send_to_store(MessageKind::kCommitRequest, body, payload);
}

void GpuActor::corrupt_chunk(const CorruptChunkBody& body) {
  send_to_store(MessageKind::kCorruptChunk, body);
}

void GpuActor::send_ready(Step step) {
  StepReadyBody body{};
  body.step = step;
  std::string_view blob;
  const auto& request = desk_->in_hand();
  if (request && request->body.keep_blob == 0) {
    blob = request->blob;
  } else {
    body.keep_blob = 1;
  }
  body.blob_bytes = static_cast<uint32_t>(blob.size());
  send_to_store(MessageKind::kStepReady, body, blob);
}

void GpuActor::send_record(Step step) {
  if (!computed_ || computed_->step != step || !sums_) return;
  StepRecordBody body{};
  body.group_epoch = machine_->group_epoch();
  body.record = *computed_;
  body.sums = *sums_;
  send_to_store(MessageKind::kStepRecord, body);
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
    case Phase::kNorm:
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
  if (publisher_->due(now)) publisher_->publish(telemetry(), now);
  if (now < snapshots_at_ms_) return;  // gathering the numbers costs a look at every chunk
  snapshots_at_ms_ = now + kSnapshotEveryMs;
  publisher_->answer_snapshots(telemetry());
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
  t.step_h2d_bytes_per_second = h2d_rate_;
  t.step_d2h_bytes_per_second = d2h_rate_;
  t.lease_wait_seconds_total = pipeline.lease_wait_seconds;
  t.exposed_stall_seconds_total = pipeline.stall_seconds;
  t.kernel_seconds_total = device.kernel_seconds;
  t.commits_total = pipeline.commits;
  t.refusals_total = refusals_ + desk_->refusals();
  t.restarts_total = args_.incarnation - 1;
  t.staging_bytes = device_->staging_bytes();
  t.staging_peak_bytes = device_->staging_bytes();  // made once, never grown
  t.staging_budget_bytes = plan_.staging_budget_bytes(rank_);
  t.steps_total = steps_done_;
  t.steps_skipped_total = steps_skipped_;
  t.step_seconds = last_step_seconds_;
  t.step_seconds_history = step_times_.summary();
  t.timeline = last_timeline_;
  t.grad_norm = last_grad_norm_;
  return t;
}

}  // namespace optlease
