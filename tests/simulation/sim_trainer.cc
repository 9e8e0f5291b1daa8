#include "tests/simulation/sim_trainer.h"

#include <cmath>
#include <utility>

#include "actors/runtime/client_abi.h"

namespace optlease {
namespace {

constexpr uint64_t kRepeatUs = 200'000;
constexpr size_t kWaitingMax = 2;  // the client library's high water mark

}  // namespace

SimTrainer::SimTrainer(SimContext& context, const SimPlace& place, uint64_t number, uint32_t rank,
                       uint64_t life, ToActor to_actor)
    : SimProcess(context, number, {Role::kTrainer, rank}, life),
      place_(place),
      rank_(rank),
      peer_(format("trainer.%llu", static_cast<unsigned long long>(number))),
      link_(
          context,
          [this, to_actor = std::move(to_actor)](std::string frame) {
            to_actor(peer_, std::move(frame));
          },
          [this](std::string frame) {
            run([this, frame = std::move(frame)] { on_frame(decode(frame).value()); });
          }) {}

void SimTrainer::begin() {
  run([this] {
    const AttachBody body{.abi_version = kClientAbiVersion, .pid = 1};
    request(encode(Speaker{rank_.value}, MessageKind::kAttach, ++sequence_, body));
  });
}

void SimTrainer::request(std::string frame) {
  request_ = std::move(frame);
  repeat(sequence_);
}

void SimTrainer::repeat(uint64_t sequence) {
  if (request_.empty() || sequence != sequence_) return;
  link_.send(request_, kWaitingMax);
  run_after(kRepeatUs, [this, sequence] { repeat(sequence); });
}

void SimTrainer::on_frame(const Decoded& frame) {
  if (request_.empty() || frame.header.sequence != sequence_) return;
  SIM_TRACE(context_, "%s of rank %u <- %s", peer_.c_str(), rank_.value, name_of(frame.kind));
  if (frame.kind == MessageKind::kAttached) return on_attached(frame);
  if (frame.kind == MessageKind::kStepReply) return on_reply(frame);
  context_.fail(format("a trainer of rank %u is answered %s: %.*s", rank_.value,
                       name_of(frame.kind), static_cast<int>(frame.payload.size()),
                       frame.payload.data()));
}

void SimTrainer::on_attached(const Decoded& frame) {
  const auto body = frame.as<AttachedBody>();
  request_.clear();
  step_ = body.step_committed;
  place_.ledger.check_params(rank_, step_, "at attach");
  const std::string blob(frame.payload);
  place_.ledger.check_blob(rank_, step_, body.has_blob != 0 ? std::optional(blob) : std::nullopt);
  compute();
}

void SimTrainer::on_reply(const Decoded& frame) {
  const auto body = frame.as<StepReplyBody>();
  if (body.status != static_cast<uint16_t>(StatusCode::kOk) || body.step != step_ + 1) {
    return context_.fail(format("a trainer of rank %u asks for step %lld and hears of %lld: %.*s",
                                rank_.value, static_cast<long long>(step_ + 1),
                                static_cast<long long>(body.step),
                                static_cast<int>(frame.payload.size()), frame.payload.data()));
  }
  request_.clear();
  step_ = body.step;
  place_.ledger.check_params(rank_, step_, "at the answer");
  compute();
}

void SimTrainer::compute() {
  if (!context_.failure.empty()) return;
  if (step_ >= context_.options.steps) return leave(0);
  if (context_.dice.one_in(2)) {
    link_.send(encode(Speaker{rank_.value}, MessageKind::kPrepare, 0, StepBody{step_ + 1}),
               kWaitingMax);
  }
  run_after(context_.dice.spread(100, 60'000), [this] { ask(); });
}

void SimTrainer::ask() {
  place_.ledger.check_params(rank_, step_, "after they were used");
  const uint32_t attempt = context_.options.restless ? static_cast<uint32_t>(number()) : 0;
  SimRankMemory& memory = place_.node.ranks[rank_.value];
  memory.grads_step = step_ + 1;
  memory.grads_attempt = attempt;
  const auto blob = place_.model.blob(step_ + 1, rank_, attempt);
  const StepRequestBody body{.step = step_ + 1,
                             .lr = std::nan(""),
                             .grad_scale = 1,
                             .max_norm = std::nan(""),
                             .blob_bytes = blob ? static_cast<uint32_t>(blob->size()) : 0,
                             .keep_blob = blob ? 0u : 1u};
  request(encode(Speaker{rank_.value}, MessageKind::kStepRequest, ++sequence_, body,
                 blob ? std::string_view(*blob) : std::string_view{}));
}

}  // namespace optlease
