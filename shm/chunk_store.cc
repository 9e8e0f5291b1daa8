#include "shm/chunk_store.h"

#include <cinttypes>
#include <cstring>

#include "shm/kill_point.h"
#include "shm/segment_removal.h"
#include "shm/shared_copy.h"

namespace optlease {

ChunkStore::ChunkStore(Segment control) : control_(std::move(control)) {}

Status ChunkStore::look() {
  Result<ControlView> view = ControlView::over(control_.data(), control_.bytes());
  if (!view.is_ok()) {
    const Status why = view.status();
    return {why.code(), Segment::path_of(control_.name()) + ": " + why.message()};
  }
  view_ = view.value();
  return Status::ok();
}

SegmentHeader* ChunkStore::mutable_header() const {
  return static_cast<SegmentHeader*>(control_.data());
}

RankRecord* ChunkStore::mutable_rank(Rank rank) const {
  const auto* header = mutable_header();
  OPTLEASE_CHECK(rank.value < header->world_size, "rank %u of %u", rank.value, header->world_size);
  char* base = static_cast<char*>(control_.data());
  return reinterpret_cast<RankRecord*>(base + header->ranks_offset) + rank.value;
}

ChunkRecord* ChunkStore::mutable_chunk(Rank rank, ChunkIndex chunk) const {
  const RankRecord* record = mutable_rank(rank);
  OPTLEASE_CHECK(chunk.value < record->chunk_count, "chunk %u of %u of rank %u", chunk.value,
                 record->chunk_count, rank.value);
  char* base = static_cast<char*>(control_.data());
  return reinterpret_cast<ChunkRecord*>(base + mutable_header()->chunks_offset) +
         record->first_chunk + chunk.value;
}

char* ChunkStore::mutable_blob(Rank rank, Step step) const {
  const uint64_t place = (2ull * rank.value + (step & 1)) * kUserBlobBytesMax;
  return static_cast<char*>(control_.data()) + mutable_header()->blobs_offset + place;
}

StoreEpoch ChunkStore::epoch() const { return StoreEpoch(view_.header().store_epoch.load()); }

void ChunkStore::commit(Rank rank, ChunkIndex chunk, Step step, std::span<const SlotEntry> shadow) {
  ChunkRecord* record = mutable_chunk(rank, chunk);
  const uint64_t word = record->commit_word.load(std::memory_order_relaxed);
  OPTLEASE_CHECK(step > version_of(word),
                 "rank %u, chunk %u: commit of version %" PRId64 " over %" PRId64, rank.value,
                 chunk.value, step, version_of(word));
  OPTLEASE_CHECK(shadow.size() == record->slot_count, "%zu entries for %u slots", shadow.size(),
                 record->slot_count);
  const uint32_t idle = 1 - bank_of(word);
  char* base = static_cast<char*>(control_.data());
  auto* entries = reinterpret_cast<SlotEntry*>(base + mutable_header()->slot_entries_offset) +
                  record->first_entry + uint64_t{idle} * record->slot_count;
  for (size_t i = 0; i < shadow.size(); ++i) {
    OPTLEASE_CHECK(shadow[i].slot < mutable_rank(rank)->slot_count, "slot %u of %u of rank %u",
                   shadow[i].slot, mutable_rank(rank)->slot_count, rank.value);
    entries[i] = SlotEntry{shadow[i].slot, 0, shadow[i].checksum};
    KILL_POINT("commit.entry_written");
  }
  KILL_POINT("commit.before_flip");
  record->commit_word.store(encode_commit_word(step, idle), std::memory_order_release);
  KILL_POINT("commit.flipped");
}

void ChunkStore::commit_unchanged(Rank rank, ChunkIndex chunk, Step step) {
  ChunkRecord* record = mutable_chunk(rank, chunk);
  const uint64_t word = record->commit_word.load(std::memory_order_relaxed);
  const Step version = version_of(word);
  OPTLEASE_CHECK(version >= 0 && step >= version,
                 "rank %u, chunk %u: version %" PRId64 " cannot become %" PRId64 " unchanged",
                 rank.value, chunk.value, version, step);
  KILL_POINT("commit_unchanged.before_flip");
  // The same bank: slots and checksums stay where they are.
  record->commit_word.store(encode_commit_word(step, bank_of(word)), std::memory_order_release);
  KILL_POINT("commit_unchanged.flipped");
}

void ChunkStore::write_sums_digest(Rank rank, const SumsDigest& sums) {
  const char* why = why_invalid(sums);
  OPTLEASE_CHECK(why == nullptr, "rank %u: %s", rank.value, why == nullptr ? "" : why);
  SumsDigest* to = &mutable_rank(rank)->sums[sums.step & 1];
  if (std::memcmp(to, &sums, sizeof sums) == 0) return;  // as with a repeated record
  std::atomic_ref<int64_t> step(to->step);
  step.store(kNoStep, std::memory_order_relaxed);
  KILL_POINT("sums.emptied");
  SumsDigest unfinished = sums;
  unfinished.step = kNoStep;
  copy_to_shared(to, &unfinished, sizeof unfinished);
  KILL_POINT("sums.body_written");
  step.store(sums.step, std::memory_order_release);
  KILL_POINT("sums.written");
}

void ChunkStore::write_step_record(Rank rank, const StepRecord& record) {
  const char* why = why_invalid(record);
  OPTLEASE_CHECK(why == nullptr, "rank %u: %s", rank.value, why == nullptr ? "" : why);
  StepRecord* to = &mutable_rank(rank)->steps[record.step & 1];
  // A repeated request must not put a durable record at risk: commits may already rest on it.
  if (same_bytes(*to, record)) return;
  // Emptied first, then filled, its step last: a reader finds the old record, none, or the new one.
  std::atomic_ref<int64_t> step(to->step);
  step.store(kNoStep, std::memory_order_relaxed);
  KILL_POINT("record.emptied");
  StepRecord unfinished = record;
  unfinished.step = kNoStep;
  copy_to_shared(to, &unfinished, sizeof unfinished);
  KILL_POINT("record.body_written");
  step.store(record.step, std::memory_order_release);
  KILL_POINT("record.written");
}

void ChunkStore::void_step_record(Rank rank, Step step) {
  std::atomic_ref<int64_t> held(mutable_rank(rank)->steps[step & 1].step);
  if (held.load(std::memory_order_relaxed) != step) return;
  held.store(kNoStep, std::memory_order_release);
  KILL_POINT("record.voided");
}

void ChunkStore::write_blob(Rank rank, Step step, std::string_view blob) {
  OPTLEASE_CHECK(step >= 0 && blob.size() <= kUserBlobBytesMax,
                 "a blob of %zu bytes for step %" PRId64, blob.size(), step);
  if (view_.blob(rank, step) == blob) return;  // as with a repeated record
  BlobRecord* to = &mutable_rank(rank)->blobs[step & 1];
  std::atomic_ref<int64_t> to_step(to->step);
  to_step.store(kNoStep, std::memory_order_relaxed);
  KILL_POINT("blob.emptied");
  copy_to_shared(mutable_blob(rank, step), blob.data(), blob.size());
  KILL_POINT("blob.bytes_written");
  const BlobRecord unfinished{kNoStep, static_cast<uint32_t>(blob.size()), 0,
                              fnv1a(blob.data(), blob.size())};
  copy_to_shared(to, &unfinished, sizeof unfinished);
  to_step.store(step, std::memory_order_release);
  KILL_POINT("blob.written");
}

void ChunkStore::keep_blob(Rank rank, Step step) {
  const std::optional<std::string> previous = view_.blob(rank, step - 1);
  if (previous) return write_blob(rank, step, *previous);
  // Nothing to carry: the bank must not go on offering the blob of two steps ago.
  std::atomic_ref<int64_t>(mutable_rank(rank)->blobs[step & 1].step).store(kNoStep);
  KILL_POINT("blob.none");
}

void ChunkStore::set_incarnation(Rank rank, Incarnation incarnation) {
  KILL_POINT("incarnation.before");
  mutable_rank(rank)->incarnation.store(incarnation.value, std::memory_order_release);
  KILL_POINT("incarnation.written");
}

void ChunkStore::set_step_committed(Step step) {
  KILL_POINT("step_word.before");
  mutable_header()->step_committed.store(step, std::memory_order_release);
  KILL_POINT("step_word.written");
}

void ChunkStore::count_skipped_step() {
  KILL_POINT("skipped.before");
  mutable_header()->steps_skipped.fetch_add(1);
  KILL_POINT("skipped.counted");
}

void ChunkStore::set_kept_on_purpose(bool kept) {
  mutable_header()->kept_on_purpose.store(kept ? 1 : 0, std::memory_order_release);
  KILL_POINT("kept_word.written");
}

std::vector<SlotIndex> ChunkStore::unreferenced_slots(Rank rank) const {
  std::vector<bool> referenced(view_.rank(rank).slot_count, false);
  const auto chunks = view_.chunks(rank);
  for (uint32_t c = 0; c < chunks.size(); ++c) {
    if (view_.version(rank, ChunkIndex(c)) < 0) continue;
    for (const SlotEntry& entry : view_.entries(rank, ChunkIndex(c))) referenced[entry.slot] = true;
  }
  std::vector<SlotIndex> slots;
  for (uint32_t s = 0; s < referenced.size(); ++s) {
    if (!referenced[s]) slots.push_back(SlotIndex(s));
  }
  return slots;
}

void ChunkStore::unlink(const SegmentNames& names) {
  begin_removal(names.control);
  for (const std::string& name : names.arenas) {
    Segment::unlink(name);
    KILL_POINT("unlink.arena");
  }
  Segment::unlink(names.control);
}

}  // namespace optlease
