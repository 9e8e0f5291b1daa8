// The first version of a chunk, written into its slots: main weights as the caller fills them, in
// the form and the places that the state's split says, moments zero. Used by the window pipeline.
#pragma once

#include <functional>

#include "shm/contract/state_split.h"
#include "shm/contract/status.h"

namespace optlease {

struct ChunkSlots {
  char* host = nullptr;
  char* resident = nullptr;  // null where the state has no resident part
};

// Writes every byte of the layout: the slots may hold an older life's. `fill` writes the main
// weights of elements `range` (of the space); it is called for parts of `chunk` in ascending order.
Status write_initial_chunk(const StateSplit& split, const ChunkLayout& layout, ElementRange chunk,
                           const std::function<Status(ElementRange range, float* main)>& fill,
                           const ChunkSlots& slots);

}  // namespace optlease
