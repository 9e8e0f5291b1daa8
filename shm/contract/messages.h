// The messages of the lease protocol (actor or launcher <-> host store) and of the client protocol
// (trainer <-> actor). One frame a message: MessageHeader, the body struct of its kind, then the
// payload that the body describes. docs/PROTOCOL.md has the byte tables and a test compares them.
// Change anything here: bump kProtocolVersion.
//
// Every request is idempotent: a sender that hears nothing repeats it, and the receiver answers a
// repeated request as it answered the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "shm/contract/ids.h"
#include "shm/contract/limits.h"
#include "shm/contract/segment_layout.h"
#include "shm/contract/status.h"

namespace optlease {

inline constexpr uint32_t kMessageMagic = 0x4c54504f;  // "OPTL"
inline constexpr uint16_t kProtocolVersion = 3;

// Frozen: append only.
enum class MessageKind : uint16_t {
  // actor -> store
  kHello = 1,          // HelloBody
  kStepReady = 2,      // StepReadyBody + blob
  kStepRecord = 3,     // StepRecordBody
  kLeaseRequest = 4,   // LeaseRequestBody
  kCommitRequest = 5,  // CommitRequestBody + SlotEntry[] (the shadow slots and their checksums)
  kLeaseReturn = 6,    // LeaseReturnBody
  kPublished = 7,      // PublishedBody
  kHeartbeat = 8,      // HeartbeatBody; renews every lease of the incarnation
  kCorruptChunk = 9,   // CorruptChunkBody
  // 10 was a message of earlier builds and stays free.
  kResidentSaved = 11,  // StepBody: answers kSaveResident
  // store -> actor
  kWelcome = 64,        // WelcomeBody
  kGroupFormed = 65,    // GroupBody
  kGroupBroken = 66,    // GroupBody
  kGoReduce = 67,       // GoBody + one byte a rank: 1 = that rank needs its result
  kGoGather = 68,       // GoBody + one byte a rank
  kStepOpen = 69,       // StepBody: every rank's record is durable; leases for the step are granted
  kLeaseGrant = 70,     // LeaseGrantBody + GrantEntry[]
  kCommitReply = 71,    // CommitReplyBody
  kStepCommitted = 72,  // StepBody
  kRefused = 73,        // RefusedBody + text
  kStopActor = 74,      // StepBody (the last committed step)
  kSaveResident = 75,   // StepBody (the committed step): readers want the resident segment whole
  // launcher or tool <-> store
  kIncarnationStarted = 128,  // IncarnationBody
  kIncarnationLost = 129,     // IncarnationBody: its lifeline closed
  kIncarnationReaped = 130,   // IncarnationBody: waitpid returned it
  kStatusQuery = 131,         // no body
  kStatusReply = 132,         // StatusReplyBody + RankStatus[]
  kHoldRequest = 133,         // HoldBody: no step opens while it is held
  kHoldReply = 134,           // HoldBody
  kHoldRelease = 135,         // HoldBody
  kStopStore = 136,           // HoldBody: finish the open step, stop the actors, then end
  // trainer <-> actor
  kAttach = 192,       // AttachBody
  kAttached = 193,     // AttachedBody + blob
  kStepRequest = 194,  // StepRequestBody + blob
  kStepReply = 195,    // StepReplyBody + text where status is not kOk
  kDetach = 196,       // no body
  kPrepare = 197,      // StepBody: gradients of that step are coming; has no answer
};

struct MessageHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;         // MessageKind
  uint32_t bytes;        // the whole frame
  uint32_t rank;         // of the sender or, from the store, of the receiver
  uint64_t incarnation;  // of that rank's actor; 0 from a launcher, tool or trainer
  uint64_t store_epoch;  // 0 where it is not known yet
  uint64_t sequence;     // of the sender; a reply repeats its request's
};
static_assert(sizeof(MessageHeader) == 40 && std::is_trivially_copyable_v<MessageHeader>);

struct HelloBody {  // "nothing that an earlier epoch or lease allowed is still being written"
  uint8_t job_id[16];
  uint64_t layout_hash;
  uint32_t pid;
  uint32_t reserved_zero;
  int64_t step_published;  // kNoStep, or the step whose gathered parameters its buffer holds: after
                           // a store restart the rank is not in need of GoGather for that step
};
struct WelcomeBody {
  int64_t step_committed;
  int64_t step_open;  // kNoStep, or the step whose records are all durable
  uint64_t lease_ms;  // how long a lease lives without a heartbeat
  uint64_t reserved_zero;
};
struct StepReadyBody {
  int64_t step;
  uint32_t blob_bytes;
  uint32_t keep_blob;  // 1: the blob of the previous step stays; blob_bytes is 0
};
struct StepRecordBody {
  uint64_t group_epoch;
  StepRecord record;  // equal at every rank
  SumsDigest sums;    // of the same step: this rank's own
};
struct LeaseRequestBody {
  int64_t step;          // the version to be written; 0 = initialisation
  uint32_t first_chunk;  // ChunkIndex
  uint32_t chunk_count;  // <= window_chunks
};
struct LeaseGrantBody {
  uint64_t lease_id;
  int64_t step;
  uint32_t first_chunk;
  uint32_t chunk_count;
  uint32_t entry_count;
  uint32_t deferred;  // 1: it waited for credit (LEASES.md); 0: granted when it was asked for
};
struct GrantEntry {  // one a slot: chunks ascending, slots of a chunk in order
  uint32_t chunk;
  uint32_t source_slot;  // committed version; equal to shadow_slot where there is none yet
  uint32_t shadow_slot;
  uint32_t reserved_zero;
  uint64_t source_checksum;
};
struct CommitRequestBody {
  uint64_t lease_id;
  int64_t step;
  uint32_t first_chunk;
  uint32_t chunk_count;  // whole chunks of the lease, in order; may be a part of it
  uint32_t entry_count;
  uint32_t reserved_zero;
};
struct CommitReplyBody {
  uint64_t lease_id;
  int64_t step;
  uint32_t first_chunk;
  uint32_t chunk_count;
};
struct LeaseReturnBody {
  uint64_t lease_id;
};
struct PublishedBody {
  int64_t step;
  uint64_t group_epoch;
};
struct HeartbeatBody {
  int64_t step;
  uint32_t phase;  // Phase
  uint32_t reserved_zero;
};
struct CorruptChunkBody {
  uint32_t chunk;
  uint32_t slot;
  uint64_t expected;
  uint64_t found;
};
struct GroupBody {
  uint64_t group_epoch;
};
struct GoBody {
  uint64_t group_epoch;
  int64_t step;
};
struct StepBody {
  int64_t step;
};
struct RefusedBody {
  uint16_t kind;    // MessageKind that was refused
  uint16_t status;  // StatusCode
  uint32_t text_bytes;
};
struct IncarnationBody {
  uint32_t rank;
  uint32_t reserved_zero;
  uint64_t incarnation;
};
struct StatusReplyBody {
  int64_t step_committed;
  int64_t step_open;
  uint64_t steps_skipped;
  uint64_t commits;
  uint64_t refusals;
  uint32_t rank_count;
  uint32_t reserved_zero;
};
struct RankStatus {
  uint64_t incarnation;       // 0: none attached
  int64_t step;               // of its last heartbeat
  uint32_t phase;             // Phase
  uint32_t chunks_committed;  // at the open step
  uint32_t leases;
  uint32_t slots_quarantined;
  uint64_t silent_ms;  // since its last message
};
struct HoldBody {
  int64_t step;      // reply: the committed step that holds still
  uint64_t hold_id;  // 0 in a request for a new hold
  uint64_t ttl_ms;   // the hold ends by itself after this long without renewal
};
struct AttachBody {
  uint32_t abi_version;
  uint32_t pid;
};
struct AttachedBody {
  int64_t step_committed;
  uint32_t blob_bytes;
  uint32_t has_blob;
};
struct StepRequestBody {
  int64_t step;
  double lr;          // NaN: as configured
  double grad_scale;  // gradients are divided by it; 1 by default
  double max_norm;    // NaN: as configured; 0: no clipping
  uint32_t blob_bytes;
  uint32_t keep_blob;  // 1: the previous step's blob stays
};
struct StepReplyBody {
  int64_t step;
  double grad_norm;
  uint32_t skipped;
  uint16_t status;  // StatusCode
  uint16_t reserved_zero;
  uint32_t text_bytes;
  uint32_t reserved_zero_2;
};

// What an actor is doing, for heartbeats, telemetry, rehearsals and diagnosis. Frozen: append only.
enum class Phase : uint32_t {
  kStarting = 0,
  kIdle = 1,  // between steps
  kInitialise = 2,
  kWaitPeers = 3,  // its gradients are ready, others' are not
  kReduce = 4,     // and the norm of what was reduced
  kWaitOpen = 5,
  kStream = 6,
  kWaitCommitted = 7,
  kGather = 8,
  kStopping = 9,
};
const char* name_of(Phase phase);
const char* name_of(MessageKind kind);

static_assert(sizeof(HelloBody) == 40 && sizeof(WelcomeBody) == 32 && sizeof(StepReadyBody) == 16 &&
                  sizeof(StepRecordBody) == 8 + sizeof(StepRecord) + sizeof(SumsDigest) &&
                  offsetof(StepRecordBody, sums) == 8 + sizeof(StepRecord) &&
                  sizeof(GrantEntry) == 24 && sizeof(LeaseGrantBody) == 32 &&
                  sizeof(LeaseRequestBody) == 16 && sizeof(CommitRequestBody) == 32 &&
                  sizeof(CommitReplyBody) == 24 && sizeof(LeaseReturnBody) == 8 &&
                  sizeof(PublishedBody) == 16 && sizeof(HeartbeatBody) == 16 &&
                  sizeof(CorruptChunkBody) == 24 && sizeof(GroupBody) == 8 &&
                  sizeof(GoBody) == 16 && sizeof(StepBody) == 8 && sizeof(RefusedBody) == 8 &&
                  sizeof(IncarnationBody) == 16 && sizeof(StatusReplyBody) == 48 &&
                  sizeof(RankStatus) == 40 && sizeof(HoldBody) == 24 && sizeof(AttachBody) == 8 &&
                  sizeof(AttachedBody) == 16 && sizeof(StepRequestBody) == 40 &&
                  sizeof(StepReplyBody) == 32,
              "the protocol has no padding: bump kProtocolVersion");

// Bytes of the body of `kind`; UINT32_MAX for an unknown kind.
uint32_t body_bytes_of(MessageKind kind);

// Null, or the broken rule in words, for a whole frame: magic, version, known kind, length against
// body and payload, reserved fields, counts within limits. Called before send and after receive.
const char* why_invalid_frame(const void* frame, uint64_t bytes);

}  // namespace optlease
