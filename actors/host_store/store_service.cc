#include "actors/host_store/store_service.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/runtime/log.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

long long num(Step step) { return static_cast<long long>(step); }
unsigned long long num(auto id) { return id.value; }

Status foreign(const char* what) { return {StatusCode::kPermission, what}; }

}  // namespace

StoreService::StoreService(ChunkStore store, const StoreOptions& options,
                           const CoordinatorFacts& facts)
    : options_(options),
      epoch_(facts.epoch),
      store_(std::move(store)),
      leases_({.lease_ms = options.lease_ms,
               .quarantine_grace_ms = options.quarantine_grace_ms,
               .window_chunks = store_.view().header().window_chunks}),
      coordinator_(facts),
      credits_(options.credits, window_bytes_of(store_.view())),
      peers_(facts.ranks.size()) {}

Result<StoreService> StoreService::start(ChunkStore store, const StoreOptions& options,
                                         uint64_t now_ms) {
  Result<CoordinatorFacts> facts = facts_of(store);
  if (!facts) return facts.status();
  StoreService service(std::move(store), options, std::move(facts).value());
  service.store_.set_kept_on_purpose(false);
  service.count_skipped();
  service.add_ranks(options, now_ms);
  return service;
}

Result<CoordinatorFacts> StoreService::facts_of(const ChunkStore& store) {
  const ControlView& view = store.view();
  CoordinatorFacts facts{
      .epoch = store.epoch(), .step_committed = view.step_committed(), .ranks = {}};
  const Step next = facts.step_committed + 1;
  for (uint32_t r = 0; r < view.header().world_size; ++r) {
    const auto record = next > 0 ? view.step_record(Rank{r}, next) : std::nullopt;
    RankFacts rank{.chunk_count = static_cast<uint32_t>(view.chunks(Rank{r}).size()),
                   .has_record = record.has_value(),
                   .skipped = record && record->skipped != 0};
    for (uint32_t chunk = 0; chunk < rank.chunk_count; ++chunk) {
      const Step version = view.version(Rank{r}, ChunkIndex{chunk});
      if (version == next) ++rank.chunks_done;
      if (version != next && version != facts.step_committed) {
        return Status{StatusCode::kCorrupt,
                      format("rank %u, chunk %u is at version %lld although step %lld is committed",
                             r, chunk, num(version), num(facts.step_committed))};
      }
    }
    facts.ranks.push_back(rank);
  }
  OPTLEASE_TRY(check_records(store, facts));
  return facts;
}

// A step whose chunks have begun to move has a record at every rank, everywhere the same.
Status StoreService::check_records(const ChunkStore& store, const CoordinatorFacts& facts) {
  const Step next = facts.step_committed + 1;
  if (next == 0) return Status::ok();
  bool complete = true, begun = false;
  for (const RankFacts& rank : facts.ranks) {
    complete = complete && rank.has_record;
    begun = begun || rank.chunks_done > 0;
  }
  if (begun && !complete) {
    return {StatusCode::kCorrupt,
            format("chunks are at step %lld, and not every rank has its record", num(next))};
  }
  if (!complete) return Status::ok();
  const std::optional<StepRecord> first = store.view().step_record(Rank{0}, next);
  for (uint32_t r = 1; r < facts.ranks.size(); ++r) {
    const std::optional<StepRecord> other = store.view().step_record(Rank{r}, next);
    if (!same_bytes(*other, *first)) {
      return {StatusCode::kCorrupt,
              format("ranks 0 and %u hold different records of step %lld", r, num(next))};
    }
  }
  return Status::ok();
}

void StoreService::add_ranks(const StoreOptions& options, uint64_t now_ms) {
  const ControlView& view = store_.view();
  const Step next = coordinator_.step_committed() + 1;
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    const Rank rank{r};
    std::vector<uint32_t> slots_of_chunk;
    for (const ChunkRecord& chunk : view.chunks(rank)) slots_of_chunk.push_back(chunk.slot_count);
    const Incarnation last{view.rank(rank).incarnation.load()};
    leases_.add_rank(rank, std::move(slots_of_chunk), store_.unreferenced_slots(rank), last);
    if (options.all_older_reaped && last.value != 0) leases_.reaped(rank, last, now_ms);
    if (!record_ && next > 0) record_ = view.step_record(rank, next);
    sync_rank(rank);
  }
}

void StoreService::handle(const std::string& peer, std::string_view frame, uint64_t now_ms,
                          const Status& identity) {
  const PeerName name = parse_peer_name(peer);
  if (name.kind == PeerName::Kind::kStranger) {
    ++strangers_dropped_;
    return;
  }
  MessageHeader header{};
  if (frame.size() >= sizeof header) std::memcpy(&header, frame.data(), sizeof header);
  if (header.magic != kMessageMagic) header = {};  // nothing of it is worth an echo
  if (!identity.is_ok()) return refuse(peer, header, identity);
  const Result<Decoded> decoded = decode(frame);
  if (!decoded) {
    refuse(peer, header, decoded.status());
    return;
  }
  const Request request{peer, name, decoded.value(), now_ms};
  const Status answered = dispatch(request);
  if (!answered.is_ok()) refuse(peer, header, answered);
}

Status StoreService::check_rank(uint32_t rank) const {
  if (rank < peers_.size()) return Status::ok();
  return {StatusCode::kInvalidArgument,
          format("rank %u: the job has %zu ranks", rank, peers_.size())};
}

// Who it says it is, that it knows this life of the store, and that it is attached. Hello makes the
// last two true and is let through without them.
Status StoreService::from_actor(const Request& request, Handler handler) {
  if (request.name.kind != PeerName::Kind::kActor || request.name.rank != request.rank() ||
      request.name.incarnation != request.incarnation()) {
    return foreign("only an actor may say this, and only for its own rank and incarnation");
  }
  OPTLEASE_TRY(check_rank(request.rank().value));
  RankPeer& peer = peers_[request.rank().value];
  if (request.frame.kind != MessageKind::kHello) {
    if (request.frame.header.store_epoch != epoch_.value) {
      return {StatusCode::kStaleEpoch,
              format("this is store epoch %llu, not %llu: drain, then say hello", num(epoch_),
                     static_cast<unsigned long long>(request.frame.header.store_epoch))};
    }
    if (peer.attached != request.incarnation()) {
      return {StatusCode::kStaleIncarnation,
              format("incarnation %llu of rank %u is not attached (attached: %llu)",
                     num(request.incarnation()), request.rank().value, num(peer.attached))};
    }
    peer.heard_ms = request.now_ms;
  }
  return (this->*handler)(request);
}

Status StoreService::from_launcher(const Request& request, Handler handler) {
  if (request.name.kind != PeerName::Kind::kLauncher) {
    return foreign("only the launcher knows which processes live");
  }
  const auto body = request.frame.as<IncarnationBody>();
  OPTLEASE_TRY(check_rank(body.rank));
  if (body.incarnation == 0) {
    return {StatusCode::kInvalidArgument, "incarnations count from 1"};
  }
  return (this->*handler)(request);
}

Status StoreService::from_operator(const Request& request, Handler handler) {
  if (request.name.kind == PeerName::Kind::kActor) {
    return foreign("only the launcher or a tool may hold or stop the store");
  }
  return (this->*handler)(request);
}

Status StoreService::dispatch(const Request& request) {
  using Self = StoreService;
  switch (request.frame.kind) {
    case MessageKind::kHello:
      return from_actor(request, &Self::on_hello);
    case MessageKind::kStepReady:
      return from_actor(request, &Self::on_step_ready);
    case MessageKind::kStepRecord:
      return from_actor(request, &Self::on_step_record);
    case MessageKind::kLeaseRequest:
      return from_actor(request, &Self::on_lease_request);
    case MessageKind::kCommitRequest:
      return from_actor(request, &Self::on_commit_request);
    case MessageKind::kLeaseReturn:
      return from_actor(request, &Self::on_lease_return);
    case MessageKind::kPublished:
      return from_actor(request, &Self::on_published);
    case MessageKind::kHeartbeat:
      return from_actor(request, &Self::on_heartbeat);
    case MessageKind::kCorruptChunk:
      return from_actor(request, &Self::on_corrupt_chunk);
    case MessageKind::kResidentSaved:
      return from_actor(request, &Self::on_resident_saved);
    case MessageKind::kIncarnationStarted:
      return from_launcher(request, &Self::on_incarnation_started);
    case MessageKind::kIncarnationLost:
      return from_launcher(request, &Self::on_incarnation_lost);
    case MessageKind::kIncarnationReaped:
      return from_launcher(request, &Self::on_incarnation_reaped);
    case MessageKind::kStatusQuery:
      return on_status_query(request);
    case MessageKind::kHoldRequest:
      return from_operator(request, &Self::on_hold_request);
    case MessageKind::kHoldRelease:
      return from_operator(request, &Self::on_hold_release);
    case MessageKind::kStopStore:
      return from_operator(request, &Self::on_stop_store);
    case MessageKind::kRefused:
      return Status::ok();  // answering a refusal would never end
    case MessageKind::kWelcome:
    case MessageKind::kGroupFormed:
    case MessageKind::kGroupBroken:
    case MessageKind::kGoReduce:
    case MessageKind::kGoGather:
    case MessageKind::kStepOpen:
    case MessageKind::kLeaseGrant:
    case MessageKind::kCommitReply:
    case MessageKind::kStepCommitted:
    case MessageKind::kStopActor:
    case MessageKind::kSaveResident:
    case MessageKind::kStatusReply:
    case MessageKind::kHoldReply:
    case MessageKind::kAttach:
    case MessageKind::kAttached:
    case MessageKind::kStepRequest:
    case MessageKind::kStepReply:
    case MessageKind::kDetach:
    case MessageKind::kPrepare:
      break;
  }
  return {StatusCode::kUnsupported,
          format("%s is not for a host store", name_of(request.frame.kind))};
}

void StoreService::refuse(const std::string& peer, const MessageHeader& header, const Status& why) {
  if (why.code() != StatusCode::kBusy) {
    ++refusals_;
    log_debug("refused %s from %s: %s", name_of(static_cast<MessageKind>(header.kind)),
              peer.c_str(), why.text().c_str());
  }
  const RefusedBody body{.kind = header.kind,
                         .status = static_cast<uint16_t>(why.code()),
                         .text_bytes = static_cast<uint32_t>(why.message().size())};
  const Speaker speaker{header.rank, header.incarnation, epoch_.value};
  outgoing_.push_back(
      {peer, encode(speaker, MessageKind::kRefused, header.sequence, body, why.message())});
}

void StoreService::sync_rank(Rank rank) {
  RankPeer& peer = peers_[rank.value];
  if (peer.attached.value != 0 && leases_.live(rank) != peer.attached) {
    log_info("rank %u: incarnation %llu is lost, %u slots in quarantine", rank.value,
             num(peer.attached), leases_.quarantine(rank).slots);
    peer.attached = Incarnation{0};
    peer.phase = 0;
    credits_.forget(rank);
    coordinator_.on_lost(rank);
  }
  coordinator_.on_older_reaped(rank, leases_.older_are_reaped(rank));
}

void StoreService::settle(uint64_t now_ms) {
  if (finished_) return;
  for (const Lease& lease : leases_.advance(now_ms)) {
    log_warn(
        "lease %llu of rank %u, incarnation %llu has expired at step %lld: chunks [%u, +%u), "
        "%zu slots to quarantine until it says hello or is reaped",
        num(lease.id), lease.rank.value, num(lease.incarnation), num(lease.step),
        lease.first_chunk + lease.committed, lease.chunk_count - lease.committed,
        lease.shadow.size());
  }
  for (const StoreAction& action : coordinator_.advance(now_ms)) perform(action);
  grant_waiting(now_ms);
}

uint64_t StoreService::next_deadline_ms() const {
  return std::min(leases_.next_deadline_ms(), coordinator_.next_deadline_ms());
}

void StoreService::perform(const StoreAction& action) {
  const std::string_view needs(reinterpret_cast<const char*>(action.needs.data()),
                               action.needs.size());
  switch (action.kind) {
    case StoreAction::Kind::kGroupBroken:
      return broadcast(MessageKind::kGroupBroken, GroupBody{action.group_epoch});
    case StoreAction::Kind::kVoidRecords:
      return void_records(action.step);
    case StoreAction::Kind::kGroupFormed:
      return broadcast(MessageKind::kGroupFormed, GroupBody{action.group_epoch});
    case StoreAction::Kind::kApplySkip:
      return apply_skip(action.step);
    case StoreAction::Kind::kStepOpen:
      KILL_POINT("store.step_opens");
      return broadcast(MessageKind::kStepOpen, StepBody{action.step});
    case StoreAction::Kind::kCommitStep:
      return commit_step(action.step);
    case StoreAction::Kind::kGoGather:
      KILL_POINT("store.gather_ordered");
      return broadcast(MessageKind::kGoGather, GoBody{action.group_epoch, action.step}, needs);
    case StoreAction::Kind::kGoReduce:
      KILL_POINT("store.reduce_ordered");
      return broadcast(MessageKind::kGoReduce, GoBody{action.group_epoch, action.step}, needs);
    case StoreAction::Kind::kHoldGranted:
      return grant_hold(action.hold_id);
    case StoreAction::Kind::kHoldEnded:
      log_warn("hold %llu was not renewed in time and is over",
               static_cast<unsigned long long>(action.hold_id));
      holds_.erase(action.hold_id);
      return;
    case StoreAction::Kind::kStop:
      broadcast(MessageKind::kStopActor, StepBody{action.step});
      KILL_POINT("store.stops");
      store_.set_kept_on_purpose(options_.keep_state);
      finished_ = true;
      return;
  }
}

void StoreService::void_records(Step step) {
  log_info("the records of step %lld are void: its group ended before every rank had one",
           num(step));
  for (uint32_t r = 0; r < peers_.size(); ++r) store_.void_step_record(Rank{r}, step);
  record_.reset();
}

// Repeated after a crash, it finds some chunks moved and moves the rest.
void StoreService::apply_skip(Step step) {
  log_warn("step %lld is skipped: its gradients are not finite", num(step));
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    const size_t chunks = store_.view().chunks(Rank{r}).size();
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (store_.view().version(Rank{r}, ChunkIndex{chunk}) < step) {
        store_.commit_unchanged(Rank{r}, ChunkIndex{chunk}, step);
      }
    }
  }
}

void StoreService::commit_step(Step step) {
  store_.set_step_committed(step);
  count_skipped();
  record_.reset();
  credits_.forget_up_to(step);
  log_debug("step %lld is committed", num(step));
  broadcast(MessageKind::kStepCommitted, StepBody{step});
}

// The committed step's record says how many were skipped so far: exact, whenever a store was
// killed.
void StoreService::count_skipped() {
  const ControlView& view = store_.view();
  const Step step = view.step_committed();
  const auto record = step > 0 ? view.step_record(Rank{0}, step) : std::nullopt;
  if (!record) return;
  const auto skipped = static_cast<uint64_t>(step - record->update_count);
  while (view.header().steps_skipped.load() < skipped) store_.count_skipped_step();
}

std::string StoreService::describe() const {
  const Step next = coordinator_.step_committed() + 1;
  std::string text = format("store epoch %llu, step %lld committed%s", num(epoch_),
                            num(coordinator_.step_committed()),
                            coordinator_.step_open() != kNoStep ? ", the next one open" : "");
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    const RankRecord& rank = store_.view().rank(Rank{r});
    text += format("; rank %u: %u of %u chunks at step %lld, last incarnation %llu", r,
                   coordinator_.chunks_done(Rank{r}), rank.chunk_count, num(next),
                   static_cast<unsigned long long>(rank.incarnation.load()));
  }
  return text;
}

std::string StoreService::check_invariants() const {
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    const Rank rank{r};
    std::vector<SlotIndex> referenced;
    for (uint32_t chunk = 0; chunk < store_.view().chunks(rank).size(); ++chunk) {
      if (store_.view().version(rank, ChunkIndex{chunk}) == kNoStep) continue;
      for (const SlotEntry& entry : store_.view().entries(rank, ChunkIndex{chunk})) {
        referenced.push_back(SlotIndex{entry.slot});
      }
    }
    const std::string broken =
        leases_.check_invariants(rank, referenced, store_.view().rank(rank).slot_count);
    if (!broken.empty()) return format("rank %u: %s", r, broken.c_str());
  }
  return {};
}

}  // namespace optlease
