// Every byte of the two kinds of segment, little-endian. docs/SHM_LAYOUT.md has the same tables and
// a test compares them. Change anything here: bump kSegmentVersion.
//
// Control segment (one a node; written by the host store alone, mapped read-only by all others):
//   SegmentHeader | SpaceRecord[] | uint32 member ranks[] | TensorRecord[] | RankRecord[]
//   | ChunkRecord[] | SlotEntry[] | user blobs: two banks of kUserBlobBytesMax a rank
// Arena segment (one a rank): ArenaHeader in the first page, then slot_count slots of slot_bytes.
//   A slot is written by the lessee that holds it as a shadow slot, and by nobody else.
//
// The commit word of a chunk is the one word that makes a version canonical: version + 1 in the
// upper 63 bits, bank in the lowest. Bank b of a chunk's SlotEntry table says in which slots the
// version lies and what they sum to. The store fills the other bank, then the word (release).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "shm/contract/ids.h"
#include "shm/contract/limits.h"
#include "shm/contract/optimizer_params.h"

namespace optlease {

inline constexpr uint64_t kSegmentMagic = 0x004745534c54504full;      // "OPTLSEG\0"
inline constexpr uint64_t kArenaMagic = 0x004e52414c54504full;        // "OPTLARN\0"
inline constexpr uint64_t kSavedShardsMagic = 0x004448534c54504full;  // "OPTLSHD\0"
inline constexpr uint64_t kResidentMagic = 0x005345524c54504full;     // "OPTLRES\0"
inline constexpr uint32_t kSegmentVersion = 3;

enum class SegmentState : uint32_t {
  kCreating = 0,  // never to be trusted: its creator died or still works
  kReady = 1,
};

struct SegmentHeader {
  // Constant after construction; header_checksum covers them.
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t total_bytes;
  uint64_t layout_hash;  // geometry.h
  uint8_t job_id[16];    // random; ties arenas to their control segment
  char job_name[64];
  uint32_t world_size;
  uint32_t window_chunks;
  uint32_t prefetch_windows;
  uint32_t space_count;
  uint32_t member_count;  // entries of the member rank table
  uint32_t tensor_count;
  uint32_t chunk_count;  // all ranks
  uint32_t slot_entry_count;
  uint64_t spaces_offset;  // bytes from the segment's start, here and below
  uint64_t members_offset;
  uint64_t tensors_offset;
  uint64_t ranks_offset;
  uint64_t chunks_offset;
  uint64_t slot_entries_offset;
  uint64_t blobs_offset;
  uint64_t header_checksum;  // FNV-1a of the bytes before it
  // Written by the store while it runs.
  std::atomic<uint32_t> state;            // SegmentState; kReady is the last word of creation
  std::atomic<uint32_t> kept_on_purpose;  // 1: stopped with the wish to keep the state
  std::atomic<uint64_t> store_epoch;      // lives of a store so far
  std::atomic<int64_t> step_committed;    // kNoStep until every chunk is initialised
  std::atomic<uint64_t> steps_skipped;    // non-finite steps so far
  uint64_t reserved_zero[8];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);
static_assert(sizeof(SegmentHeader) == 304, "bump kSegmentVersion");
static_assert(offsetof(SegmentHeader, job_id) == 32 && offsetof(SegmentHeader, job_name) == 48 &&
                  offsetof(SegmentHeader, world_size) == 112 &&
                  offsetof(SegmentHeader, spaces_offset) == 144 &&
                  offsetof(SegmentHeader, header_checksum) == 200 &&
                  offsetof(SegmentHeader, state) == 208 &&
                  offsetof(SegmentHeader, store_epoch) == 216 &&
                  offsetof(SegmentHeader, step_committed) == 224,
              "bump kSegmentVersion");

struct SpaceRecord {
  char name[kNameBytes];
  uint64_t elements;
  uint64_t shard_elements;
  uint64_t chunk_elements;
  uint32_t first_member;  // index into the member rank table
  uint32_t member_count;
  uint32_t first_tensor;
  uint32_t tensor_count;
  uint32_t param_dtype;  // DType
  uint32_t grad_dtype;
  uint32_t group;
  uint32_t array_count;          // kAdamArrayCount
  uint32_t main_form;            // MainForm; the same in all spaces
  uint32_t resident_millionths;  // StateSplit's; the same in all spaces
};
static_assert(sizeof(SpaceRecord) == 128 && std::is_trivially_copyable_v<SpaceRecord>,
              "bump kSegmentVersion");

struct TensorRecord {
  char name[kTensorNameBytes];
  uint64_t shape[kTensorDimsMax];
  uint64_t global_shape[kTensorDimsMax];  // all zero: not a shard of a larger tensor
  uint64_t global_offset[kTensorDimsMax];
  uint64_t flat_offset;  // elements, within its space
  uint64_t elements;
  uint32_t dim_count;
  uint32_t global_dim_count;
  uint64_t reserved_zero[2];
};
static_assert(sizeof(TensorRecord) == 424 && std::is_trivially_copyable_v<TensorRecord>,
              "bump kSegmentVersion");

// What is needed to finish step `step` after a crash; written before the step's first commit.
struct StepRecord {
  int64_t step;          // kNoStep: empty
  int64_t update_count;  // updates applied including this one (skipped steps apply none)
  GroupParams groups[kGroupCountMax];
  uint32_t group_count;
  uint32_t skipped;        // 1: a non-finite gradient was found; versions move, values do not
  double grad_norm;        // global, of the averaged gradient; NaN or inf when skipped
  float grad_coefficient;  // what every gradient is multiplied by: average, scale and clip
  uint32_t reserved_zero;
  uint64_t checksum;  // FNV-1a of the bytes before it: a half-written record is none
};
static_assert(sizeof(StepRecord) == 16 + 48 * kGroupCountMax + 32 &&
                  offsetof(StepRecord, checksum) == sizeof(StepRecord) - 8 &&
                  std::is_trivially_copyable_v<StepRecord>,
              "bump kSegmentVersion and kProtocolVersion");

uint64_t checksum_of(const StepRecord& record);
// To the last bit, NaNs included: as records are stored and sent.
bool same_bytes(const StepRecord& a, const StepRecord& b);
// Null, or the broken rule in words (also for a checksum that does not hold).
const char* why_invalid(const StepRecord& record);

// What the update of step `step` reads from one rank's gradient shards, as a digest: unlike the
// step record it differs from rank to rank. Durable before the rank's record of the same step is.
// (0 and 1 were kinds of segment version 2.)
enum class SumsDigestKind : uint32_t {
  // kernels/checksum.h over the shards' FP32 words, spaces ascending, no padding: a word's index is
  // its place among them all. So the sums of the rank's chunks add up to it.
  kChecksum = 2,
};
struct SumsDigest {
  int64_t step;   // kNoStep: empty
  uint32_t kind;  // SumsDigestKind
  uint32_t reserved_zero;
  uint64_t digest;    // 0 of a rank without shards
  uint64_t checksum;  // FNV-1a of the bytes before it: a half-written one is none
};
static_assert(sizeof(SumsDigest) == 32 && offsetof(SumsDigest, kind) == 8 &&
                  offsetof(SumsDigest, digest) == 16 && offsetof(SumsDigest, checksum) == 24 &&
                  std::is_trivially_copyable_v<SumsDigest>,
              "bump kSegmentVersion and kProtocolVersion");

uint64_t checksum_of(const SumsDigest& sums);
const char* why_invalid(const SumsDigest& sums);
// Whole and valid.
SumsDigest make_sums_digest(Step step, uint64_t digest);

struct BlobRecord {
  int64_t step;  // committed together with this step; kNoStep: none
  uint32_t bytes;
  uint32_t reserved_zero;
  uint64_t checksum;  // FNV-1a of the blob's bytes
};
static_assert(sizeof(BlobRecord) == 24, "bump kSegmentVersion");

struct RankRecord {
  // Constant after construction.
  uint32_t rank;
  uint32_t first_chunk;  // index into the chunk table
  uint32_t chunk_count;
  uint32_t slot_count;
  uint64_t slot_bytes;
  uint64_t arena_bytes;  // of the whole arena segment
  // Written by the store.
  std::atomic<uint64_t> incarnation;  // the last actor incarnation that was ever granted a lease
  StepRecord steps[2];                // bank: step & 1
  BlobRecord blobs[2];                // bank: step & 1
  SumsDigest sums[2];                 // bank: step & 1
  uint64_t reserved_zero[4];
};
static_assert(sizeof(RankRecord) == 40 + 2 * sizeof(StepRecord) + 48 + 64 + 32 &&
                  offsetof(RankRecord, sums) == 40 + 2 * sizeof(StepRecord) + 48,
              "bump kSegmentVersion");

struct ChunkRecord {
  std::atomic<uint64_t> commit_word;
  uint64_t first_element;  // within its space
  uint64_t elements;
  uint32_t rank;
  uint32_t space;
  uint32_t first_entry;  // bank b: entries [first_entry + b * slot_count, ... + slot_count)
  uint32_t slot_count;
  uint64_t reserved_zero[1];
};
static_assert(sizeof(ChunkRecord) == 48, "bump kSegmentVersion");

struct SlotEntry {
  uint32_t slot;  // SlotIndex within the rank's arena
  uint32_t reserved_zero;
  uint64_t checksum;  // kernels/checksum.h, over the chunk's words in this slot
};
static_assert(sizeof(SlotEntry) == 16 && std::is_trivially_copyable_v<SlotEntry>,
              "bump kSegmentVersion and kProtocolVersion");

struct ArenaHeader {
  uint64_t magic;
  uint32_t version;  // kSegmentVersion
  uint32_t rank;
  uint8_t job_id[16];
  uint64_t slot_bytes;
  uint32_t slot_count;
  uint32_t reserved_zero;
  uint64_t total_bytes;
  uint64_t checksum;  // FNV-1a of the bytes before it
};
static_assert(sizeof(ArenaHeader) == 64 && std::is_trivially_copyable_v<ArenaHeader>,
              "bump kSegmentVersion");
inline constexpr uint64_t kArenaSlotsOffset = kPageBytes;

// The first bytes of a rank's gradient segment on a device whose shards lie in its own memory: the
// step whose shards were saved behind it (from byte kSavedShardsOffset on), for a resumed job.
// (On the cpu device the segment has no header: it is the shards.)
struct SavedShardsHeader {
  uint64_t magic;    // kSavedShardsMagic
  uint32_t version;  // kSegmentVersion
  uint32_t rank;
  uint8_t job_id[16];
  int64_t step;         // whose summed gradients these are
  uint64_t data_bytes;  // behind the header: the shards, each on a multiple of 256 bytes
  uint64_t digest;      // of the shards, as SumsDigestKind::kChecksum
  uint64_t checksum;    // FNV-1a of the bytes before it; written last, 0 while shards are
};
static_assert(sizeof(SavedShardsHeader) == 64 && offsetof(SavedShardsHeader, digest) == 48 &&
                  std::is_trivially_copyable_v<SavedShardsHeader>,
              "bump kSegmentVersion");
inline constexpr uint64_t kSavedShardsOffset = kPageBytes;

// A rank's resident segment: this header in the first page, then slot_count slots, each the
// resident part of the arena's slot of the same index (state_split.h). On the cpu device these are
// the slots that kernels work on; on another device, whose resident slots lie in its own memory,
// they are their image.
struct ResidentHeader {
  uint64_t magic;    // kResidentMagic
  uint32_t version;  // kSegmentVersion
  uint32_t rank;
  uint8_t job_id[16];
  uint64_t slot_bytes;
  uint32_t slot_count;
  uint32_t reserved_zero;
  uint64_t total_bytes;
  uint64_t checksum;  // FNV-1a of the bytes before it
  // Written by the rank's actor.
  std::atomic<int64_t> step;    // committed when the slots were last saved; kNoStep: never saved
  std::atomic<uint32_t> whole;  // 1: the slots hold what the device's hold. 0 before the device's
                                // are first written after a saving
  uint32_t reserved_zero_2;
};
static_assert(sizeof(ResidentHeader) == 80 && offsetof(ResidentHeader, checksum) == 56 &&
                  offsetof(ResidentHeader, whole) == 72,
              "bump kSegmentVersion");
inline constexpr uint64_t kResidentSlotsOffset = kPageBytes;

constexpr uint64_t encode_commit_word(Step version, uint32_t bank) {
  return (static_cast<uint64_t>(version + 1) << 1) | bank;
}
constexpr Step version_of(uint64_t commit_word) { return static_cast<Step>(commit_word >> 1) - 1; }
constexpr uint32_t bank_of(uint64_t commit_word) { return static_cast<uint32_t>(commit_word & 1); }
static_assert(version_of(0) == kNoStep && bank_of(0) == 0, "zeroed memory is an unwritten chunk");

// Null, or the broken rule in words, for a header read from a segment of `actual_bytes`. Checks
// magic, version, checksum, and that every table lies inside the segment and overlaps no other; it
// does not look at the tables' contents.
const char* why_invalid(const SegmentHeader& header, uint64_t actual_bytes);
const char* why_invalid(const ArenaHeader& header, uint64_t actual_bytes);
uint64_t header_checksum_of(const SegmentHeader& header);
uint64_t checksum_of(const ArenaHeader& header);
// Null, or the broken rule in words: nothing whole was saved there by this job's rank.
const char* why_invalid(const SavedShardsHeader& header, uint64_t actual_bytes);
uint64_t checksum_of(const SavedShardsHeader& header);
// Whether `whole` is set is another question.
const char* why_invalid(const ResidentHeader& header, uint64_t actual_bytes);
uint64_t checksum_of(const ResidentHeader& header);

}  // namespace optlease
