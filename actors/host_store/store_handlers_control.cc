// What the host store does with each message of the launcher or a tool.
#include <algorithm>

#include "actors/host_store/store_service.h"
#include "actors/runtime/log.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

constexpr uint64_t kHoldMsMax = 60'000;
constexpr size_t kHoldCountMax = 64;

}  // namespace

Status StoreService::on_incarnation_started(const Request& request) {
  const auto body = request.frame.as<IncarnationBody>();
  leases_.started(Rank{body.rank}, Incarnation{body.incarnation}, request.now_ms);
  sync_rank(Rank{body.rank});
  return Status::ok();
}

Status StoreService::on_incarnation_lost(const Request& request) {
  const auto body = request.frame.as<IncarnationBody>();
  leases_.lost(Rank{body.rank}, Incarnation{body.incarnation}, request.now_ms);
  KILL_POINT("store.loss_heard");
  sync_rank(Rank{body.rank});
  return Status::ok();
}

Status StoreService::on_incarnation_reaped(const Request& request) {
  const auto body = request.frame.as<IncarnationBody>();
  leases_.reaped(Rank{body.rank}, Incarnation{body.incarnation}, request.now_ms);
  KILL_POINT("store.reaping_heard");
  sync_rank(Rank{body.rank});
  return Status::ok();
}

Status StoreService::on_status_query(const Request& request) {
  std::vector<RankStatus> ranks;
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    const RankPeer& peer = peers_[r];
    const bool attached = peer.attached.value != 0;
    ranks.push_back({.incarnation = peer.attached.value,
                     .step = peer.step,
                     .phase = peer.phase,
                     .chunks_committed = coordinator_.chunks_done(Rank{r}),
                     .leases = static_cast<uint32_t>(leases_.lease_count(Rank{r})),
                     .slots_quarantined = leases_.quarantine(Rank{r}).slots,
                     .silent_ms = attached ? request.now_ms - peer.heard_ms : 0});
  }
  const StatusReplyBody body{.step_committed = coordinator_.step_committed(),
                             .step_open = coordinator_.step_open(),
                             .steps_skipped = store_.view().header().steps_skipped.load(),
                             .commits = commits_,
                             .refusals = refusals_,
                             .rank_count = static_cast<uint32_t>(ranks.size()),
                             .reserved_zero = 0};
  reply(request, MessageKind::kStatusReply, body,
        {reinterpret_cast<const char*>(ranks.data()), ranks.size() * sizeof(RankStatus)});
  return Status::ok();
}

// The hold that a request means. One without an id is a new hold unless it repeats a request that
// was not granted yet or whose answer was lost.
Result<uint64_t> StoreService::hold_for(const Request& request, const HoldBody& body) {
  if (body.hold_id != 0) {
    OPTLEASE_TRY(coordinator_.renew_hold(body.hold_id, body.ttl_ms, request.now_ms));
    return body.hold_id;
  }
  for (const auto& [id, owner] : holds_) {
    const bool repeated = owner.sequence == request.frame.header.sequence;
    if (owner.peer != request.peer || (coordinator_.hold_is_granted(id) && !repeated)) continue;
    if (coordinator_.renew_hold(id, body.ttl_ms, request.now_ms).is_ok()) return id;
  }
  if (holds_.size() >= kHoldCountMax) {
    return Status(StatusCode::kBusy,
                  format("%zu holds are in force: ask again later", holds_.size()));
  }
  return coordinator_.hold(body.ttl_ms, request.now_ms);
}

Status StoreService::on_hold_request(const Request& request) {
  auto body = request.frame.as<HoldBody>();
  // A tool that dies, or lies, stops the job for this long at most.
  body.ttl_ms = std::min(body.ttl_ms, kHoldMsMax);
  if (body.ttl_ms == 0) return {StatusCode::kInvalidArgument, "a hold of 0 ms"};
  const Result<uint64_t> id = hold_for(request, body);
  if (!id) return id.status();
  holds_[id.value()] = HoldOwner{request.peer, request.frame.header.sequence, body.ttl_ms};
  if (coordinator_.hold_is_granted(id.value())) grant_hold(id.value());
  return Status::ok();
}

// Whether readers find all of the committed state in memory of the host.
bool StoreService::residents_are_saved() const {
  const Step committed = coordinator_.step_committed();
  if (committed < 0 || !store_.view().split().has_resident()) return true;
  return std::all_of(peers_.begin(), peers_.end(),
                     [&](const RankPeer& peer) { return peer.resident_saved == committed; });
}

// Answers a hold that is in force, once readers find what they want. A rank that does not answer is
// asked again with the requester's next repetition: its actor may be a new one.
void StoreService::grant_hold(uint64_t hold_id) {
  const auto owner = holds_.find(hold_id);
  OPTLEASE_CHECK(owner != holds_.end(), "hold %llu has no owner",
                 static_cast<unsigned long long>(hold_id));
  const Step committed = coordinator_.step_committed();
  if (!residents_are_saved()) return broadcast(MessageKind::kSaveResident, StepBody{committed});
  KILL_POINT("hold.granted");
  const HoldBody body{committed, hold_id, owner->second.ttl_ms};
  outgoing_.push_back(
      {owner->second.peer,
       encode(Speaker{0, 0, epoch_.value}, MessageKind::kHoldReply, owner->second.sequence, body)});
}

Status StoreService::on_resident_saved(const Request& request) {
  const auto body = request.frame.as<StepBody>();
  RankPeer& peer = peers_[request.rank().value];
  if (body.step != coordinator_.step_committed() || peer.resident_saved == body.step) {
    return Status::ok();  // a late or repeated answer
  }
  peer.resident_saved = body.step;
  if (!residents_are_saved()) return Status::ok();
  for (const auto& [id, owner] : holds_) {
    if (coordinator_.hold_is_granted(id)) grant_hold(id);
  }
  return Status::ok();
}

Status StoreService::on_hold_release(const Request& request) {
  const auto body = request.frame.as<HoldBody>();
  holds_.erase(body.hold_id);
  return coordinator_.release_hold(body.hold_id);
}

Status StoreService::on_stop_store(const Request& request) {
  const auto body = request.frame.as<HoldBody>();
  log_info("asked to stop at the next step boundary, in %llu ms at the latest",
           static_cast<unsigned long long>(body.ttl_ms));
  stop(body.ttl_ms, request.now_ms);
  KILL_POINT("store.told_to_stop");
  return Status::ok();
}

}  // namespace optlease
