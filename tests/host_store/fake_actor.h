// An actor without a GPU, for tests of the host store: it answers every message as docs/PROTOCOL.md
// says an actor does, and "computes" checksums that are a function of (rank, chunk, step), so that
// a test can tell afterwards whether every chunk holds what it must. It has no socket: frames in,
// frames out.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/host_store/peer_name.h"
#include "actors/wire/codec.h"
#include "shm/control_view.h"
#include "shm/segment.h"

namespace optlease {

inline constexpr uint64_t kSkipEvery = 4;  // fake steps 4, 8, ... are not finite
inline bool fake_step_is_skipped(Step step) { return step > 0 && step % kSkipEvery == 0; }
inline uint64_t fake_checksum(Rank rank, uint32_t chunk, Step step) {
  const uint64_t words[] = {rank.value, chunk, static_cast<uint64_t>(step)};
  return fnv1a(words, sizeof words);
}
inline std::string fake_blob(Rank rank, Step step) {
  return format("blob of rank %u for step %lld", rank.value, static_cast<long long>(step));
}
inline StepRecord fake_record(Step step) {
  StepRecord record{};
  record.step = step;
  record.update_count = step - step / static_cast<Step>(kSkipEvery);
  record.group_count = 1;
  record.groups[0] = {.lr = 1e-3,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .eps = 1e-8,
                      .weight_decay = 0,
                      .rule = static_cast<uint32_t>(Rule::kAdamW),
                      .reserved_zero = 0};
  record.skipped = fake_step_is_skipped(step) ? 1 : 0;
  record.grad_norm = 1.5;
  record.grad_coefficient = 1;
  record.checksum = checksum_of(record);
  return record;
}

// Unlike the record, every rank's own.
inline SumsDigest fake_sums(Rank rank, Step step) {
  return make_sums_digest(step, fake_checksum(rank, 0, step));
}

class FakeActor {
 public:
  FakeActor(Rank rank, Incarnation incarnation, std::string control_segment, uint32_t window)
      : rank_(rank),
        incarnation_(incarnation),
        control_(std::move(control_segment)),
        window_(window) {}

  std::string peer() const { return actor_peer_name(rank_, incarnation_); }
  std::vector<std::string> take_outgoing() { return std::exchange(out_, {}); }

  void on_frame(const std::string& frame) {
    const Result<Decoded> decoded = decode(frame);
    OPTLEASE_CHECK(decoded.is_ok(), "the store sent: %s", decoded.status().text().c_str());
    const Decoded& message = decoded.value();
    ++received_[message.kind];
    switch (message.kind) {
      case MessageKind::kWelcome:
        return on_welcome(message);
      case MessageKind::kGroupFormed:
        group_ = message.as<GroupBody>().group_epoch;
        return forget_group();
      case MessageKind::kGroupBroken:
        if (group_ == message.as<GroupBody>().group_epoch) group_ = 0;
        return forget_group();
      case MessageKind::kGoReduce:
        return on_go_reduce(message);
      case MessageKind::kGoGather:
        return on_go_gather(message);
      case MessageKind::kStepOpen:
        return on_step_open(message.as<StepBody>().step);
      case MessageKind::kLeaseGrant:
        return on_grant(message);
      case MessageKind::kCommitReply:
        windows_.erase(message.as<CommitReplyBody>().first_chunk);
        return;
      case MessageKind::kStepCommitted:
        committed_ = message.as<StepBody>().step;
        open_ = recorded_ = kNoStep;
        reduce_seen_ = false;
        windows_.clear();
        publish_if_over();
        return end_prefetch();
      case MessageKind::kRefused:
        return on_refused(message);
      case MessageKind::kStopActor:
        stopped_ = true;
        return;
      case MessageKind::kSaveResident:
        return;  // a test answers
      case MessageKind::kHello:
      case MessageKind::kStepReady:
      case MessageKind::kStepRecord:
      case MessageKind::kLeaseRequest:
      case MessageKind::kCommitRequest:
      case MessageKind::kLeaseReturn:
      case MessageKind::kPublished:
      case MessageKind::kHeartbeat:
      case MessageKind::kCorruptChunk:
      case MessageKind::kResidentSaved:
      case MessageKind::kIncarnationStarted:
      case MessageKind::kIncarnationLost:
      case MessageKind::kIncarnationReaped:
      case MessageKind::kStatusQuery:
      case MessageKind::kStatusReply:
      case MessageKind::kHoldRequest:
      case MessageKind::kHoldReply:
      case MessageKind::kHoldRelease:
      case MessageKind::kStopStore:
      case MessageKind::kAttach:
      case MessageKind::kAttached:
      case MessageKind::kStepRequest:
      case MessageKind::kStepReply:
      case MessageKind::kDetach:
      case MessageKind::kPrepare:
        break;
    }
    OPTLEASE_CHECK(false, "an actor was sent %s", name_of(message.kind));
  }

  // What it says by itself, every 20 ms or so.
  void tick(Step last_step) {
    if (!attached_) return say_hello();
    send(MessageKind::kHeartbeat, HeartbeatBody{committed_ + 1, 7, 0});
    if (committed_ == kNoStep) return request_windows(0);
    if (open_ != kNoStep && !fake_step_is_skipped(open_)) {
      publish_if_over();
      return request_windows(open_);
    }
    const Step next = committed_ + 1;
    if (open_ != kNoStep || next > last_step) return;
    if (prefetches_) request_windows(next);
    if (recorded_ == next) {
      send(MessageKind::kStepRecord,
           StepRecordBody{group_, fake_record(next), fake_sums(rank_, next)});
    } else if (!reduce_seen_) {
      const std::string blob = fake_blob(rank_, next);
      send(MessageKind::kStepReady, StepReadyBody{next, static_cast<uint32_t>(blob.size()), 0},
           blob);
    }
  }

  template <class Body>
  void send(MessageKind kind, const Body& body, std::string_view payload = {}) {
    out_.push_back(
        encode(Speaker{rank_.value, incarnation_.value, epoch_}, kind, ++sequence_, body, payload));
  }
  void say_hello() {
    HelloBody body{};
    body.layout_hash = view() != nullptr ? view()->header().layout_hash : 0;
    if (view() != nullptr) std::memcpy(body.job_id, view()->header().job_id, sizeof body.job_id);
    body.pid = 1;
    body.step_published = published_;
    send(MessageKind::kHello, body);
  }
  // The commit of a grant, as this actor would have sent it.
  void send_commit(const LeaseGrantBody& grant, const std::vector<GrantEntry>& entries) {
    std::vector<SlotEntry> shadow;
    for (const GrantEntry& entry : entries) {
      shadow.push_back({entry.shadow_slot, 0, fake_checksum(rank_, entry.chunk, grant.step)});
    }
    const CommitRequestBody body{grant.lease_id,    grant.step,        grant.first_chunk,
                                 grant.chunk_count, grant.entry_count, 0};
    send(MessageKind::kCommitRequest, body,
         {reinterpret_cast<const char*>(shadow.data()), shadow.size() * sizeof(SlotEntry)});
  }

  // Answers leases itself unless told not to: a test that wants to hold one back.
  void set_commits(bool commits) { commits_ = commits; }
  // Leases windows of a step before it is open, as an actor does whose trainer prepares it.
  void set_prefetches(bool prefetches) { prefetches_ = prefetches; }
  bool attached() const { return attached_; }
  bool stopped() const { return stopped_; }
  Step committed() const { return committed_; }
  Step open() const { return open_; }
  Step published() const { return published_; }
  uint64_t group() const { return group_; }
  uint64_t epoch() const { return epoch_; }
  void set_epoch(uint64_t epoch) { epoch_ = epoch; }
  uint32_t received(MessageKind kind) const {
    const auto found = received_.find(kind);
    return found == received_.end() ? 0 : found->second;
  }
  StatusCode last_refusal() const { return last_refusal_; }
  const std::vector<std::pair<LeaseGrantBody, std::vector<GrantEntry>>>& grants() const {
    return grants_;
  }
  // The control segment, once there is one.
  const ControlView* view() {
    if (view_) return &*view_;
    Result<Segment> segment = Segment::open(control_, Segment::Access::kReadOnly);
    if (!segment) return nullptr;
    Result<ControlView> seen = ControlView::over(segment.value().data(), segment.value().bytes());
    if (!seen) return nullptr;
    segment_.emplace(std::move(segment).value());
    view_ = seen.value();
    return &*view_;
  }

 private:
  void on_welcome(const Decoded& message) {
    const auto body = message.as<WelcomeBody>();
    attached_ = true;
    epoch_ = message.header.store_epoch;
    committed_ = body.step_committed;
    open_ = body.step_open;
    reduce_seen_ = false;
    windows_.clear();
    ahead_.clear();  // its hello ended every lease
  }
  // The step is reduced again by the next group, or gathered again.
  void forget_group() {
    recorded_ = gathers_ = kNoStep;
    reduce_seen_ = false;
  }
  void on_go_reduce(const Decoded& message) {
    const auto body = message.as<GoBody>();
    if (body.group_epoch != group_ || body.step != committed_ + 1) return;
    reduce_seen_ = true;
    if (message.payload[rank_.value] == 0) return;
    recorded_ = body.step;
    send(MessageKind::kStepRecord,
         StepRecordBody{group_, fake_record(body.step), fake_sums(rank_, body.step)});
  }
  void on_go_gather(const Decoded& message) {
    const auto body = message.as<GoBody>();
    if (body.group_epoch != group_ || (body.step != committed_ && body.step != open_)) return;
    gathers_ = body.step;
    publish_if_over();
  }
  void on_grant(const Decoded& message) {
    const auto body = message.as<LeaseGrantBody>();
    grants_.emplace_back(body, message.entries<GrantEntry>());
    if (body.step > 0 && body.step != open_) {
      ahead_.push_back(grants_.back());
      if (body.step <= committed_) end_prefetch();
      return;
    }
    if (commits_) send_commit(body, grants_.back().second);
  }
  void on_step_open(Step step) {
    open_ = step;
    if (fake_step_is_skipped(step)) return end_prefetch();
    for (const auto& [grant, entries] : std::exchange(ahead_, {})) {
      if (commits_) send_commit(grant, entries);
    }
  }
  // Nothing of it was written.
  void end_prefetch() {
    for (const auto& [grant, entries] : std::exchange(ahead_, {})) {
      send(MessageKind::kLeaseReturn, LeaseReturnBody{grant.lease_id});
    }
    windows_.clear();
  }
  // The fake's gather goes on until its own chunks are committed; it waits for nobody else's.
  void publish_if_over() {
    if (view() == nullptr || gathers_ == kNoStep) return;
    const auto chunks = static_cast<uint32_t>(view()->chunks(rank_).size());
    for (uint32_t c = 0; c < chunks; ++c) {
      if (view()->version(rank_, ChunkIndex{c}) < gathers_) return;
    }
    published_ = std::exchange(gathers_, kNoStep);
    send(MessageKind::kPublished, PublishedBody{published_, group_});
  }
  void on_refused(const Decoded& message) {
    const auto body = message.as<RefusedBody>();
    last_refusal_ = static_cast<StatusCode>(body.status);
    windows_.clear();  // ask again with the next tick
    if (last_refusal_ == StatusCode::kStaleEpoch && attached_) {
      attached_ = false;
      say_hello();
    }
  }
  void request_windows(Step step) {
    if (view() == nullptr) return;
    const auto chunks = static_cast<uint32_t>(view()->chunks(rank_).size());
    for (uint32_t first = 0; first < chunks && windows_.size() < 2; ++first) {
      if (view()->version(rank_, ChunkIndex{first}) >= step) continue;
      uint32_t count = 1;
      while (count < window_ && first + count < chunks &&
             view()->version(rank_, ChunkIndex{first + count}) < step) {
        ++count;
      }
      if (windows_.insert(first).second) {
        send(MessageKind::kLeaseRequest, LeaseRequestBody{step, first, count});
      }
      first += count - 1;
    }
  }

  Rank rank_;
  Incarnation incarnation_;
  std::string control_;
  uint32_t window_;
  std::optional<Segment> segment_;
  std::optional<ControlView> view_;
  std::vector<std::string> out_;
  std::map<MessageKind, uint32_t> received_;
  std::vector<std::pair<LeaseGrantBody, std::vector<GrantEntry>>> grants_;
  std::vector<std::pair<LeaseGrantBody, std::vector<GrantEntry>>> ahead_;  // of a step not open
  std::set<uint32_t> windows_;  // asked for, by first chunk
  bool attached_ = false, commits_ = true, prefetches_ = false, reduce_seen_ = false,
       stopped_ = false;
  uint64_t epoch_ = 0, group_ = 0, sequence_ = 0;
  Step committed_ = kNoStep, open_ = kNoStep, recorded_ = kNoStep, published_ = kNoStep;
  Step gathers_ = kNoStep;
  StatusCode last_refusal_ = StatusCode::kOk;
};

}  // namespace optlease
