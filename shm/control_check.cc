#include "shm/control_check.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <string>
#include <vector>

#include "shm/segment_removal.h"

namespace optlease {
namespace {

Status corrupt(const std::string& why) {
  return {StatusCode::kCorrupt, "the control segment cannot be used: " + why};
}

bool is_text(const char* text, size_t capacity) {
  const void* end = std::memchr(text, '\0', capacity);
  return end != nullptr && end != text;
}

bool all_zero(const uint64_t* words, size_t count) {
  return std::all_of(words, words + count, [](uint64_t word) { return word == 0; });
}

const char* why_invalid_tensor(const TensorRecord& t) {
  if (!is_text(t.name, sizeof t.name)) return "a parameter's name is empty or has no end";
  if (t.dim_count > kTensorDimsMax || t.global_dim_count > kTensorDimsMax) {
    return "a parameter has more than 8 dimensions";
  }
  if (!all_zero(t.shape + t.dim_count, kTensorDimsMax - t.dim_count) ||
      !all_zero(t.global_shape + t.global_dim_count, kTensorDimsMax - t.global_dim_count) ||
      !all_zero(t.global_offset + t.global_dim_count, kTensorDimsMax - t.global_dim_count) ||
      !all_zero(t.reserved_zero, 2)) {
    return "a reserved field of a parameter is not zero";
  }
  return nullptr;
}

// Ranges into the other tables and the fields that plan() copies blindly.
const char* why_invalid_space(const SpaceRecord& s, const SegmentHeader& h) {
  if (!is_text(s.name, sizeof s.name)) return "a space's name is empty or has no end";
  if (s.first_member > h.member_count || s.member_count > h.member_count - s.first_member) {
    return "a space's ranks lie outside the member table";
  }
  if (s.first_tensor > h.tensor_count || s.tensor_count > h.tensor_count - s.first_tensor) {
    return "a space's parameters lie outside the tensor table";
  }
  if (s.array_count != kAdamArrayCount) return "a space has another number of state arrays";
  if (s.chunk_elements == 0 || s.chunk_elements % kShardAlignElements != 0) {
    return "a space's chunk size is no multiple of 64 elements";
  }
  return nullptr;
}

Status check_spaces(const ControlView& view) {
  const SegmentHeader& h = view.header();
  uint64_t members = 0, tensors = 0;
  for (const SpaceRecord& space : view.spaces()) {
    if (const char* why = why_invalid_space(space, h)) return corrupt(why);
    if (space.first_member != members || space.first_tensor != tensors) {
      return corrupt("a space's entries do not follow those of the space before it");
    }
    const SpaceRecord& first = view.spaces().front();
    if (space.main_form != first.main_form ||
        space.resident_millionths != first.resident_millionths) {
      return corrupt("two spaces split their state differently");
    }
    members += space.member_count;
    tensors += space.tensor_count;
  }
  if (members != h.member_count || tensors != h.tensor_count) {
    return corrupt("the member or tensor table is longer than the spaces say");
  }
  for (uint32_t s = 0; s < h.space_count; ++s) {
    for (const TensorRecord& tensor : view.tensors(s)) {
      if (const char* why = why_invalid_tensor(tensor)) return corrupt(why);
    }
  }
  return Status::ok();
}

// The plan that the tables spell must be one that lay_out could have made.
Status check_plan(const SegmentPlan& plan, const SegmentHeader& header) {
  if (const std::string why = why_invalid(plan); !why.empty()) return corrupt(why);
  if (layout_hash(plan) != header.layout_hash) return corrupt("the layout hash does not hold");
  if (const std::string why = why_not_laid_out(plan); !why.empty()) return corrupt(why);
  return Status::ok();
}

// Bounds the work of arena_of before it runs: a chunk size may be valid and yet absurdly small.
Status check_chunk_count(const SegmentPlan& plan, uint32_t chunk_count) {
  uint64_t chunks = 0;
  for (const SpaceSpec& space : plan.spaces) {
    for (uint32_t m = 0; m < space.members.size(); ++m) {
      const uint64_t n = shard_range(space, m).size();
      chunks += n / space.chunk_elements + (n % space.chunk_elements != 0);
      if (chunks > chunk_count) break;
    }
  }
  if (chunks != chunk_count) {
    return corrupt(
        format("the chunk table has %u entries and the shards have another number", chunk_count));
  }
  return Status::ok();
}

const char* why_invalid_rank(const RankRecord& r, uint32_t rank, uint64_t first_chunk,
                             const ArenaSpec& arena) {
  if (r.rank != rank) return "a rank record names another rank";
  if (r.first_chunk != first_chunk || r.chunk_count != arena.chunks.size()) {
    return "a rank's chunks are not where they belong";
  }
  if (r.slot_bytes != arena.slot_bytes || r.slot_count != arena.slot_count ||
      r.arena_bytes != kArenaSlotsOffset + arena.slot_bytes * arena.slot_count) {
    return "a rank's slots are not what its shards need";
  }
  if (!all_zero(r.reserved_zero, 4)) return "a reserved field of a rank is not zero";
  return nullptr;
}

const char* why_invalid_chunk(const ChunkRecord& c, uint32_t rank, const ChunkSpec& spec,
                              uint64_t first_entry, const ArenaSpec& arena) {
  if (c.rank != rank || c.space != spec.space || c.first_element != spec.range.begin ||
      c.elements != spec.range.size()) {
    return "a chunk record covers other elements than its place says";
  }
  const ChunkLayout layout = layout_of(arena.split, c.elements);
  if (c.slot_count != 1 || layout.host_bytes > arena.slot_bytes ||
      layout.resident_bytes > arena.resident_slot_bytes) {
    return "a chunk does not fit its slot";
  }
  if (c.first_entry != first_entry) return "a chunk's slot entries are not where they belong";
  if (c.reserved_zero[0] != 0) return "a reserved field of a chunk is not zero";
  return nullptr;
}

Status check_ranks(const ControlView& view, const SegmentPlan& plan) {
  const SegmentHeader& h = view.header();
  uint64_t first_chunk = 0, first_entry = 0;
  for (uint32_t r = 0; r < h.world_size; ++r) {
    const ArenaSpec arena = arena_of(plan, Rank(r));
    if (const char* why = why_invalid_rank(view.rank(Rank(r)), r, first_chunk, arena)) {
      return corrupt(format("rank %u: %s", r, why));
    }
    const auto chunks = view.chunks(Rank(r));
    for (uint32_t c = 0; c < chunks.size(); ++c) {
      const char* why = why_invalid_chunk(chunks[c], r, arena.chunks[c], first_entry, arena);
      if (why == nullptr && first_entry + 2 > h.slot_entry_count) why = "its slots have no entries";
      if (why != nullptr) return corrupt(format("rank %u, chunk %u: %s", r, c, why));
      first_entry += 2ull * chunks[c].slot_count;
      if (view.version(Rank(r), ChunkIndex(c)) < 0) continue;
      for (const SlotEntry& entry : view.entries(Rank(r), ChunkIndex(c))) {
        if (entry.slot < arena.slot_count && entry.reserved_zero == 0) continue;
        return corrupt(format("rank %u, chunk %u: committed in slot %u of %u", r, c, entry.slot,
                              arena.slot_count));
      }
    }
    first_chunk += chunks.size();
  }
  if (first_entry != h.slot_entry_count) return corrupt("the slot entry table has another length");
  return Status::ok();
}

}  // namespace

Status check_control_header(const void* data, uint64_t bytes) {
  if (bytes < sizeof(SegmentHeader)) return corrupt("it is shorter than its header");
  const auto& header = *static_cast<const SegmentHeader*>(data);
  const auto state = header.state.load(std::memory_order_acquire);
  if (header.magic == 0 && state == static_cast<uint32_t>(SegmentState::kCreating)) {
    return corrupt("its creation was never finished; `optlease clean` removes it");
  }
  if (header.magic == kSegmentMagic && header.version != kSegmentVersion) {
    return {StatusCode::kWrongVersion,
            format("the control segment has format version %u, this build reads %u", header.version,
                   kSegmentVersion)};
  }
  if (const char* why = why_invalid(header, bytes)) return corrupt(why);
  if (std::memchr(header.job_name, '\0', sizeof header.job_name) == nullptr) {
    return corrupt("the job's name has no end");
  }
  if (state == static_cast<uint32_t>(SegmentState::kCreating)) {
    return corrupt("its creation was never finished; `optlease clean` removes it");
  }
  if (state == kSegmentRemoving) {
    return corrupt("its removal was begun and not finished; `optlease clean` removes the rest");
  }
  if (state != static_cast<uint32_t>(SegmentState::kReady)) return corrupt("its state is unknown");
  if (header.kept_on_purpose.load() > 1) return corrupt("kept_on_purpose is neither 0 nor 1");
  if (!is_step(header.step_committed.load())) return corrupt("step_committed is out of range");
  return Status::ok();
}

Status check_control_tables(const ControlView& view) {
  OPTLEASE_TRY(check_spaces(view));
  const SegmentHeader& h = view.header();
  // plan() follows member ranks only as numbers; why_invalid(plan) bounds them.
  const SegmentPlan plan = view.plan();
  OPTLEASE_TRY(check_plan(plan, h));
  OPTLEASE_TRY(check_chunk_count(plan, h.chunk_count));
  // rank().first_chunk is checked against the plan before chunks() is indexed.
  return check_ranks(view, plan);
}

Status check_control_at_rest(const ControlView& view) {
  const SegmentHeader& h = view.header();
  const Step step = view.step_committed();
  for (uint32_t r = 0; r < h.world_size; ++r) {
    std::vector<bool> taken(view.rank(Rank(r)).slot_count, false);
    const auto chunks = view.chunks(Rank(r));
    for (uint32_t c = 0; c < chunks.size(); ++c) {
      const Step version = view.version(Rank(r), ChunkIndex(c));
      if (version != step && version != step + 1) {
        return corrupt(format("rank %u, chunk %u is at version %" PRId64 " while step %" PRId64
                              " is committed",
                              r, c, version, step));
      }
      if (version < 0) continue;
      for (const SlotEntry& entry : view.entries(Rank(r), ChunkIndex(c))) {
        if (taken[entry.slot]) {
          return corrupt(format("rank %u: slot %u holds two committed chunks", r, entry.slot));
        }
        taken[entry.slot] = true;
      }
    }
  }
  return Status::ok();
}

}  // namespace optlease
