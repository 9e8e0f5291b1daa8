#include "actors/gpu_actor/trainer_requests.h"

#include <algorithm>
#include <cmath>

#include "actors/runtime/client_abi.h"
#include "actors/runtime/log.h"
#include "shm/kill_point.h"

namespace optlease {

void TrainerRequests::handle(const std::string& peer, std::string_view bytes,
                             const DeskFacts& facts) {
  const Result<Decoded> frame = decode(bytes);
  if (!frame.is_ok()) {
    ++refusals_;
    log_warn("trainer socket: dropped a frame of %zu bytes: %s", bytes.size(),
             frame.status().message().c_str());
    return;
  }
  const Decoded& decoded = frame.value();
  if (decoded.kind == MessageKind::kAttach) {
    on_attach(peer, decoded);
  } else if (decoded.kind == MessageKind::kStepRequest) {
    on_step_request(peer, decoded, facts);
  } else if (decoded.kind == MessageKind::kPrepare) {
    on_prepare(decoded.as<StepBody>().step, facts);
  } else if (decoded.kind == MessageKind::kDetach) {
    prepared_ = kNoStep;
    if (attaching_ && attaching_->first == peer) attaching_.reset();
  } else {
    ++refusals_;
    log_warn("trainer socket: %s is no request of a trainer", name_of(decoded.kind));
  }
}

void TrainerRequests::on_attach(const std::string& peer, const Decoded& frame) {
  const auto body = frame.as<AttachBody>();
  if (body.abi_version == kClientAbiVersion) {
    prepared_ = kNoStep;  // what an earlier life was about to do is over
    attaching_ = {peer, frame.header.sequence};
    return;
  }
  refuse(
      peer, MessageKind::kAttach, frame.header.sequence,
      {StatusCode::kWrongVersion,
       format("the trainer's client library has ABI version %u, this job's actors have %u: build "
              "the trainer against this version",
              body.abi_version, kClientAbiVersion)});
}

// A hint without an answer: what cannot be is dropped.
void TrainerRequests::on_prepare(Step step, const DeskFacts& facts) {
  if (facts.committed < 0 || (step > facts.committed && step <= facts.known() + 1)) {
    if (step <= facts.last) prepared_ = step;
    return;
  }
  ++refusals_;
  log_warn("a trainer prepares step %lld, and the next step is %lld: ignored",
           static_cast<long long>(step), static_cast<long long>(facts.known() + 1));
}

void TrainerRequests::refuse(const std::string& peer, MessageKind kind, uint64_t sequence,
                             const Status& why) {
  ++refusals_;
  RefusedBody body{};
  body.kind = static_cast<uint16_t>(kind);
  body.status = static_cast<uint16_t>(why.code());
  body.text_bytes = static_cast<uint32_t>(why.message().size());
  outgoing_.push_back(
      {peer, encode({.rank = rank_.value}, MessageKind::kRefused, sequence, body, why.message())});
}

void TrainerRequests::on_step_request(const std::string& peer, const Decoded& frame,
                                      const DeskFacts& facts) {
  const auto body = frame.as<StepRequestBody>();
  // A new life of the actor that the store has not welcomed yet knows no step: a refusal would end
  // a trainer that is right. The trainer asks again until its own deadline.
  if (facts.committed < 0) return;
  // An answered step may still be on its way to its commit, which the next one then waits for.
  if (body.step > facts.known() + 1) {
    ++refusals_;
    reply_step(
        peer, frame.header.sequence, body.step, nullptr,
        {StatusCode::kStaleStep,
         format("step %lld was asked for, and the next step is %lld; ask for the last committed "
                "step and go on from there",
                static_cast<long long>(body.step), static_cast<long long>(facts.known() + 1))});
    return;
  }
  if (body.step > facts.last) {
    ++refusals_;
    reply_step(peer, frame.header.sequence, body.step, nullptr,
               {StatusCode::kStaleStep,
                format("step %lld was asked for, and the job ends with step %lld (job.steps)",
                       static_cast<long long>(body.step), static_cast<long long>(facts.last))});
    return;
  }
  request_ = StepRequestInHand{peer, frame.header.sequence, body, std::string(frame.payload)};
  KILL_POINT("trainer.step_taken");
}

void TrainerRequests::answer(const DeskFacts& facts, const ControlView& control) {
  // The last step is answered when it is committed: its trainer ends with it.
  const Step final = std::min(facts.published, std::max(facts.committed, facts.last - 1));
  if (request_ && request_->body.step <= final) {
    // Records live for two steps; an older one is answered without its norm.
    const auto record = control.step_record(rank_, request_->body.step);
    reply_step(request_->peer, request_->sequence, request_->body.step, record ? &*record : nullptr,
               Status::ok());
    KILL_POINT("trainer.step_answered");
    request_.reset();
  }
  if (attaching_ && facts.quiet && !request_) reply_attached(facts, control);
}

void TrainerRequests::reply_step(const std::string& peer, uint64_t sequence, Step step,
                                 const StepRecord* record, const Status& status) {
  StepReplyBody body{};
  body.step = step;
  body.grad_norm = record == nullptr ? std::nan("") : record->grad_norm;
  body.skipped = record == nullptr ? 0 : record->skipped;
  body.status = static_cast<uint16_t>(status.code());
  body.text_bytes = static_cast<uint32_t>(status.message().size());
  outgoing_.push_back({peer, encode({.rank = rank_.value}, MessageKind::kStepReply, sequence, body,
                                    status.message())});
}

void TrainerRequests::reply_attached(const DeskFacts& facts, const ControlView& control) {
  const std::optional<std::string> blob = control.blob(rank_, facts.committed);
  AttachedBody body{};
  body.step_committed = facts.committed;
  body.blob_bytes = blob ? static_cast<uint32_t>(blob->size()) : 0;
  body.has_blob = blob ? 1 : 0;
  outgoing_.push_back({attaching_->first, encode({.rank = rank_.value}, MessageKind::kAttached,
                                                 attaching_->second, body, blob.value_or(""))});
  KILL_POINT("trainer.attach_answered");
  log_info("a trainer attached at step %lld", static_cast<long long>(facts.committed));
  attaching_.reset();
}

}  // namespace optlease
