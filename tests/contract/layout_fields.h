// Every field of every byte struct that two processes agree on, with the compiler's offsets and
// sizes: what the pages' byte tables are compared with.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shm/contract/messages.h"
#include "shm/contract/segment_layout.h"
#include "shm/contract/vault.h"

namespace optlease::test {

struct FieldPlace {
  std::string name;
  size_t offset;
  size_t size;
};

struct StructPlace {
  std::string name;
  size_t size;
  std::vector<FieldPlace> fields;
};

#define OPTLEASE_FIELD(type, field) \
  FieldPlace { #field, offsetof(type, field), sizeof(type::field) }

inline std::vector<StructPlace> structs_in_memory_1() {
  return {
      {"GroupParams",
       sizeof(GroupParams),
       {OPTLEASE_FIELD(GroupParams, lr), OPTLEASE_FIELD(GroupParams, beta1),
        OPTLEASE_FIELD(GroupParams, beta2), OPTLEASE_FIELD(GroupParams, eps),
        OPTLEASE_FIELD(GroupParams, weight_decay), OPTLEASE_FIELD(GroupParams, rule),
        OPTLEASE_FIELD(GroupParams, reserved_zero)}},
      {"SegmentHeader",
       sizeof(SegmentHeader),
       {OPTLEASE_FIELD(SegmentHeader, magic),
        OPTLEASE_FIELD(SegmentHeader, version),
        OPTLEASE_FIELD(SegmentHeader, header_bytes),
        OPTLEASE_FIELD(SegmentHeader, total_bytes),
        OPTLEASE_FIELD(SegmentHeader, layout_hash),
        OPTLEASE_FIELD(SegmentHeader, job_id),
        OPTLEASE_FIELD(SegmentHeader, job_name),
        OPTLEASE_FIELD(SegmentHeader, world_size),
        OPTLEASE_FIELD(SegmentHeader, window_chunks),
        OPTLEASE_FIELD(SegmentHeader, prefetch_windows),
        OPTLEASE_FIELD(SegmentHeader, space_count),
        OPTLEASE_FIELD(SegmentHeader, member_count),
        OPTLEASE_FIELD(SegmentHeader, tensor_count),
        OPTLEASE_FIELD(SegmentHeader, chunk_count),
        OPTLEASE_FIELD(SegmentHeader, slot_entry_count),
        OPTLEASE_FIELD(SegmentHeader, spaces_offset),
        OPTLEASE_FIELD(SegmentHeader, members_offset),
        OPTLEASE_FIELD(SegmentHeader, tensors_offset),
        OPTLEASE_FIELD(SegmentHeader, ranks_offset),
        OPTLEASE_FIELD(SegmentHeader, chunks_offset),
        OPTLEASE_FIELD(SegmentHeader, slot_entries_offset),
        OPTLEASE_FIELD(SegmentHeader, blobs_offset),
        OPTLEASE_FIELD(SegmentHeader, header_checksum),
        OPTLEASE_FIELD(SegmentHeader, state),
        OPTLEASE_FIELD(SegmentHeader, kept_on_purpose),
        OPTLEASE_FIELD(SegmentHeader, store_epoch),
        OPTLEASE_FIELD(SegmentHeader, step_committed),
        OPTLEASE_FIELD(SegmentHeader, steps_skipped),
        OPTLEASE_FIELD(SegmentHeader, reserved_zero)}},
  };
}

inline std::vector<StructPlace> structs_in_memory_2() {
  return {
      {"SpaceRecord",
       sizeof(SpaceRecord),
       {OPTLEASE_FIELD(SpaceRecord, name), OPTLEASE_FIELD(SpaceRecord, elements),
        OPTLEASE_FIELD(SpaceRecord, shard_elements), OPTLEASE_FIELD(SpaceRecord, chunk_elements),
        OPTLEASE_FIELD(SpaceRecord, first_member), OPTLEASE_FIELD(SpaceRecord, member_count),
        OPTLEASE_FIELD(SpaceRecord, first_tensor), OPTLEASE_FIELD(SpaceRecord, tensor_count),
        OPTLEASE_FIELD(SpaceRecord, param_dtype), OPTLEASE_FIELD(SpaceRecord, grad_dtype),
        OPTLEASE_FIELD(SpaceRecord, group), OPTLEASE_FIELD(SpaceRecord, array_count),
        OPTLEASE_FIELD(SpaceRecord, main_form), OPTLEASE_FIELD(SpaceRecord, resident_millionths)}},
      {"TensorRecord",
       sizeof(TensorRecord),
       {OPTLEASE_FIELD(TensorRecord, name), OPTLEASE_FIELD(TensorRecord, shape),
        OPTLEASE_FIELD(TensorRecord, global_shape), OPTLEASE_FIELD(TensorRecord, global_offset),
        OPTLEASE_FIELD(TensorRecord, flat_offset), OPTLEASE_FIELD(TensorRecord, elements),
        OPTLEASE_FIELD(TensorRecord, dim_count), OPTLEASE_FIELD(TensorRecord, global_dim_count),
        OPTLEASE_FIELD(TensorRecord, reserved_zero)}},
      {"StepRecord",
       sizeof(StepRecord),
       {OPTLEASE_FIELD(StepRecord, step), OPTLEASE_FIELD(StepRecord, update_count),
        OPTLEASE_FIELD(StepRecord, groups), OPTLEASE_FIELD(StepRecord, group_count),
        OPTLEASE_FIELD(StepRecord, skipped), OPTLEASE_FIELD(StepRecord, grad_norm),
        OPTLEASE_FIELD(StepRecord, grad_coefficient), OPTLEASE_FIELD(StepRecord, reserved_zero),
        OPTLEASE_FIELD(StepRecord, checksum)}},
      {"SumsDigest",
       sizeof(SumsDigest),
       {OPTLEASE_FIELD(SumsDigest, step), OPTLEASE_FIELD(SumsDigest, kind),
        OPTLEASE_FIELD(SumsDigest, reserved_zero), OPTLEASE_FIELD(SumsDigest, digest),
        OPTLEASE_FIELD(SumsDigest, checksum)}},
      {"BlobRecord",
       sizeof(BlobRecord),
       {OPTLEASE_FIELD(BlobRecord, step), OPTLEASE_FIELD(BlobRecord, bytes),
        OPTLEASE_FIELD(BlobRecord, reserved_zero), OPTLEASE_FIELD(BlobRecord, checksum)}},
  };
}

inline std::vector<StructPlace> structs_in_memory_3() {
  return {
      {"RankRecord",
       sizeof(RankRecord),
       {OPTLEASE_FIELD(RankRecord, rank), OPTLEASE_FIELD(RankRecord, first_chunk),
        OPTLEASE_FIELD(RankRecord, chunk_count), OPTLEASE_FIELD(RankRecord, slot_count),
        OPTLEASE_FIELD(RankRecord, slot_bytes), OPTLEASE_FIELD(RankRecord, arena_bytes),
        OPTLEASE_FIELD(RankRecord, incarnation), OPTLEASE_FIELD(RankRecord, steps),
        OPTLEASE_FIELD(RankRecord, blobs), OPTLEASE_FIELD(RankRecord, sums),
        OPTLEASE_FIELD(RankRecord, reserved_zero)}},
      {"ChunkRecord",
       sizeof(ChunkRecord),
       {OPTLEASE_FIELD(ChunkRecord, commit_word), OPTLEASE_FIELD(ChunkRecord, first_element),
        OPTLEASE_FIELD(ChunkRecord, elements), OPTLEASE_FIELD(ChunkRecord, rank),
        OPTLEASE_FIELD(ChunkRecord, space), OPTLEASE_FIELD(ChunkRecord, first_entry),
        OPTLEASE_FIELD(ChunkRecord, slot_count), OPTLEASE_FIELD(ChunkRecord, reserved_zero)}},
      {"SlotEntry",
       sizeof(SlotEntry),
       {OPTLEASE_FIELD(SlotEntry, slot), OPTLEASE_FIELD(SlotEntry, reserved_zero),
        OPTLEASE_FIELD(SlotEntry, checksum)}},
      {"ArenaHeader",
       sizeof(ArenaHeader),
       {OPTLEASE_FIELD(ArenaHeader, magic), OPTLEASE_FIELD(ArenaHeader, version),
        OPTLEASE_FIELD(ArenaHeader, rank), OPTLEASE_FIELD(ArenaHeader, job_id),
        OPTLEASE_FIELD(ArenaHeader, slot_bytes), OPTLEASE_FIELD(ArenaHeader, slot_count),
        OPTLEASE_FIELD(ArenaHeader, reserved_zero), OPTLEASE_FIELD(ArenaHeader, total_bytes),
        OPTLEASE_FIELD(ArenaHeader, checksum)}},
      {"SavedShardsHeader",
       sizeof(SavedShardsHeader),
       {OPTLEASE_FIELD(SavedShardsHeader, magic), OPTLEASE_FIELD(SavedShardsHeader, version),
        OPTLEASE_FIELD(SavedShardsHeader, rank), OPTLEASE_FIELD(SavedShardsHeader, job_id),
        OPTLEASE_FIELD(SavedShardsHeader, step), OPTLEASE_FIELD(SavedShardsHeader, data_bytes),
        OPTLEASE_FIELD(SavedShardsHeader, digest), OPTLEASE_FIELD(SavedShardsHeader, checksum)}},
      {"ResidentHeader",
       sizeof(ResidentHeader),
       {OPTLEASE_FIELD(ResidentHeader, magic), OPTLEASE_FIELD(ResidentHeader, version),
        OPTLEASE_FIELD(ResidentHeader, rank), OPTLEASE_FIELD(ResidentHeader, job_id),
        OPTLEASE_FIELD(ResidentHeader, slot_bytes), OPTLEASE_FIELD(ResidentHeader, slot_count),
        OPTLEASE_FIELD(ResidentHeader, reserved_zero), OPTLEASE_FIELD(ResidentHeader, total_bytes),
        OPTLEASE_FIELD(ResidentHeader, checksum), OPTLEASE_FIELD(ResidentHeader, step),
        OPTLEASE_FIELD(ResidentHeader, whole), OPTLEASE_FIELD(ResidentHeader, reserved_zero_2)}},
      {"VaultMessage",
       sizeof(VaultMessage),
       {OPTLEASE_FIELD(VaultMessage, magic), OPTLEASE_FIELD(VaultMessage, version),
        OPTLEASE_FIELD(VaultMessage, op), OPTLEASE_FIELD(VaultMessage, bytes),
        OPTLEASE_FIELD(VaultMessage, status), OPTLEASE_FIELD(VaultMessage, reserved_zero),
        OPTLEASE_FIELD(VaultMessage, reserved_zero_2), OPTLEASE_FIELD(VaultMessage, key)}},
  };
}

// The structs of docs/SHM_LAYOUT.md, in its order.
inline std::vector<StructPlace> structs_in_memory() {
  std::vector<StructPlace> all;
  for (const auto& part : {structs_in_memory_1(), structs_in_memory_2(), structs_in_memory_3()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

inline std::vector<StructPlace> structs_in_messages_1() {
  return {
      {"MessageHeader",
       sizeof(MessageHeader),
       {OPTLEASE_FIELD(MessageHeader, magic), OPTLEASE_FIELD(MessageHeader, version),
        OPTLEASE_FIELD(MessageHeader, kind), OPTLEASE_FIELD(MessageHeader, bytes),
        OPTLEASE_FIELD(MessageHeader, rank), OPTLEASE_FIELD(MessageHeader, incarnation),
        OPTLEASE_FIELD(MessageHeader, store_epoch), OPTLEASE_FIELD(MessageHeader, sequence)}},
      {"HelloBody",
       sizeof(HelloBody),
       {OPTLEASE_FIELD(HelloBody, job_id), OPTLEASE_FIELD(HelloBody, layout_hash),
        OPTLEASE_FIELD(HelloBody, pid), OPTLEASE_FIELD(HelloBody, reserved_zero),
        OPTLEASE_FIELD(HelloBody, step_published)}},
      {"WelcomeBody",
       sizeof(WelcomeBody),
       {OPTLEASE_FIELD(WelcomeBody, step_committed), OPTLEASE_FIELD(WelcomeBody, step_open),
        OPTLEASE_FIELD(WelcomeBody, lease_ms), OPTLEASE_FIELD(WelcomeBody, reserved_zero)}},
      {"StepReadyBody",
       sizeof(StepReadyBody),
       {OPTLEASE_FIELD(StepReadyBody, step), OPTLEASE_FIELD(StepReadyBody, blob_bytes),
        OPTLEASE_FIELD(StepReadyBody, keep_blob)}},
      {"StepRecordBody",
       sizeof(StepRecordBody),
       {OPTLEASE_FIELD(StepRecordBody, group_epoch), OPTLEASE_FIELD(StepRecordBody, record),
        OPTLEASE_FIELD(StepRecordBody, sums)}},
      {"LeaseRequestBody",
       sizeof(LeaseRequestBody),
       {OPTLEASE_FIELD(LeaseRequestBody, step), OPTLEASE_FIELD(LeaseRequestBody, first_chunk),
        OPTLEASE_FIELD(LeaseRequestBody, chunk_count)}},
      {"LeaseGrantBody",
       sizeof(LeaseGrantBody),
       {OPTLEASE_FIELD(LeaseGrantBody, lease_id), OPTLEASE_FIELD(LeaseGrantBody, step),
        OPTLEASE_FIELD(LeaseGrantBody, first_chunk), OPTLEASE_FIELD(LeaseGrantBody, chunk_count),
        OPTLEASE_FIELD(LeaseGrantBody, entry_count), OPTLEASE_FIELD(LeaseGrantBody, deferred)}},
  };
}

inline std::vector<StructPlace> structs_in_messages_2() {
  return {
      {"GrantEntry",
       sizeof(GrantEntry),
       {OPTLEASE_FIELD(GrantEntry, chunk), OPTLEASE_FIELD(GrantEntry, source_slot),
        OPTLEASE_FIELD(GrantEntry, shadow_slot), OPTLEASE_FIELD(GrantEntry, reserved_zero),
        OPTLEASE_FIELD(GrantEntry, source_checksum)}},
      {"CommitRequestBody",
       sizeof(CommitRequestBody),
       {OPTLEASE_FIELD(CommitRequestBody, lease_id), OPTLEASE_FIELD(CommitRequestBody, step),
        OPTLEASE_FIELD(CommitRequestBody, first_chunk),
        OPTLEASE_FIELD(CommitRequestBody, chunk_count),
        OPTLEASE_FIELD(CommitRequestBody, entry_count),
        OPTLEASE_FIELD(CommitRequestBody, reserved_zero)}},
      {"CommitReplyBody",
       sizeof(CommitReplyBody),
       {OPTLEASE_FIELD(CommitReplyBody, lease_id), OPTLEASE_FIELD(CommitReplyBody, step),
        OPTLEASE_FIELD(CommitReplyBody, first_chunk),
        OPTLEASE_FIELD(CommitReplyBody, chunk_count)}},
      {"LeaseReturnBody", sizeof(LeaseReturnBody), {OPTLEASE_FIELD(LeaseReturnBody, lease_id)}},
      {"PublishedBody",
       sizeof(PublishedBody),
       {OPTLEASE_FIELD(PublishedBody, step), OPTLEASE_FIELD(PublishedBody, group_epoch)}},
      {"HeartbeatBody",
       sizeof(HeartbeatBody),
       {OPTLEASE_FIELD(HeartbeatBody, step), OPTLEASE_FIELD(HeartbeatBody, phase),
        OPTLEASE_FIELD(HeartbeatBody, reserved_zero)}},
      {"CorruptChunkBody",
       sizeof(CorruptChunkBody),
       {OPTLEASE_FIELD(CorruptChunkBody, chunk), OPTLEASE_FIELD(CorruptChunkBody, slot),
        OPTLEASE_FIELD(CorruptChunkBody, expected), OPTLEASE_FIELD(CorruptChunkBody, found)}},
      {"GroupBody", sizeof(GroupBody), {OPTLEASE_FIELD(GroupBody, group_epoch)}},
      {"GoBody",
       sizeof(GoBody),
       {OPTLEASE_FIELD(GoBody, group_epoch), OPTLEASE_FIELD(GoBody, step)}},
  };
}

inline std::vector<StructPlace> structs_in_messages_3() {
  return {
      {"StepBody", sizeof(StepBody), {OPTLEASE_FIELD(StepBody, step)}},
      {"RefusedBody",
       sizeof(RefusedBody),
       {OPTLEASE_FIELD(RefusedBody, kind), OPTLEASE_FIELD(RefusedBody, status),
        OPTLEASE_FIELD(RefusedBody, text_bytes)}},
      {"IncarnationBody",
       sizeof(IncarnationBody),
       {OPTLEASE_FIELD(IncarnationBody, rank), OPTLEASE_FIELD(IncarnationBody, reserved_zero),
        OPTLEASE_FIELD(IncarnationBody, incarnation)}},
      {"StatusReplyBody",
       sizeof(StatusReplyBody),
       {OPTLEASE_FIELD(StatusReplyBody, step_committed), OPTLEASE_FIELD(StatusReplyBody, step_open),
        OPTLEASE_FIELD(StatusReplyBody, steps_skipped), OPTLEASE_FIELD(StatusReplyBody, commits),
        OPTLEASE_FIELD(StatusReplyBody, refusals), OPTLEASE_FIELD(StatusReplyBody, rank_count),
        OPTLEASE_FIELD(StatusReplyBody, reserved_zero)}},
      {"RankStatus",
       sizeof(RankStatus),
       {OPTLEASE_FIELD(RankStatus, incarnation), OPTLEASE_FIELD(RankStatus, step),
        OPTLEASE_FIELD(RankStatus, phase), OPTLEASE_FIELD(RankStatus, chunks_committed),
        OPTLEASE_FIELD(RankStatus, leases), OPTLEASE_FIELD(RankStatus, slots_quarantined),
        OPTLEASE_FIELD(RankStatus, silent_ms)}},
      {"HoldBody",
       sizeof(HoldBody),
       {OPTLEASE_FIELD(HoldBody, step), OPTLEASE_FIELD(HoldBody, hold_id),
        OPTLEASE_FIELD(HoldBody, ttl_ms)}},
      {"AttachBody",
       sizeof(AttachBody),
       {OPTLEASE_FIELD(AttachBody, abi_version), OPTLEASE_FIELD(AttachBody, pid)}},
      {"AttachedBody",
       sizeof(AttachedBody),
       {OPTLEASE_FIELD(AttachedBody, step_committed), OPTLEASE_FIELD(AttachedBody, blob_bytes),
        OPTLEASE_FIELD(AttachedBody, has_blob)}},
  };
}

inline std::vector<StructPlace> structs_in_messages_4() {
  return {
      {"StepRequestBody",
       sizeof(StepRequestBody),
       {OPTLEASE_FIELD(StepRequestBody, step), OPTLEASE_FIELD(StepRequestBody, lr),
        OPTLEASE_FIELD(StepRequestBody, grad_scale), OPTLEASE_FIELD(StepRequestBody, max_norm),
        OPTLEASE_FIELD(StepRequestBody, blob_bytes), OPTLEASE_FIELD(StepRequestBody, keep_blob)}},
      {"StepReplyBody",
       sizeof(StepReplyBody),
       {OPTLEASE_FIELD(StepReplyBody, step), OPTLEASE_FIELD(StepReplyBody, grad_norm),
        OPTLEASE_FIELD(StepReplyBody, skipped), OPTLEASE_FIELD(StepReplyBody, status),
        OPTLEASE_FIELD(StepReplyBody, reserved_zero), OPTLEASE_FIELD(StepReplyBody, text_bytes),
        OPTLEASE_FIELD(StepReplyBody, reserved_zero_2)}},
  };
}

// The structs of docs/PROTOCOL.md, in its order.
inline std::vector<StructPlace> structs_in_messages() {
  std::vector<StructPlace> all;
  for (const auto& part : {structs_in_messages_1(), structs_in_messages_2(),
                           structs_in_messages_3(), structs_in_messages_4()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

#undef OPTLEASE_FIELD

}  // namespace optlease::test
