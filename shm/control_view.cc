#include "shm/control_view.h"

#include <atomic>

#include "shm/control_check.h"
#include "shm/shared_copy.h"

namespace optlease {
namespace {

template <class Record>
const Record* table(const char* base, uint64_t offset) {
  return reinterpret_cast<const Record*>(base + offset);
}

// The word of a bank that the store empties before it writes the rest, and fills last.
Step step_of_bank(const int64_t& word) {
  return std::atomic_ref<int64_t>(const_cast<int64_t&>(word)).load(std::memory_order_acquire);
}

}  // namespace

Result<ControlView> ControlView::over(const void* data, uint64_t bytes) {
  OPTLEASE_TRY(check_control_header(data, bytes));
  ControlView view;
  view.base_ = static_cast<const char*>(data);
  view.header_ = static_cast<const SegmentHeader*>(data);
  OPTLEASE_TRY(check_control_tables(view));
  return view;
}

std::span<const SpaceRecord> ControlView::spaces() const {
  return {table<SpaceRecord>(base_, header_->spaces_offset), header_->space_count};
}

std::span<const uint32_t> ControlView::members(uint32_t space) const {
  const SpaceRecord& record = spaces()[space];
  return {table<uint32_t>(base_, header_->members_offset) + record.first_member,
          record.member_count};
}

std::span<const TensorRecord> ControlView::tensors(uint32_t space) const {
  const SpaceRecord& record = spaces()[space];
  return {table<TensorRecord>(base_, header_->tensors_offset) + record.first_tensor,
          record.tensor_count};
}

const RankRecord& ControlView::rank(Rank rank) const {
  OPTLEASE_CHECK(rank.value < header_->world_size, "rank %u of %u", rank.value,
                 header_->world_size);
  return table<RankRecord>(base_, header_->ranks_offset)[rank.value];
}

std::span<const ChunkRecord> ControlView::chunks(Rank rank) const {
  const RankRecord& record = this->rank(rank);
  return {table<ChunkRecord>(base_, header_->chunks_offset) + record.first_chunk,
          record.chunk_count};
}

uint64_t ControlView::commit_word(Rank rank, ChunkIndex chunk) const {
  const auto all = chunks(rank);
  OPTLEASE_CHECK(chunk.value < all.size(), "chunk %u of %zu of rank %u", chunk.value, all.size(),
                 rank.value);
  return all[chunk.value].commit_word.load(std::memory_order_acquire);
}

Step ControlView::version(Rank rank, ChunkIndex chunk) const {
  return version_of(commit_word(rank, chunk));
}

std::span<const SlotEntry> ControlView::entries(Rank rank, ChunkIndex chunk) const {
  return entries(rank, chunk, bank_of(commit_word(rank, chunk)));
}

std::span<const SlotEntry> ControlView::entries(Rank rank, ChunkIndex chunk, uint32_t bank) const {
  const auto all = chunks(rank);
  OPTLEASE_CHECK(chunk.value < all.size() && bank < 2, "chunk %u of %zu, bank %u", chunk.value,
                 all.size(), bank);
  const ChunkRecord& record = all[chunk.value];
  return {table<SlotEntry>(base_, header_->slot_entries_offset) + record.first_entry +
              uint64_t{bank} * record.slot_count,
          record.slot_count};
}

std::optional<StepRecord> ControlView::step_record(Rank rank, Step step) const {
  if (step < 0) return std::nullopt;
  StepRecord record;
  copy_from_shared(&record, &this->rank(rank).steps[step & 1], sizeof record);
  if (record.step != step || why_invalid(record) != nullptr) return std::nullopt;
  return record;
}

std::optional<SumsDigest> ControlView::sums_digest(Rank rank, Step step) const {
  if (step < 0) return std::nullopt;
  SumsDigest sums;
  copy_from_shared(&sums, &this->rank(rank).sums[step & 1], sizeof sums);
  if (sums.step != step || why_invalid(sums) != nullptr) return std::nullopt;
  return sums;
}

std::optional<std::string> ControlView::blob(Rank rank, Step step) const {
  if (step < 0) return std::nullopt;
  const BlobRecord& bank = this->rank(rank).blobs[step & 1];
  if (step_of_bank(bank.step) != step) return std::nullopt;
  BlobRecord record;
  copy_from_shared(&record, &bank, sizeof record);
  if (record.bytes > kUserBlobBytesMax || record.reserved_zero != 0) return std::nullopt;
  const uint64_t place = (2ull * rank.value + (step & 1)) * kUserBlobBytesMax;
  std::string text(record.bytes, '\0');
  copy_from_shared(text.data(), base_ + header_->blobs_offset + place, text.size());
  // The checksum does not say whose bytes these are: a bank that was filled anew meanwhile may be
  // whole, and another step's.
  if (step_of_bank(bank.step) != step) return std::nullopt;
  if (fnv1a(text.data(), text.size()) != record.checksum) return std::nullopt;
  return text;
}

Step ControlView::step_committed() const {
  return header_->step_committed.load(std::memory_order_acquire);
}

bool ControlView::step_is_open() const {
  const Step step = step_committed() + 1;
  for (uint32_t r = 0; r < header_->world_size; ++r) {
    if (!step_record(Rank(r), step)) return false;
  }
  return true;
}

StateSplit ControlView::split() const {
  const SpaceRecord& first = spaces().front();
  return {static_cast<MainForm>(first.main_form), first.resident_millionths};
}

SegmentPlan ControlView::plan() const {
  SegmentPlan plan;
  plan.job_name = header_->job_name;
  plan.world_size = header_->world_size;
  plan.window_chunks = header_->window_chunks;
  plan.prefetch_windows = header_->prefetch_windows;
  plan.split = split();
  plan.spaces.reserve(header_->space_count);
  for (uint32_t s = 0; s < header_->space_count; ++s) {
    const SpaceRecord& record = spaces()[s];
    SpaceSpec space;
    space.name = record.name;
    for (uint32_t member : members(s)) space.members.push_back(Rank(member));
    space.elements = record.elements;
    space.param_dtype = static_cast<DType>(record.param_dtype);
    space.grad_dtype = static_cast<DType>(record.grad_dtype);
    space.group = record.group;
    space.shard_elements = record.shard_elements;
    space.chunk_elements = record.chunk_elements;
    space.tensors.reserve(record.tensor_count);
    for (const TensorRecord& from : tensors(s)) {
      TensorSpec tensor;
      tensor.name = from.name;
      tensor.shape.assign(from.shape, from.shape + from.dim_count);
      tensor.flat_offset = from.flat_offset;
      tensor.elements = from.elements;
      tensor.global_shape.assign(from.global_shape, from.global_shape + from.global_dim_count);
      tensor.global_offset.assign(from.global_offset, from.global_offset + from.global_dim_count);
      space.tensors.push_back(std::move(tensor));
    }
    plan.spaces.push_back(std::move(space));
  }
  return plan;
}

}  // namespace optlease
