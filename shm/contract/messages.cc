#include "shm/contract/messages.h"

#include <cmath>
#include <cstring>

namespace optlease {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kStarting:
      return "starting";
    case Phase::kIdle:
      return "idle";
    case Phase::kInitialise:
      return "initialise";
    case Phase::kWaitPeers:
      return "wait_peers";
    case Phase::kReduce:
      return "reduce";
    case Phase::kWaitOpen:
      return "wait_open";
    case Phase::kStream:
      return "stream";
    case Phase::kWaitCommitted:
      return "wait_committed";
    case Phase::kGather:
      return "gather";
    case Phase::kStopping:
      return "stopping";
  }
  return "?";
}

const char* name_of(MessageKind kind) {
  // clang-format off
  switch (kind) {
    case MessageKind::kHello: return "Hello";
    case MessageKind::kStepReady: return "StepReady";
    case MessageKind::kStepRecord: return "StepRecord";
    case MessageKind::kLeaseRequest: return "LeaseRequest";
    case MessageKind::kCommitRequest: return "CommitRequest";
    case MessageKind::kLeaseReturn: return "LeaseReturn";
    case MessageKind::kPublished: return "Published";
    case MessageKind::kHeartbeat: return "Heartbeat";
    case MessageKind::kCorruptChunk: return "CorruptChunk";
    case MessageKind::kResidentSaved: return "ResidentSaved";
    case MessageKind::kWelcome: return "Welcome";
    case MessageKind::kGroupFormed: return "GroupFormed";
    case MessageKind::kGroupBroken: return "GroupBroken";
    case MessageKind::kGoReduce: return "GoReduce";
    case MessageKind::kGoGather: return "GoGather";
    case MessageKind::kStepOpen: return "StepOpen";
    case MessageKind::kLeaseGrant: return "LeaseGrant";
    case MessageKind::kCommitReply: return "CommitReply";
    case MessageKind::kStepCommitted: return "StepCommitted";
    case MessageKind::kRefused: return "Refused";
    case MessageKind::kStopActor: return "StopActor";
    case MessageKind::kSaveResident: return "SaveResident";
    case MessageKind::kIncarnationStarted: return "IncarnationStarted";
    case MessageKind::kIncarnationLost: return "IncarnationLost";
    case MessageKind::kIncarnationReaped: return "IncarnationReaped";
    case MessageKind::kStatusQuery: return "StatusQuery";
    case MessageKind::kStatusReply: return "StatusReply";
    case MessageKind::kHoldRequest: return "HoldRequest";
    case MessageKind::kHoldReply: return "HoldReply";
    case MessageKind::kHoldRelease: return "HoldRelease";
    case MessageKind::kStopStore: return "StopStore";
    case MessageKind::kAttach: return "Attach";
    case MessageKind::kAttached: return "Attached";
    case MessageKind::kStepRequest: return "StepRequest";
    case MessageKind::kStepReply: return "StepReply";
    case MessageKind::kDetach: return "Detach";
    case MessageKind::kPrepare: return "Prepare";
  }
  // clang-format on
  return "?";
}

uint32_t body_bytes_of(MessageKind kind) {
  switch (kind) {
    case MessageKind::kHello:
      return sizeof(HelloBody);
    case MessageKind::kStepReady:
      return sizeof(StepReadyBody);
    case MessageKind::kStepRecord:
      return sizeof(StepRecordBody);
    case MessageKind::kLeaseRequest:
      return sizeof(LeaseRequestBody);
    case MessageKind::kCommitRequest:
      return sizeof(CommitRequestBody);
    case MessageKind::kLeaseReturn:
      return sizeof(LeaseReturnBody);
    case MessageKind::kPublished:
      return sizeof(PublishedBody);
    case MessageKind::kHeartbeat:
      return sizeof(HeartbeatBody);
    case MessageKind::kCorruptChunk:
      return sizeof(CorruptChunkBody);
    case MessageKind::kWelcome:
      return sizeof(WelcomeBody);
    case MessageKind::kGroupFormed:
    case MessageKind::kGroupBroken:
      return sizeof(GroupBody);
    case MessageKind::kGoReduce:
    case MessageKind::kGoGather:
      return sizeof(GoBody);
    case MessageKind::kStepOpen:
    case MessageKind::kStepCommitted:
    case MessageKind::kStopActor:
    case MessageKind::kPrepare:
    case MessageKind::kSaveResident:
    case MessageKind::kResidentSaved:
      return sizeof(StepBody);
    case MessageKind::kLeaseGrant:
      return sizeof(LeaseGrantBody);
    case MessageKind::kCommitReply:
      return sizeof(CommitReplyBody);
    case MessageKind::kRefused:
      return sizeof(RefusedBody);
    case MessageKind::kIncarnationStarted:
    case MessageKind::kIncarnationLost:
    case MessageKind::kIncarnationReaped:
      return sizeof(IncarnationBody);
    case MessageKind::kStatusQuery:
      return 0;
    case MessageKind::kStatusReply:
      return sizeof(StatusReplyBody);
    case MessageKind::kHoldRequest:
    case MessageKind::kHoldReply:
    case MessageKind::kHoldRelease:
    case MessageKind::kStopStore:
      return sizeof(HoldBody);
    case MessageKind::kAttach:
      return sizeof(AttachBody);
    case MessageKind::kAttached:
      return sizeof(AttachedBody);
    case MessageKind::kStepRequest:
      return sizeof(StepRequestBody);
    case MessageKind::kStepReply:
      return sizeof(StepReplyBody);
    case MessageKind::kDetach:
      return 0;
  }
  return UINT32_MAX;
}

namespace {

template <class Body>
Body body_at(const void* frame) {
  Body body;
  std::memcpy(&body, static_cast<const char*>(frame) + sizeof(MessageHeader), sizeof body);
  return body;
}

// Payload bytes that the body of a valid-length frame describes. A kind that is not named here has
// no payload.
uint64_t payload_bytes_of(MessageKind kind, const void* frame, uint64_t payload) {
  using K = MessageKind;
  if (kind == K::kStepReady) return body_at<StepReadyBody>(frame).blob_bytes;
  if (kind == K::kAttached) return body_at<AttachedBody>(frame).blob_bytes;
  if (kind == K::kStepRequest) return body_at<StepRequestBody>(frame).blob_bytes;
  if (kind == K::kRefused) return body_at<RefusedBody>(frame).text_bytes;
  if (kind == K::kStepReply) return body_at<StepReplyBody>(frame).text_bytes;
  if (kind == K::kGoReduce || kind == K::kGoGather) return payload <= kRankCountMax ? payload : 0;
  if (kind == K::kCommitRequest) {
    return sizeof(SlotEntry) * uint64_t{body_at<CommitRequestBody>(frame).entry_count};
  }
  if (kind == K::kLeaseGrant) {
    return sizeof(GrantEntry) * uint64_t{body_at<LeaseGrantBody>(frame).entry_count};
  }
  if (kind == K::kStatusReply) {
    return sizeof(RankStatus) * uint64_t{body_at<StatusReplyBody>(frame).rank_count};
  }
  return 0;
}

// For the array of entries that follows the body.
template <class Body, class Entry>
bool entries_reserved_are_zero(const void* frame, uint64_t count) {
  const char* at = static_cast<const char*>(frame) + sizeof(MessageHeader) + sizeof(Body);
  for (uint64_t i = 0; i < count; ++i) {
    Entry entry;
    std::memcpy(&entry, at + i * sizeof entry, sizeof entry);
    if (entry.reserved_zero != 0) return false;
  }
  return true;
}

template <class Body>
bool body_reserved_is_zero(const void* frame) {
  return body_at<Body>(frame).reserved_zero == 0;
}

// REQUIRES: the frame's length is right for its kind.
bool reserved_are_zero(MessageKind kind, const void* frame) {
  using K = MessageKind;
  if (kind == K::kHello) return body_reserved_is_zero<HelloBody>(frame);
  if (kind == K::kWelcome) return body_reserved_is_zero<WelcomeBody>(frame);
  if (kind == K::kHeartbeat) return body_reserved_is_zero<HeartbeatBody>(frame);
  if (kind == K::kStatusReply) return body_reserved_is_zero<StatusReplyBody>(frame);
  if (kind == K::kIncarnationStarted || kind == K::kIncarnationLost ||
      kind == K::kIncarnationReaped) {
    return body_reserved_is_zero<IncarnationBody>(frame);
  }
  if (kind == K::kStepReply) {
    const auto body = body_at<StepReplyBody>(frame);
    return body.reserved_zero == 0 && body.reserved_zero_2 == 0;
  }
  if (kind == K::kLeaseGrant) {
    const auto body = body_at<LeaseGrantBody>(frame);
    return body.deferred <= 1 &&
           entries_reserved_are_zero<LeaseGrantBody, GrantEntry>(frame, body.entry_count);
  }
  if (kind == K::kCommitRequest) {
    const auto body = body_at<CommitRequestBody>(frame);
    return body.reserved_zero == 0 &&
           entries_reserved_are_zero<CommitRequestBody, SlotEntry>(frame, body.entry_count);
  }
  return true;
}

// Records have rules of their own.
bool steps_are_in_range(MessageKind kind, const void* frame) {
  using K = MessageKind;
  if (kind == K::kStepOpen || kind == K::kStepCommitted || kind == K::kStopActor ||
      kind == K::kPrepare || kind == K::kSaveResident || kind == K::kResidentSaved) {
    return is_step(body_at<StepBody>(frame).step);
  }
  if (kind == K::kHello) return is_step(body_at<HelloBody>(frame).step_published);
  if (kind == K::kWelcome) {
    const auto body = body_at<WelcomeBody>(frame);
    return is_step(body.step_committed) && is_step(body.step_open);
  }
  if (kind == K::kStatusReply) {
    const auto body = body_at<StatusReplyBody>(frame);
    return is_step(body.step_committed) && is_step(body.step_open);
  }
  if (kind == K::kStepReady) return is_step(body_at<StepReadyBody>(frame).step);
  if (kind == K::kLeaseRequest) return is_step(body_at<LeaseRequestBody>(frame).step);
  if (kind == K::kLeaseGrant) return is_step(body_at<LeaseGrantBody>(frame).step);
  if (kind == K::kCommitRequest) return is_step(body_at<CommitRequestBody>(frame).step);
  if (kind == K::kCommitReply) return is_step(body_at<CommitReplyBody>(frame).step);
  if (kind == K::kPublished) return is_step(body_at<PublishedBody>(frame).step);
  if (kind == K::kHeartbeat) return is_step(body_at<HeartbeatBody>(frame).step);
  if (kind == K::kGoReduce || kind == K::kGoGather) return is_step(body_at<GoBody>(frame).step);
  if (kind == K::kAttached) return is_step(body_at<AttachedBody>(frame).step_committed);
  if (kind == K::kStepRequest) return is_step(body_at<StepRequestBody>(frame).step);
  if (kind == K::kStepReply) return is_step(body_at<StepReplyBody>(frame).step);
  if (kind == K::kHoldRequest || kind == K::kHoldReply || kind == K::kHoldRelease ||
      kind == K::kStopStore) {
    return is_step(body_at<HoldBody>(frame).step);
  }
  return true;
}

const char* why_invalid_body(MessageKind kind, const void* frame) {
  if (!reserved_are_zero(kind, frame)) return "a reserved field is not zero";
  if (!steps_are_in_range(kind, frame)) return "a step is out of range";
  if (kind == MessageKind::kStepReady) {
    const auto b = body_at<StepReadyBody>(frame);
    if (b.step < 1) return "a step counts from 1";
    if (b.blob_bytes > kUserBlobBytesMax) return "the user blob is larger than 1 MiB";
    if (b.keep_blob > 1 || (b.keep_blob == 1 && b.blob_bytes != 0)) return "keep_blob with a blob";
  } else if (kind == MessageKind::kStepRequest) {
    const auto b = body_at<StepRequestBody>(frame);
    if (b.step < 1) return "a step counts from 1";
    if (b.blob_bytes > kUserBlobBytesMax) return "the user blob is larger than 1 MiB";
    if (b.keep_blob > 1 || (b.keep_blob == 1 && b.blob_bytes != 0)) return "keep_blob with a blob";
    if (std::isinf(b.lr) || b.lr < 0) return "lr is not finite and >= 0";
    if (!std::isfinite(b.grad_scale) || b.grad_scale <= 0)
      return "grad_scale is not finite and > 0";
    if (std::isinf(b.max_norm) || b.max_norm < 0) return "max_norm is not finite and >= 0";
  } else if (kind == MessageKind::kPrepare) {
    if (body_at<StepBody>(frame).step < 1) return "a step counts from 1";
  } else if (kind == MessageKind::kLeaseRequest) {
    const auto b = body_at<LeaseRequestBody>(frame);
    if (b.step < 0) return "the step is negative";
    if (b.chunk_count == 0 || b.chunk_count > kWindowChunksMax)
      return "chunk_count is not in 1..64";
  } else if (kind == MessageKind::kCommitRequest) {
    const auto b = body_at<CommitRequestBody>(frame);
    if (b.step < 0) return "the step is negative";
    if (b.chunk_count == 0 || b.chunk_count > kWindowChunksMax)
      return "chunk_count is not in 1..64";
  } else if (kind == MessageKind::kStepRecord) {
    const auto b = body_at<StepRecordBody>(frame);
    if (const char* why = why_invalid(b.record)) return why;
    if (const char* why = why_invalid(b.sums)) return why;
    if (b.sums.step != b.record.step) return "record and sums are of different steps";
  } else if (kind == MessageKind::kRefused) {
    if (body_at<RefusedBody>(frame).status > static_cast<uint16_t>(StatusCode::kInternal))
      return "the status is unknown";
  } else if (kind == MessageKind::kStepReply) {
    if (body_at<StepReplyBody>(frame).status > static_cast<uint16_t>(StatusCode::kInternal))
      return "the status is unknown";
  } else if (kind == MessageKind::kHeartbeat) {
    if (body_at<HeartbeatBody>(frame).phase > static_cast<uint32_t>(Phase::kStopping))
      return "the phase is unknown";
  } else if (kind == MessageKind::kStatusReply) {
    if (body_at<StatusReplyBody>(frame).rank_count > kRankCountMax)
      return "rank_count is past 1024";
  }
  return nullptr;
}

}  // namespace

const char* why_invalid_frame(const void* frame, uint64_t bytes) {
  if (bytes < sizeof(MessageHeader)) return "the frame is shorter than a header";
  if (bytes > kMessageBytesMax) return "the frame is longer than any message";
  MessageHeader header;
  std::memcpy(&header, frame, sizeof header);
  if (header.magic != kMessageMagic) return "the magic number is not Optlease's";
  if (header.version != kProtocolVersion) return "another protocol version";
  if (header.bytes != bytes) return "the frame has another length than its header says";
  const auto kind = static_cast<MessageKind>(header.kind);
  const uint32_t body = body_bytes_of(kind);
  if (body == UINT32_MAX) return "an unknown kind of message";
  if (bytes < sizeof(MessageHeader) + body) return "the frame is shorter than its body";
  const uint64_t payload = bytes - sizeof(MessageHeader) - body;
  if (payload_bytes_of(kind, frame, payload) != payload)
    return "the payload has another length than the body says";
  return why_invalid_body(kind, frame);
}

}  // namespace optlease
