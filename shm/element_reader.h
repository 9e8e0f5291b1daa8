// Reads the committed state of a job as elements, whatever its chunks and ranks: export, digest and
// tools use it. Read-only. The store must hold still meanwhile (HoldRequest, or no store at all): a
// slot that is superseded may be written again.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "shm/contract/geometry.h"
#include "shm/contract/ids.h"
#include "shm/contract/status.h"
#include "shm/control_view.h"
#include "shm/resident_segment.h"
#include "shm/segment.h"

namespace optlease {

// One rank's mapped arena, and its resident segment where its state has such a part. Null where it
// is not mapped: its elements cannot be read.
struct ArenaView {
  const char* base = nullptr;
  uint64_t bytes = 0;
  const ResidentSegment* resident = nullptr;
};
// `residents`: by rank, or empty. They outlive the views.
std::vector<ArenaView> arena_views(std::span<const Segment> arenas,
                                   std::span<const ResidentSegment> residents = {});

// A run of elements of one chunk. A chunk whose bytes lie in two slots, or in halves, comes in
// several.
struct ElementRun {
  uint32_t space = 0;
  uint32_t array = 0;  // index into kAdamArrayNames
  Rank rank;
  ChunkIndex chunk;
  Step version = kNoStep;
  uint64_t first_element = 0;  // within the space
  uint64_t count = 0;
  const float* data = nullptr;  // during the callback
};

// kernels/checksum.h's checksum_words, given by the caller: `count` words at `words`, the first of
// them word `first_word` of the chunk. Sums over parts of a chunk add up.
using ChecksumWords = uint64_t (*)(const void* words, uint64_t count, uint64_t first_word);

// Calls `callback` for the elements [range.begin, range.end) of one state array of a space, in
// order, each exactly once; stops at its first error. NotFound where a chunk was never written;
// Corrupt where its resident part is not in the segment.
Status read_elements(const ControlView& view, std::span<const ArenaView> arenas, uint32_t space,
                     uint32_t array, ElementRange range,
                     const std::function<Status(const ElementRun&)>& callback);

// Null checksum: nothing to do. Corrupt, with space, rank, chunk, slot, expected and found, where a
// committed chunk does not sum to its entry.
Status verify_chunk(const ControlView& view, std::span<const ArenaView> arenas, Rank rank,
                    ChunkIndex chunk, ChecksumWords checksum);

}  // namespace optlease
