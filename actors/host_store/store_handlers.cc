// What the host store does with each message of an actor. The actor is who it says, attached, and
// knows this epoch (StoreService::from_actor). A Status that is not ok becomes Refused.
#include <cstring>
#include <span>

#include "actors/host_store/store_service.h"
#include "actors/runtime/log.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

long long num(Step step) { return static_cast<long long>(step); }
unsigned long long num(auto id) { return id.value; }

}  // namespace

Status StoreService::on_hello(const Request& request) {
  const auto body = request.frame.as<HelloBody>();
  const SegmentHeader& header = store_.view().header();
  if (std::memcmp(body.job_id, header.job_id, sizeof body.job_id) != 0) {
    return {StatusCode::kInvalidArgument,
            "the job's id is another: this store serves other segments of the same name"};
  }
  if (body.layout_hash != header.layout_hash) {
    return {StatusCode::kInvalidArgument,
            format("layout hash %016llx, the segments have %016llx: another plan made them",
                   static_cast<unsigned long long>(body.layout_hash),
                   static_cast<unsigned long long>(header.layout_hash))};
  }
  const Rank rank = request.rank();
  OPTLEASE_TRY(leases_.hello(rank, request.incarnation(), request.now_ms));
  RankPeer& peer = peers_[rank.value];
  const bool same = peer.attached == request.incarnation();
  sync_rank(rank);
  credits_.forget(rank);  // it has drained and asks anew
  peer.attached = request.incarnation();
  peer.address = request.peer;
  peer.heard_ms = request.now_ms;
  coordinator_.on_attached(rank, body.step_published, same);
  if (!same) log_info("rank %u: incarnation %llu is attached", rank.value, num(peer.attached));
  KILL_POINT("store.attached");
  reply(request, MessageKind::kWelcome,
        WelcomeBody{.step_committed = coordinator_.step_committed(),
                    .step_open = coordinator_.step_open(),
                    .lease_ms = options_.lease_ms,
                    .reserved_zero = 0});
  return Status::ok();
}

Status StoreService::on_step_ready(const Request& request) {
  const auto body = request.frame.as<StepReadyBody>();
  OPTLEASE_TRY(coordinator_.check_ready(body.step));
  if (coordinator_.step_open() == body.step) {  // a repeated one: it has not seen the step open
    reply(request, MessageKind::kStepOpen, StepBody{body.step});
    return Status::ok();
  }
  // First the blob, then the word that counts: a ready rank's blob is always there.
  if (body.keep_blob != 0) {
    store_.keep_blob(request.rank(), body.step);
  } else {
    store_.write_blob(request.rank(), body.step, request.frame.payload);
  }
  KILL_POINT("store.ready_taken");
  coordinator_.on_ready(request.rank(), body.step);
  return Status::ok();
}

Status StoreService::on_step_record(const Request& request) {
  const auto body = request.frame.as<StepRecordBody>();
  const StepRecord& record = body.record;
  OPTLEASE_TRY(coordinator_.may_record(record.step, body.group_epoch));
  if (record_ && !same_bytes(*record_, record)) {
    log_error(
        "FATAL: rank %u computed another record of step %lld than a rank before it "
        "(gradient norm %.17g and %.17g): the ranks no longer agree, the job must stop",
        request.rank().value, num(record.step), record.grad_norm, record_->grad_norm);
    return {StatusCode::kCorrupt,
            format("another rank's record of step %lld differs (its gradient norm is %.17g, "
                   "this one's %.17g)",
                   num(record.step), record_->grad_norm, record.grad_norm)};
  }
  if (coordinator_.step_open() == record.step) {
    reply(request, MessageKind::kStepOpen, StepBody{record.step});
    return Status::ok();
  }
  store_.write_sums_digest(request.rank(), body.sums);
  store_.write_step_record(request.rank(), record);
  record_ = record;
  coordinator_.on_record(request.rank(), record.step, record.skipped != 0);
  return Status::ok();
}

Status StoreService::check_chunks(Rank rank, uint32_t first_chunk, uint32_t chunk_count) const {
  const size_t chunks = store_.view().chunks(rank).size();
  if (chunk_count > 0 && uint64_t{first_chunk} + chunk_count <= chunks) return Status::ok();
  return {StatusCode::kInvalidArgument, format("chunks [%u, +%u): rank %u has %zu", first_chunk,
                                               chunk_count, rank.value, chunks)};
}

// The step at work may be leased before it is open, to be read ahead: a lease gives nothing away
// until its commit, and check_commit_step asks for the open step.
Status StoreService::check_lease_step(Step step) const {
  if (coordinator_.may_lease(step)) return Status::ok();
  const Step next = coordinator_.step_committed() + 1;
  if (step == next) {
    return {StatusCode::kBusy, format("step %lld is not open for leases (yet)", num(step))};
  }
  return {StatusCode::kStaleStep,
          format("step %lld, while step %lld is at work", num(step), num(next))};
}

Status StoreService::check_commit_step(Step step) const {
  if (step == coordinator_.lease_step()) return Status::ok();
  const Step next = coordinator_.step_committed() + 1;
  if (step == next) {
    return {StatusCode::kBusy,
            format("step %lld is not open: nothing of it is committed (yet)", num(step))};
  }
  return {StatusCode::kStaleStep,
          format("a commit of step %lld, while step %lld is at work", num(step), num(next))};
}

Status StoreService::on_lease_request(const Request& request) {
  const auto body = request.frame.as<LeaseRequestBody>();
  OPTLEASE_TRY(check_lease(request.rank(), body));
  const Result<bool> waits = wait_for_credit(request, body);
  if (!waits) return waits.status();
  if (waits.value()) return Status::ok();
  return grant_lease(request.peer, request.frame.header, body, 0, request.now_ms);
}

Status StoreService::check_lease(Rank rank, const LeaseRequestBody& body) const {
  OPTLEASE_TRY(check_chunks(rank, body.first_chunk, body.chunk_count));
  OPTLEASE_TRY(check_lease_step(body.step));
  const auto& corrupt = peers_[rank.value].corrupt_chunks;
  if (const auto bad = corrupt.lower_bound(body.first_chunk);
      bad != corrupt.end() && *bad < body.first_chunk + body.chunk_count) {
    return {StatusCode::kCorrupt,
            format("chunk %u of rank %u was reported corrupt: it is not leased again", *bad,
                   rank.value)};
  }
  return Status::ok();
}

Status StoreService::grant_lease(const std::string& peer, const MessageHeader& asked,
                                 const LeaseRequestBody& body, uint32_t deferred, uint64_t now_ms) {
  const Rank rank{asked.rank};
  const Incarnation incarnation{asked.incarnation};
  Result<Lease> lease =
      leases_.grant(rank, incarnation, body.step, body.first_chunk, body.chunk_count, now_ms);
  if (!lease) return lease.status();
  KILL_POINT("lease.granted");
  const uint32_t left = lease.value().first_chunk + lease.value().committed;
  for (uint32_t chunk = left; chunk < body.first_chunk + body.chunk_count; ++chunk) {
    if (store_.view().version(rank, ChunkIndex{chunk}) < body.step) continue;
    OPTLEASE_TRY(leases_.give_back(rank, incarnation, lease.value().id, now_ms));
    return {StatusCode::kStaleStep, format("chunk %u of rank %u is at step %lld already", chunk,
                                           rank.value, num(body.step))};
  }
  // Before it can write anything, the segment says who may.
  if (store_.view().rank(rank).incarnation.load() != incarnation.value) {
    store_.set_incarnation(rank, incarnation);
  }
  send_grant(peer, asked, lease.value(), deferred);
  return Status::ok();
}

// What is left of the lease: a repeated request may come after its first commits.
void StoreService::send_grant(const std::string& peer, const MessageHeader& asked,
                              const Lease& lease, uint32_t deferred) {
  const Rank rank{asked.rank};
  const uint32_t first = lease.first_chunk + lease.committed;
  const uint32_t end = lease.first_chunk + lease.chunk_count;
  std::vector<GrantEntry> entries;
  entries.reserve(lease.shadow.size());
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    const bool written = store_.view().version(rank, ChunkIndex{chunk}) != kNoStep;
    const auto sources = store_.view().entries(rank, ChunkIndex{chunk});
    for (const SlotEntry& source : sources) {
      const uint32_t shadow = lease.shadow[entries.size()].value;
      entries.push_back({.chunk = chunk,
                         .source_slot = written ? source.slot : shadow,
                         .shadow_slot = shadow,
                         .reserved_zero = 0,
                         .source_checksum = written ? source.checksum : 0});
    }
  }
  const LeaseGrantBody body{.lease_id = lease.id.value,
                            .step = lease.step,
                            .first_chunk = first,
                            .chunk_count = end - first,
                            .entry_count = static_cast<uint32_t>(entries.size()),
                            .deferred = deferred};
  const std::string_view payload(reinterpret_cast<const char*>(entries.data()),
                                 entries.size() * sizeof(GrantEntry));
  const Speaker speaker{asked.rank, asked.incarnation, epoch_.value};
  outgoing_.push_back(
      {peer, encode(speaker, MessageKind::kLeaseGrant, asked.sequence, body, payload)});
}

Status StoreService::on_commit_request(const Request& request) {
  const auto body = request.frame.as<CommitRequestBody>();
  const Rank rank = request.rank();
  OPTLEASE_TRY(check_chunks(rank, body.first_chunk, body.chunk_count));
  bool done = true;  // a repeated request whose answer was lost
  for (uint32_t chunk = body.first_chunk; done && chunk < body.first_chunk + body.chunk_count;
       ++chunk) {
    done = store_.view().version(rank, ChunkIndex{chunk}) == body.step;
  }
  if (!done) {
    const std::vector<SlotEntry> shadow = request.frame.entries<SlotEntry>();
    OPTLEASE_TRY(leases_.may_commit(rank, request.incarnation(), LeaseId{body.lease_id}, body.step,
                                    body.first_chunk, body.chunk_count, shadow, request.now_ms));
    OPTLEASE_TRY(check_commit_step(body.step));
    commit_chunks(rank, body, shadow);
  }
  KILL_POINT("commit.unanswered");
  reply(request, MessageKind::kCommitReply,
        CommitReplyBody{body.lease_id, body.step, body.first_chunk, body.chunk_count});
  return Status::ok();
}

void StoreService::commit_chunks(Rank rank, const CommitRequestBody& body,
                                 std::span<const SlotEntry> shadow) {
  std::vector<SlotIndex> freed;
  for (uint32_t i = 0; i < body.chunk_count; ++i) {
    const ChunkIndex chunk{body.first_chunk + i};
    const auto old = store_.view().entries(rank, chunk);
    if (store_.view().version(rank, chunk) != kNoStep) {
      for (const SlotEntry& entry : old) freed.push_back(SlotIndex{entry.slot});
    }
    store_.commit(rank, chunk, body.step, shadow.first(old.size()));
    shadow = shadow.subspan(old.size());
  }
  leases_.committed(LeaseId{body.lease_id}, body.chunk_count, freed);
  coordinator_.on_chunks(rank, body.step, body.chunk_count);
  commits_ += body.chunk_count;
}

Status StoreService::on_lease_return(const Request& request) {
  const auto body = request.frame.as<LeaseReturnBody>();
  return leases_.give_back(request.rank(), request.incarnation(), LeaseId{body.lease_id},
                           request.now_ms);
}

Status StoreService::on_published(const Request& request) {
  return coordinator_.on_published(request.rank(), request.frame.as<PublishedBody>().step);
}

Status StoreService::on_heartbeat(const Request& request) {
  const auto body = request.frame.as<HeartbeatBody>();
  RankPeer& peer = peers_[request.rank().value];
  peer.step = body.step;
  peer.phase = body.phase;
  return leases_.heartbeat(request.rank(), request.incarnation(), request.now_ms);
}

Status StoreService::on_corrupt_chunk(const Request& request) {
  const auto body = request.frame.as<CorruptChunkBody>();
  const Rank rank = request.rank();
  OPTLEASE_TRY(check_chunks(rank, body.chunk, 1));
  const ChunkRecord& chunk = store_.view().chunks(rank)[body.chunk];
  log_error(
      "chunk %u of rank %u (space '%s', elements [%llu, +%llu), slot %u) is corrupt: its "
      "checksum is %016llx, stored is %016llx; it is not leased again, the step cannot end",
      body.chunk, rank.value, store_.view().spaces()[chunk.space].name,
      static_cast<unsigned long long>(chunk.first_element),
      static_cast<unsigned long long>(chunk.elements), body.slot,
      static_cast<unsigned long long>(body.found), static_cast<unsigned long long>(body.expected));
  peers_[rank.value].corrupt_chunks.insert(body.chunk);
  return Status::ok();
}

}  // namespace optlease
