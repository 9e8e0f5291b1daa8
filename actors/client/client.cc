#include "actors/client/client.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "actors/client/optlease.h"
#include "actors/runtime/client_abi.h"
#include "shm/kill_point.h"
#include "shm/standard_descriptors.h"

namespace optlease {

namespace {

static_assert(OPTLEASE_ABI_VERSION == kClientAbiVersion,
              "actors serve the version that is shipped");

// Until the plan is read, nobody knows the job's own timeout.
constexpr uint64_t kFindJobTimeoutMs = 30000;

StepRequestBody body_of(const OpenRequest& request) {
  const auto decoded = decode(request.frame);
  OPTLEASE_CHECK(decoded.is_ok(), "%s", decoded.status().text().c_str());
  return decoded.value().as<StepRequestBody>();
}

Status check_rank(const SegmentPlan& plan, uint32_t rank) {
  if (rank < plan.world_size) return Status::ok();
  return {StatusCode::kInvalidArgument, format("rank %u of job '%s', which has ranks 0..%u", rank,
                                               plan.job_name.c_str(), plan.world_size - 1)};
}

}  // namespace

Client::Client(RunningJob job, uint32_t rank, DevicePlace place,
               std::vector<ClientSpaceBuffers> buffers, ActorLink link)
    : job_(std::move(job)),
      rank_(rank),
      place_(place),
      buffers_(std::move(buffers)),
      link_(std::move(link)) {}

Result<std::unique_ptr<Client>> Client::attach(const std::string& job, uint32_t rank,
                                               uint64_t timeout_ms) {
  // Shared buffers arrive as descriptors: what the trainer prints must not reach them.
  reserve_standard_descriptors();
  const int64_t start_ms = now_ms();
  const auto deadline_for = [&](uint64_t ms) {
    return Deadline::at_ms(start_ms + static_cast<int64_t>(std::min<uint64_t>(ms, INT32_MAX)));
  };
  auto found =
      find_running_job(job, deadline_for(timeout_ms != 0 ? timeout_ms : kFindJobTimeoutMs));
  if (!found) return found.status();
  OPTLEASE_TRY(check_rank(found.value().plan.segment, rank));
  KILL_POINT("client.job_found");
  const Deadline deadline =
      deadline_for(timeout_ms != 0 ? timeout_ms : found.value().plan.trainer.attach_timeout_ms);
  const RunDirectory& directory = found.value().directory;
  const auto place = device_of_rank(found.value().plan.device, rank);
  if (!place) return place.status();
  auto buffers = map_space_buffers(found.value().plan.segment, rank, place.value(),
                                   directory.vault_socket(), deadline);
  if (!buffers) return buffers.status();
  KILL_POINT("client.buffers_mapped");
  auto link = ActorLink::connect(directory, rank);
  if (!link) return link.status();
  std::unique_ptr<Client> client(new Client(std::move(found.value()), rank, place.value(),
                                            std::move(buffers.value()), std::move(link.value())));
  OPTLEASE_TRY(client->say_attach(deadline));
  return client;
}

Status Client::say_attach(Deadline deadline) {
  AttachBody body{};
  body.abi_version = OPTLEASE_ABI_VERSION;
  body.pid = static_cast<uint32_t>(::getpid());
  const OpenRequest request = link_.open(MessageKind::kAttach, MessageKind::kAttached, body);
  auto frame = link_.exchange(request, deadline);
  if (!frame) return frame.status();
  OPTLEASE_TRY(outcome_of(request, frame.value()));
  const auto reply = decode(frame.value());
  const auto attached = reply.value().as<AttachedBody>();
  if (attached.step_committed < 0)
    return {StatusCode::kCorrupt,
            format("rank %u's actor answered Attach with step %lld, before step 0 exists", rank_,
                   static_cast<long long>(attached.step_committed))};
  KILL_POINT("client.attached");
  last_step_ = attached.step_committed;
  blob_ = attached.has_blob != 0 ? std::string(reply.value().payload) : std::string();
  return Status::ok();
}

Result<const ClientSpaceBuffers*> Client::buffers_of(uint32_t space) const {
  if (space >= buffers_.size())
    return Status{StatusCode::kNotFound,
                  format("space %u of job '%s', which has %zu", space,
                         job_.plan.segment.job_name.c_str(), buffers_.size())};
  if (!buffers_[space].is_member)
    return Status{StatusCode::kNotFound,
                  format("rank %u is no member of space %u ('%s') and has no buffers of it", rank_,
                         space, job_.plan.segment.spaces[space].name.c_str())};
  return &buffers_[space];
}

Result<void*> Client::params(uint32_t space) const {
  const auto buffers = buffers_of(space);
  if (!buffers) return buffers.status();
  return buffers.value()->params.data();
}

Result<void*> Client::grads(uint32_t space) const {
  const auto buffers = buffers_of(space);
  if (!buffers) return buffers.status();
  return buffers.value()->grads.data();
}

OpenRequest Client::open_step(const StepAsk& ask) {
  StepRequestBody body{};
  body.step = last_step_ + 1;
  body.lr = ask.lr;
  body.grad_scale = ask.grad_scale;
  body.max_norm = ask.max_norm;
  body.blob_bytes = ask.blob ? static_cast<uint32_t>(ask.blob->size()) : 0;
  body.keep_blob = ask.blob ? 0 : 1;
  return link_.open(MessageKind::kStepRequest, MessageKind::kStepReply, body,
                    ask.blob.value_or(std::string_view{}));
}

Status Client::prepare(Step step) {
  const auto number = static_cast<long long>(step);
  const auto next = static_cast<long long>(last_step_ + 1);
  if (in_flight_)
    return {StatusCode::kBusy,
            format("step %lld cannot be prepared: step %lld is in flight; call optlease_step again "
                   "to go on waiting for it",
                   number, next)};
  if (step != last_step_ + 1)
    return {StatusCode::kStaleStep,
            format("step %lld cannot be prepared: the next step is %lld", number, next)};
  if (job_.plan.steps > 0 && step > job_.plan.steps)
    return {StatusCode::kStaleStep,
            format("step %lld cannot be prepared: the job ends with step %lld (job.steps)", number,
                   static_cast<long long>(job_.plan.steps))};
  link_.say(MessageKind::kPrepare, StepBody{step});
  KILL_POINT("client.prepared");
  return Status::ok();
}

// The blob that counts is the one in the request that was sent, which after a Timeout may be older
// than what the latest call asked.
void Client::take_committed(Step step) {
  if (body_of(*in_flight_).keep_blob == 0)
    blob_ = in_flight_->frame.substr(sizeof(MessageHeader) + sizeof(StepRequestBody));
  last_step_ = step;
  in_flight_.reset();
}

Result<StepReplyBody> Client::step(const StepAsk& ask, uint64_t timeout_ms) {
  if (!in_flight_) in_flight_ = open_step(ask);
  const Step step = last_step_ + 1;
  const Deadline deadline =
      Deadline::after_ms(static_cast<int64_t>(std::min<uint64_t>(timeout_ms, INT32_MAX)));
  const auto frame = link_.exchange(*in_flight_, deadline);
  if (!frame)
    return Status{frame.status().code(), format("step %lld: %s", static_cast<long long>(step),
                                                frame.status().message().c_str())};
  if (const Status outcome = outcome_of(*in_flight_, frame.value()); !outcome) {
    in_flight_.reset();
    return Status{outcome.code(),
                  format("step %lld: %s", static_cast<long long>(step), outcome.message().c_str())};
  }
  const auto reply = decode(frame.value()).value().as<StepReplyBody>();
  if (reply.step != step) {
    in_flight_.reset();
    return Status{StatusCode::kCorrupt,
                  format("step %lld was asked for and step %lld answered",
                         static_cast<long long>(step), static_cast<long long>(reply.step))};
  }
  KILL_POINT("client.step_answered");
  take_committed(step);
  return reply;
}

}  // namespace optlease
