// The actor's half of the lease protocol: one handler a message, and what it sends.
#include "actors/gpu_actor/gpu_actor.h"

#include <unistd.h>

#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {
constexpr int kMessagesPerTurn = 256;
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
template void GpuActor::send_to_store(MessageKind, const StepBody&, std::string_view);

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
    return pipeline_->on_grant(frame.as<LeaseGrantBody>(), frame.entries<GrantEntry>(),
                               static_cast<uint64_t>(now_us()));
  }
  if (kind == MessageKind::kCommitReply) {
    return pipeline_->on_commit_reply(frame.as<CommitReplyBody>());
  }
  if (kind == MessageKind::kStepCommitted) return on_step_committed(frame.as<StepBody>());
  if (kind == MessageKind::kSaveResident) return on_save_resident(frame.as<StepBody>().step);
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
  KILL_POINT("actor.welcomed");
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
  // A lease that is over already needs no return.
  if (code == StatusCode::kStaleLease && kind == MessageKind::kLeaseReturn) return;
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
  KILL_POINT("actor.detached");
  detached_since_ms_ = now_ms();
  hello_at_ms_ = 0;
  first_hello_ = 0;
}

void GpuActor::request_lease(Step step, uint32_t first_chunk, uint32_t chunk_count) {
  send_to_store(MessageKind::kLeaseRequest, LeaseRequestBody{step, first_chunk, chunk_count});
}

void GpuActor::return_lease(uint64_t lease_id) {
  send_to_store(MessageKind::kLeaseReturn, LeaseReturnBody{lease_id});
  KILL_POINT("lease.returned");
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
  KILL_POINT("actor.ready_said");
}

void GpuActor::send_record(Step step) {
  if (!computed_ || computed_->step != step || !sums_ || sums_->step != step) return;
  StepRecordBody body{};
  body.group_epoch = machine_->group_epoch();
  body.record = *computed_;
  body.sums = sums_->digest();
  KILL_POINT("actor.record_made");
  send_to_store(MessageKind::kStepRecord, body);
  KILL_POINT("actor.record_sent");
}

}  // namespace optlease
