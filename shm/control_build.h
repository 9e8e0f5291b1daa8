// The bytes of a new control segment: where its tables lie and what they say. Used by
// ChunkStore::create; it writes into memory that it is given and makes no segment.
#pragma once

#include <cstdint>
#include <vector>

#include "shm/contract/geometry.h"
#include "shm/contract/segment_layout.h"

namespace optlease {

// Table offsets and counts, decided before anything is created.
struct ControlShape {
  uint32_t member_count = 0;
  uint32_t tensor_count = 0;
  uint32_t chunk_count = 0;
  uint32_t slot_entry_count = 0;
  uint64_t spaces_offset = 0;
  uint64_t members_offset = 0;
  uint64_t tensors_offset = 0;
  uint64_t ranks_offset = 0;
  uint64_t chunks_offset = 0;
  uint64_t slot_entries_offset = 0;
  uint64_t blobs_offset = 0;
  uint64_t total_bytes = 0;
};

ControlShape control_shape(const SegmentPlan& plan, const std::vector<ArenaSpec>& arenas);

// Writes header and tables into `base` (zero-filled, shape.total_bytes). The state stays kCreating.
void write_control(void* base, const ControlShape& shape, const SegmentPlan& plan,
                   const std::vector<ArenaSpec>& arenas, const uint8_t (&job_id)[16]);

ArenaHeader make_arena_header(uint32_t rank, const ArenaSpec& arena, const uint8_t (&job_id)[16]);

inline uint64_t arena_bytes_of(const ArenaSpec& arena) {
  return kArenaSlotsOffset + arena.slot_bytes * arena.slot_count;
}

}  // namespace optlease
