// Which pieces of an arena are pinned, and in which order: pure arithmetic over slots. A copy may
// not straddle two registrations, so a piece is whole slots, or where those are large, parts of
// them, and copies are cut at their borders; a piece is registered at once or not at all, so those
// that are wanted first are small. Used by the CUDA device and its actor; touches no memory.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/gpu_actor/device.h"
#include "shm/chunk_window.h"
#include "shm/contract/geometry.h"
#include "shm/contract/ids.h"
#include "shm/control_view.h"

namespace optlease {

// Slots [first, first + count).
struct PinPiece {
  uint32_t first = 0;
  uint32_t count = 0;
  bool operator==(const PinPiece&) const = default;
};

struct PinLimits {
  uint64_t first_piece_bytes = 64ull << 20;  // a piece that holds slots wanted at once
  uint64_t first_bytes = 512ull << 20;       // how far down the order slots are wanted at once
  uint64_t piece_bytes = 256ull << 20;       // any other; never more
  int64_t again_ms = 2000;                   // after which what was refused is tried once more
};

// What plan_pins() takes for slots. Slots that are larger than a piece may be are cut: a unit is
// then a small piece, whatever slots it belongs to, and the last one may reach beyond the arena.
struct PinUnits {
  uint64_t bytes = 0;
  uint32_t count = 0;
  std::vector<uint32_t> order;
};
// REQUIRES: slots and limits are whole pages.
PinUnits pin_units(const HostMemory& memory, const PinLimits& limits);

// Pieces that cover slots [0, slot_count) once each, in the order in which they should be pinned:
// that of the first slot of `order` in each.
std::vector<PinPiece> plan_pins(uint32_t slot_count, uint64_t slot_bytes,
                                const std::vector<uint32_t>& order, const PinLimits& limits);

// The order in which a rank will want its slots: those of its first `chunks_ahead` chunks, every
// slot that no committed version occupies (new versions are written there), and then the other
// chunks'. Chunks that an unfinished step has not committed yet come before those it has.
std::vector<uint32_t> slot_order(const ControlView& view, Rank rank, const ArenaSpec& arena,
                                 uint32_t chunks_ahead);

// A rank's slots as its device adopts them, in that order.
HostMemory arena_memory(const ChunkWindow& window, Rank rank, const ArenaSpec& arena,
                        uint32_t chunks_ahead);

}  // namespace optlease
