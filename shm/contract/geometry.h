// How parameters become spaces, shards, chunks and slots: the pure arithmetic that launcher, host
// store, actors and tools share. Nothing here touches memory.
//
// A space is a flat range of elements [0, elements): its tensors one after another, no padding.
// Member m of the space's rank group owns the shard [m*S, min((m+1)*S, elements)), S a multiple of
// kShardAlignElements. A shard is cut into chunks of chunk_elements (the last may be shorter). A
// chunk's bytes in its slot are its state arrays one after another, each of its own elements and
// kArrayAlignBytes-aligned. Where a part of the state stays on the device, state_split.h says
// which.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/contract/dtype.h"
#include "shm/contract/ids.h"
#include "shm/contract/optimizer_params.h"
#include "shm/contract/state_split.h"
#include "shm/contract/status.h"

namespace optlease {

struct TensorSpec {
  std::string name;
  std::vector<uint64_t> shape;  // elements a dimension; empty = scalar
  uint64_t flat_offset = 0;     // elements, within its space
  uint64_t elements = 0;
  std::vector<uint64_t> global_shape;  // where it is a shard of a larger tensor; else empty
  std::vector<uint64_t> global_offset;
};

struct SpaceSpec {
  std::string name;
  std::vector<Rank> members;  // ascending global ranks
  std::vector<TensorSpec> tensors;
  uint64_t elements = 0;            // sum over tensors
  DType param_dtype = DType::kF32;  // of the parameter buffer
  DType grad_dtype = DType::kF32;   // of the trainer's gradient buffer
  uint32_t group = 0;               // index into StepRecord::groups
  uint64_t shard_elements = 0;      // S above; 0 only for an empty space
  uint64_t chunk_elements = 0;
};

// Everything that decides the bytes of a job's segments.
struct SegmentPlan {
  std::string job_name;
  uint32_t world_size = 0;
  uint32_t window_chunks = 1;
  uint32_t prefetch_windows = 2;
  StateSplit split;
  std::vector<SpaceSpec> spaces;
};

// One chunk of a rank.
struct ChunkSpec {
  uint32_t space = 0;  // index into SegmentPlan::spaces
  ElementRange range;  // in elements of the space
};

// One rank's arena.
struct ArenaSpec {
  std::vector<ChunkSpec> chunks;  // ChunkIndex order: spaces in order, elements ascending
  StateSplit split;
  uint64_t slot_bytes = 0;           // page multiple; the same for every slot of the arena
  uint64_t resident_slot_bytes = 0;  // the same of the resident arena; 0: there is none
  uint32_t slot_count = 0;           // chunks + shadow slots
  uint64_t state_bytes = 0;          // logical bytes: elements x arrays x 4
};

// Bytes from one array's start to the next in a chunk of `elements` that is all in one slot;
// checksums count words so, wherever the arrays lie (kernels/checksum.h).
uint64_t array_stride_bytes(uint64_t elements);
// Bytes of a whole chunk of `elements`, all arrays in FP32.
uint64_t chunk_bytes(uint64_t elements);
// The most elements (a multiple of kShardAlignElements) whose chunk fits `bytes`; at least one
// alignment unit.
uint64_t chunk_elements_for(uint64_t bytes);

// S for a space of `elements` over `members` ranks.
uint64_t shard_elements_for(uint64_t elements, uint32_t members);
ElementRange shard_range(const SpaceSpec& space, uint32_t member);
// The member index of `rank`, or -1.
int member_index(const SpaceSpec& space, Rank rank);

// Fills in elements, flat offsets, shard_elements and chunk_elements of every space for chunks of
// at most `chunk_size_bytes` (0: one chunk a shard). One chunk size for all spaces: the largest
// that leaves at most 2 % of any rank's slots unused, else the one that leaves the least. Tensors
// keep their order.
Status lay_out(SegmentPlan* plan, uint64_t chunk_size_bytes);

// REQUIRES: lay_out has run. Shadow slots: (prefetch_windows + 2) windows, but never more than the
// chunks of the rank.
ArenaSpec arena_of(const SegmentPlan& plan, Rank rank);

// FNV-1a over everything above that decides the bytes; equal hashes mean that a segment can be
// resumed under the plan.
uint64_t layout_hash(const SegmentPlan& plan);

// Null, or the broken rule in words.
std::string why_invalid(const SegmentPlan& plan);
// The same for the numbers that lay_out() fills in, of a plan that comes from elsewhere: what it
// cannot have made, or not for any job that is started. REQUIRES: why_invalid(plan) is empty.
std::string why_not_laid_out(const SegmentPlan& plan);

uint64_t fnv1a(const void* bytes, uint64_t size, uint64_t seed = 0xcbf29ce484222325ull);

}  // namespace optlease
