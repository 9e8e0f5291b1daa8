#include "launcher/store_link.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "actors/runtime/clock.h"
#include "actors/wire/codec.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

constexpr size_t kWaitingMax = 1 << 16;  // frames for a store that does not listen
constexpr uint64_t kHoldTtlMs = 10000;
constexpr uint64_t kPendingTtlMs =
    1000;                               // of a hold that nobody has heard of yet: all it may stall
constexpr int64_t kKeepMs = 5000;       // for the answer to a renewal
constexpr int64_t kLiveCheckMs = 500;   // a job may end while its hold is waited for
constexpr int64_t kHoldRepeatMs = 100;  // until the first answer

}  // namespace

StoreLink::StoreLink(SocketContext& context, RunDirectory run, std::string name)
    : context_(context), run_(std::move(run)), name_(std::move(name)) {}

Status StoreLink::reconnect() {
  socket_.reset();
  waiting_.clear();
  SocketOptions options;
  options.routing_id = private_routing_id(name_);
  // A tool's last word is its release; the launcher's old words mean nothing to a new store.
  options.linger_ms = name_ == "launcher" ? 0 : 200;
  auto socket = Socket::connect(context_, Socket::Type::kDealer, run_.store_socket(), options);
  if (!socket) return socket.status();
  socket_.emplace(std::move(socket).value());
  return Status::ok();
}

void StoreLink::queue(std::string frame) {
  if (waiting_.size() >= kWaitingMax) waiting_.pop_front();
  waiting_.push_back(std::move(frame));
}

void StoreLink::flush() {
  if (!socket_) return;
  while (!waiting_.empty()) {
    if (!socket_->send(Message{"", waiting_.front()}).is_ok()) return;
    waiting_.pop_front();
  }
}

void StoreLink::tell(MessageKind kind, uint32_t rank, uint64_t incarnation) {
  IncarnationBody body{};
  body.rank = rank;
  body.incarnation = incarnation;
  queue(encode(Speaker{}, kind, ++sequence_, body));
  flush();
}

void StoreLink::query_status() {
  // A query that the store cannot take now is worth nothing later.
  if (!waiting_.empty()) {
    flush();
    return;
  }
  queue(encode_empty(Speaker{}, MessageKind::kStatusQuery, ++sequence_));
  flush();
}

void StoreLink::stop_store(uint64_t ttl_ms) {
  HoldBody body{};
  body.step = kNoStep;
  body.ttl_ms = ttl_ms;
  queue(encode(Speaker{}, MessageKind::kStopStore, ++sequence_, body));
  flush();
}

uint64_t StoreLink::request_hold(uint64_t hold_id, uint64_t ttl_ms, uint64_t sequence) {
  if (sequence == 0) sequence = ++sequence_;
  HoldBody body{};
  body.step = kNoStep;
  body.hold_id = hold_id;
  body.ttl_ms = ttl_ms;
  queue(encode(Speaker{}, MessageKind::kHoldRequest, sequence, body));
  flush();
  return sequence;
}

void StoreLink::release_hold(uint64_t hold_id) {
  HoldBody body{};
  body.step = kNoStep;
  body.hold_id = hold_id;
  queue(encode(Speaker{}, MessageKind::kHoldRelease, ++sequence_, body));
  flush();
}

StoreLink::Arrived StoreLink::receive() {
  Arrived out;
  if (!socket_) return out;
  Message message;
  while (socket_->receive(&message)) {
    const auto decoded = decode(message.frame);
    if (!decoded) continue;
    const Decoded& frame = decoded.value();
    if (frame.kind == MessageKind::kStatusReply) {
      out.facts = StoreFacts{frame.as<StatusReplyBody>(), frame.entries<RankStatus>()};
    } else if (frame.kind == MessageKind::kHoldReply) {
      out.hold = frame.as<HoldBody>();
      out.hold_sequence = frame.header.sequence;
    } else if (frame.kind == MessageKind::kRefused) {
      out.refusal = std::string(frame.payload);
    }
  }
  return out;
}

StepHold::StepHold(std::unique_ptr<StoreLink> link, const HoldBody& body)
    : link_(std::move(link)), body_(body) {}

Result<StepHold> StepHold::take(SocketContext& context, const RunDirectory& run,
                                uint64_t timeout_ms, const std::function<Status()>& alive) {
  auto link =
      std::make_unique<StoreLink>(context, run, format("tool.%d", static_cast<int>(getpid())));
  OPTLEASE_TRY(link->reconnect());
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(timeout_ms));
  int64_t asked_ms = 0, looked_ms = now_ms();
  uint64_t sequence = 0;  // repeated with its number, so that it never becomes a second hold
  while (!deadline.passed()) {
    if (now_ms() - asked_ms >= kHoldRepeatMs) {
      asked_ms = now_ms();
      sequence = link->request_hold(0, kPendingTtlMs, sequence);
    }
    if (now_ms() - looked_ms >= kLiveCheckMs) {
      looked_ms = now_ms();
      OPTLEASE_TRY(alive());
    }
    std::vector<bool> ready;
    OPTLEASE_TRY(
        poll_sockets({{link->socket()}, {}}, deadline.remaining_ms(kHoldRepeatMs), &ready));
    StoreLink::Arrived arrived = link->receive();
    if (!arrived.refusal.empty()) {
      return Status(StatusCode::kBusy, "the host store refuses a hold: " + arrived.refusal);
    }
    if (!arrived.hold) continue;
    StepHold hold(std::move(link), *arrived.hold);
    OPTLEASE_TRY(hold.keep());
    KILL_POINT("hold.taken");
    return hold;
  }
  return Status(StatusCode::kTimeout,
                format("job %s did not come to rest within %llu ms: a step is open, or the host "
                       "store does not answer. Try again, or give --timeout-s",
                       run.job_name().c_str(), static_cast<unsigned long long>(timeout_ms)));
}

StepHold::~StepHold() {
  if (link_) link_->release_hold(body_.hold_id);
}

// A store that was restarted meanwhile knows nothing of the hold and refuses: only an answer to
// this very request says that the state stood still until now.
Status StepHold::keep() {
  const uint64_t asked = link_->request_hold(body_.hold_id, kHoldTtlMs);
  const Deadline deadline = Deadline::after_ms(kKeepMs);
  while (!deadline.passed()) {
    std::vector<bool> ready;
    OPTLEASE_TRY(
        poll_sockets({{link_->socket()}, {}}, deadline.remaining_ms(kHoldRepeatMs), &ready));
    link_->flush();
    const StoreLink::Arrived arrived = link_->receive();
    if (!arrived.refusal.empty()) {
      return {StatusCode::kPeerLost,
              "the hold on the job's steps was lost (" + arrived.refusal + "); try again"};
    }
    if (!arrived.hold || arrived.hold->hold_id != body_.hold_id) continue;
    if (arrived.hold->step != body_.step) {
      return {StatusCode::kPeerLost, "the job moved to another step while its state was read"};
    }
    if (arrived.hold_sequence == asked) return Status::ok();
  }
  return {StatusCode::kPeerLost,
          "the hold on the job's steps was lost (the host store does not answer); try again"};
}

}  // namespace optlease
