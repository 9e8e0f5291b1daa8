#include "shm/control_build.h"

#include <cstring>
#include <string>

#include "shm/kill_point.h"

namespace optlease {
namespace {

void copy_text(char* to, size_t capacity, const std::string& from) {
  OPTLEASE_CHECK(from.size() < capacity, "'%s' is longer than %zu bytes", from.c_str(),
                 capacity - 1);
  std::memcpy(to, from.c_str(), from.size() + 1);
}

template <class Record>
Record* table(void* base, uint64_t offset) {
  return reinterpret_cast<Record*>(static_cast<char*>(base) + offset);
}

void write_header(SegmentHeader* h, const ControlShape& shape, const SegmentPlan& plan,
                  const uint8_t (&job_id)[16]) {
  h->store_epoch.store(1);
  h->step_committed.store(kNoStep);
  h->version = kSegmentVersion;
  h->header_bytes = sizeof(SegmentHeader);
  h->total_bytes = shape.total_bytes;
  h->layout_hash = layout_hash(plan);
  std::memcpy(h->job_id, job_id, sizeof h->job_id);
  copy_text(h->job_name, sizeof h->job_name, plan.job_name);
  h->world_size = plan.world_size;
  h->window_chunks = plan.window_chunks;
  h->prefetch_windows = plan.prefetch_windows;
  h->space_count = static_cast<uint32_t>(plan.spaces.size());
  h->member_count = shape.member_count;
  h->tensor_count = shape.tensor_count;
  h->chunk_count = shape.chunk_count;
  h->slot_entry_count = shape.slot_entry_count;
  h->spaces_offset = shape.spaces_offset;
  h->members_offset = shape.members_offset;
  h->tensors_offset = shape.tensors_offset;
  h->ranks_offset = shape.ranks_offset;
  h->chunks_offset = shape.chunks_offset;
  h->slot_entries_offset = shape.slot_entries_offset;
  h->blobs_offset = shape.blobs_offset;
  const uint64_t magic = kSegmentMagic;
  h->header_checksum = fnv1a(&h->version, offsetof(SegmentHeader, header_checksum) - sizeof magic,
                             fnv1a(&magic, sizeof magic));
  // Last: without it the header was never written, whatever else of it is there.
  std::atomic_ref<uint64_t>(h->magic).store(kSegmentMagic, std::memory_order_release);
}

void write_tensor(TensorRecord* record, const TensorSpec& tensor) {
  copy_text(record->name, sizeof record->name, tensor.name);
  for (size_t d = 0; d < tensor.shape.size(); ++d) record->shape[d] = tensor.shape[d];
  for (size_t d = 0; d < tensor.global_shape.size(); ++d) {
    record->global_shape[d] = tensor.global_shape[d];
    record->global_offset[d] = tensor.global_offset[d];
  }
  record->flat_offset = tensor.flat_offset;
  record->elements = tensor.elements;
  record->dim_count = static_cast<uint32_t>(tensor.shape.size());
  record->global_dim_count = static_cast<uint32_t>(tensor.global_shape.size());
}

void write_spaces(void* base, const ControlShape& shape, const SegmentPlan& plan) {
  auto* record = table<SpaceRecord>(base, shape.spaces_offset);
  auto* members = table<uint32_t>(base, shape.members_offset);
  auto* tensors = table<TensorRecord>(base, shape.tensors_offset);
  uint32_t first_member = 0, first_tensor = 0;
  for (const SpaceSpec& space : plan.spaces) {
    copy_text(record->name, sizeof record->name, space.name);
    record->elements = space.elements;
    record->shard_elements = space.shard_elements;
    record->chunk_elements = space.chunk_elements;
    record->first_member = first_member;
    record->member_count = static_cast<uint32_t>(space.members.size());
    record->first_tensor = first_tensor;
    record->tensor_count = static_cast<uint32_t>(space.tensors.size());
    record->param_dtype = static_cast<uint32_t>(space.param_dtype);
    record->grad_dtype = static_cast<uint32_t>(space.grad_dtype);
    record->group = space.group;
    record->array_count = kAdamArrayCount;
    record->main_form = static_cast<uint32_t>(plan.split.main);
    record->resident_millionths = plan.split.resident_millionths;
    for (const Rank member : space.members) members[first_member++] = member.value;
    for (const TensorSpec& tensor : space.tensors) write_tensor(&tensors[first_tensor++], tensor);
    ++record;
  }
}

void write_ranks(void* base, const ControlShape& shape, const std::vector<ArenaSpec>& arenas) {
  auto* ranks = table<RankRecord>(base, shape.ranks_offset);
  auto* chunks = table<ChunkRecord>(base, shape.chunks_offset);
  uint32_t first_chunk = 0, first_entry = 0;
  for (uint32_t r = 0; r < arenas.size(); ++r) {
    const ArenaSpec& arena = arenas[r];
    ranks[r].rank = r;
    ranks[r].first_chunk = first_chunk;
    ranks[r].chunk_count = static_cast<uint32_t>(arena.chunks.size());
    ranks[r].slot_count = arena.slot_count;
    ranks[r].slot_bytes = arena.slot_bytes;
    ranks[r].arena_bytes = arena_bytes_of(arena);
    for (uint32_t bank = 0; bank < 2; ++bank) {
      ranks[r].steps[bank].step = kNoStep;
      ranks[r].blobs[bank].step = kNoStep;
      ranks[r].sums[bank].step = kNoStep;
    }
    for (const ChunkSpec& spec : arena.chunks) {
      ChunkRecord& chunk = chunks[first_chunk++];
      chunk.first_element = spec.range.begin;
      chunk.elements = spec.range.size();
      chunk.rank = r;
      chunk.space = spec.space;
      chunk.first_entry = first_entry;
      chunk.slot_count = 1;
      first_entry += 2 * chunk.slot_count;
    }
  }
}

}  // namespace

ControlShape control_shape(const SegmentPlan& plan, const std::vector<ArenaSpec>& arenas) {
  ControlShape shape;
  for (const SpaceSpec& space : plan.spaces) {
    shape.member_count += static_cast<uint32_t>(space.members.size());
    shape.tensor_count += static_cast<uint32_t>(space.tensors.size());
  }
  for (const ArenaSpec& arena : arenas) {
    shape.chunk_count += static_cast<uint32_t>(arena.chunks.size());
  }
  shape.slot_entry_count = 2 * shape.chunk_count;
  uint64_t at = sizeof(SegmentHeader);
  const auto place = [&at](uint64_t* offset, uint64_t count, uint64_t bytes, uint64_t align) {
    *offset = (at + align - 1) / align * align;
    at = *offset + count * bytes;
  };
  place(&shape.spaces_offset, plan.spaces.size(), sizeof(SpaceRecord), 64);
  place(&shape.members_offset, shape.member_count, sizeof(uint32_t), 64);
  place(&shape.tensors_offset, shape.tensor_count, sizeof(TensorRecord), 64);
  place(&shape.ranks_offset, plan.world_size, sizeof(RankRecord), 64);
  place(&shape.chunks_offset, shape.chunk_count, sizeof(ChunkRecord), 64);
  place(&shape.slot_entries_offset, shape.slot_entry_count, sizeof(SlotEntry), 64);
  place(&shape.blobs_offset, 2ull * plan.world_size, kUserBlobBytesMax, kPageBytes);
  shape.total_bytes = at;
  return shape;
}

void write_control(void* base, const ControlShape& shape, const SegmentPlan& plan,
                   const std::vector<ArenaSpec>& arenas, const uint8_t (&job_id)[16]) {
  write_spaces(base, shape, plan);
  KILL_POINT("store.spaces_written");
  write_ranks(base, shape, arenas);
  KILL_POINT("store.ranks_written");
  write_header(static_cast<SegmentHeader*>(base), shape, plan, job_id);
  KILL_POINT("store.header_written");
}

ArenaHeader make_arena_header(uint32_t rank, const ArenaSpec& arena, const uint8_t (&job_id)[16]) {
  ArenaHeader header{};
  header.magic = kArenaMagic;
  header.version = kSegmentVersion;
  header.rank = rank;
  std::memcpy(header.job_id, job_id, sizeof header.job_id);
  header.slot_bytes = arena.slot_bytes;
  header.slot_count = arena.slot_count;
  header.total_bytes = arena_bytes_of(arena);
  header.checksum = checksum_of(header);
  return header;
}

}  // namespace optlease
