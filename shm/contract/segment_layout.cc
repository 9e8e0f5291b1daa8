#include "shm/contract/segment_layout.h"

#include <cmath>
#include <cstring>

#include "shm/contract/geometry.h"

namespace optlease {

const char* name_of(Rule rule) {
  switch (rule) {
    case Rule::kAdamW:
      return "adamw";
    case Rule::kAdam:
      return "adam";
  }
  return "?";
}

const char* why_invalid(const GroupParams& p) {
  if (p.rule != static_cast<uint32_t>(Rule::kAdamW) &&
      p.rule != static_cast<uint32_t>(Rule::kAdam)) {
    return "the rule is none that this build knows";
  }
  if (!std::isfinite(p.lr) || p.lr < 0) return "lr is not finite and >= 0";
  if (!(p.beta1 >= 0 && p.beta1 < 1)) return "beta1 is not in [0, 1)";
  if (!(p.beta2 >= 0 && p.beta2 < 1)) return "beta2 is not in [0, 1)";
  if (!std::isfinite(p.eps) || p.eps < 0) return "eps is not finite and >= 0";
  if (!std::isfinite(p.weight_decay) || p.weight_decay < 0)
    return "weight_decay is not finite and >= 0";
  if (p.reserved_zero != 0) return "a reserved field is not zero";
  return nullptr;
}

uint64_t checksum_of(const StepRecord& record) {
  return fnv1a(&record, offsetof(StepRecord, checksum));
}

bool same_bytes(const StepRecord& a, const StepRecord& b) {
  // It has no padding (segment_layout.h sees to that), and its numbers count as bits.
  return std::memcmp(&a, &b, sizeof a) == 0;  // NOLINT(bugprone-suspicious-memory-comparison)
}

const char* why_invalid(const StepRecord& r) {
  if (r.step < 0) return "the step record is empty";
  if (r.step > kStepMax) return "the step record's step is out of range";
  if (r.checksum != checksum_of(r)) return "the step record's checksum does not hold";
  if (r.update_count < 0 || r.update_count > r.step) return "update_count is not in 0..step";
  if (r.group_count == 0 || r.group_count > kGroupCountMax) return "group_count is not in 1..8";
  if (r.skipped > 1 || r.reserved_zero != 0) return "a flag or reserved field is out of range";
  if (r.skipped == 0 && (!std::isfinite(r.grad_coefficient) || !std::isfinite(r.grad_norm))) {
    return "the gradient norm or coefficient is not finite, and the step is not skipped";
  }
  for (uint32_t g = 0; g < r.group_count; ++g) {
    if (const char* why = why_invalid(r.groups[g])) return why;
  }
  return nullptr;
}

uint64_t checksum_of(const SumsDigest& sums) {
  return fnv1a(&sums, offsetof(SumsDigest, checksum));
}

const char* why_invalid(const SumsDigest& sums) {
  if (sums.step < 0) return "the sums' digest is empty";
  if (sums.step > kStepMax) return "the step of the sums' digest is out of range";
  if (sums.checksum != checksum_of(sums)) return "the checksum of the sums' digest does not hold";
  if (sums.reserved_zero != 0) return "a reserved field of the sums' digest is not zero";
  if (sums.kind == static_cast<uint32_t>(SumsDigestKind::kChecksum)) return nullptr;
  return "the sums' digest is of a kind that this build does not know";
}

SumsDigest make_sums_digest(Step step, uint64_t digest) {
  SumsDigest sums{};
  sums.step = step;
  sums.kind = static_cast<uint32_t>(SumsDigestKind::kChecksum);
  sums.digest = digest;
  sums.checksum = checksum_of(sums);
  return sums;
}

uint64_t header_checksum_of(const SegmentHeader& header) {
  return fnv1a(&header, offsetof(SegmentHeader, header_checksum));
}
uint64_t checksum_of(const ArenaHeader& header) {
  return fnv1a(&header, offsetof(ArenaHeader, checksum));
}
uint64_t checksum_of(const SavedShardsHeader& header) {
  return fnv1a(&header, offsetof(SavedShardsHeader, checksum));
}

uint64_t checksum_of(const ResidentHeader& header) {
  return fnv1a(&header, offsetof(ResidentHeader, checksum));
}

const char* why_invalid(const ResidentHeader& h, uint64_t actual_bytes) {
  if (actual_bytes < kResidentSlotsOffset) return "it is shorter than its header page";
  if (h.magic != kResidentMagic) return "the magic number is not a resident segment's";
  if (h.version != kSegmentVersion) return "it has another format version";
  if (h.checksum != checksum_of(h)) return "its header's checksum does not hold";
  if (h.reserved_zero != 0 || h.reserved_zero_2 != 0) return "a reserved field is not zero";
  if (h.total_bytes != actual_bytes) return "it has another size than its header says";
  if (h.slot_bytes % kPageBytes != 0) return "its slots are not page multiples";
  if (h.slot_count != 0 && h.slot_bytes != (actual_bytes - kResidentSlotsOffset) / h.slot_count) {
    return "its slots are not as large as it is";
  }
  if (h.whole.load(std::memory_order_acquire) > 1) return "a flag is neither 0 nor 1";
  return nullptr;
}

const char* why_invalid(const SavedShardsHeader& h, uint64_t actual_bytes) {
  if (h.magic != kSavedShardsMagic) return "nothing was ever saved there";
  if (h.version != kSegmentVersion) return "it was saved by another version";
  if (h.checksum != checksum_of(h)) return "its saving was never finished";
  if (h.step < 0 || h.step > kStepMax) return "a field is out of range";
  if (actual_bytes < kSavedShardsOffset || h.data_bytes != actual_bytes - kSavedShardsOffset) {
    return "its size is another";
  }
  return nullptr;
}

const char* why_invalid(const SegmentHeader& h, uint64_t actual_bytes) {
  if (actual_bytes < sizeof(SegmentHeader)) return "the segment is shorter than its header";
  if (h.magic != kSegmentMagic) return "the magic number is not Optlease's";
  if (h.version != kSegmentVersion) return "the segment has another format version";
  if (h.header_bytes != sizeof(SegmentHeader)) return "the header has another size";
  if (h.header_checksum != header_checksum_of(h)) return "the header's checksum does not hold";
  if (h.total_bytes != actual_bytes) return "the segment has another size than its header says";
  if (h.world_size == 0 || h.world_size > kRankCountMax) return "world_size is out of range";
  if (h.window_chunks == 0 || h.window_chunks > kWindowChunksMax)
    return "window_chunks is out of range";
  if (h.prefetch_windows == 0 || h.prefetch_windows >= kLeasesInFlightMax)
    return "prefetch_windows is out of range";
  if (h.space_count == 0 || h.space_count > kSpaceCountMax) return "space_count is out of range";
  if (h.tensor_count > kTensorCountMax) return "tensor_count is out of range";
  for (uint64_t word : h.reserved_zero) {
    if (word != 0) return "a reserved field is not zero";
  }
  // The tables follow one another; counts are at most 2^32 - 1 and records small, so no sum
  // overflows.
  const struct {
    uint64_t offset, count, bytes;
  } tables[] = {
      {h.spaces_offset, h.space_count, sizeof(SpaceRecord)},
      {h.members_offset, h.member_count, sizeof(uint32_t)},
      {h.tensors_offset, h.tensor_count, sizeof(TensorRecord)},
      {h.ranks_offset, h.world_size, sizeof(RankRecord)},
      {h.chunks_offset, h.chunk_count, sizeof(ChunkRecord)},
      {h.slot_entries_offset, h.slot_entry_count, sizeof(SlotEntry)},
      {h.blobs_offset, 2ull * h.world_size, kUserBlobBytesMax},
  };
  uint64_t end = sizeof(SegmentHeader);
  for (const auto& table : tables) {
    if (table.offset % 8 != 0 || table.offset < end || table.offset > actual_bytes) {
      return "a table starts outside its place";
    }
    end = table.offset + table.count * table.bytes;
    if (end > actual_bytes) return "a table ends past the segment";
  }
  if (end != actual_bytes) return "the segment goes on past its last table";
  return nullptr;
}

const char* why_invalid(const ArenaHeader& h, uint64_t actual_bytes) {
  if (actual_bytes < kArenaSlotsOffset) return "the arena is shorter than its header page";
  if (h.magic != kArenaMagic) return "the magic number is not an arena's";
  if (h.version != kSegmentVersion) return "the arena has another format version";
  if (h.checksum != checksum_of(h)) return "the arena header's checksum does not hold";
  if (h.reserved_zero != 0) return "a reserved field is not zero";
  if (h.total_bytes != actual_bytes) return "the arena has another size than its header says";
  if (h.slot_bytes % kPageBytes != 0) return "slots are not page multiples";
  if (h.slot_count != 0 &&
      (h.slot_bytes == 0 || h.slot_bytes > (actual_bytes - kArenaSlotsOffset) / h.slot_count)) {
    return "the slots end past the arena";
  }
  return nullptr;
}

}  // namespace optlease
