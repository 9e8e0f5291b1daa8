#include "actors/gpu_actor/pin_plan.h"

#include <algorithm>
#include <numeric>

namespace optlease {
namespace {

// For each unit of `unit_slots` slots, the least place in `order` of any of them.
std::vector<size_t> first_places(uint32_t slot_count, uint32_t unit_slots,
                                 const std::vector<uint32_t>& order) {
  std::vector<size_t> places((slot_count + unit_slots - 1) / unit_slots, order.size());
  for (size_t place = 0; place < order.size(); ++place) {
    if (order[place] >= slot_count) continue;
    size_t& of_unit = places[order[place] / unit_slots];
    of_unit = std::min(of_unit, place);
  }
  return places;
}

}  // namespace

PinUnits pin_units(const HostMemory& memory, const PinLimits& limits) {
  if (memory.slot_bytes <= limits.piece_bytes) {
    return {memory.slot_bytes, memory.slot_count, memory.order};
  }
  PinUnits units;
  units.bytes = limits.first_piece_bytes;
  const uint64_t arena_bytes = memory.slot_bytes * memory.slot_count;
  units.count = static_cast<uint32_t>((arena_bytes + units.bytes - 1) / units.bytes);
  std::vector<bool> named(units.count, false);
  for (const uint32_t slot : memory.order) {
    if (slot >= memory.slot_count) continue;
    const uint64_t first = slot * memory.slot_bytes / units.bytes;
    const uint64_t last = ((slot + uint64_t{1}) * memory.slot_bytes - 1) / units.bytes;
    for (uint64_t unit = first; unit <= last; ++unit) {
      if (named[unit]) continue;
      named[unit] = true;
      units.order.push_back(static_cast<uint32_t>(unit));
    }
  }
  return units;
}

std::vector<PinPiece> plan_pins(uint32_t slot_count, uint64_t slot_bytes,
                                const std::vector<uint32_t>& order, const PinLimits& limits) {
  if (slot_count == 0 || slot_bytes == 0) return {};
  const auto slots_in = [&](uint64_t bytes) {
    return static_cast<uint32_t>(std::clamp<uint64_t>(bytes / slot_bytes, 1, slot_count));
  };
  const uint32_t unit = slots_in(limits.first_piece_bytes);
  const uint32_t units_a_piece = std::max(slots_in(limits.piece_bytes) / unit, 1u);
  const std::vector<size_t> places = first_places(slot_count, unit, order);
  const size_t soon = std::min<size_t>(slots_in(limits.first_bytes), order.size());

  std::vector<PinPiece> pieces;
  std::vector<size_t> wanted;  // a piece's place in `order`
  uint32_t units_in_last = 0;  // 0: the next unit begins a piece
  for (uint32_t u = 0; u < places.size(); ++u) {
    const uint32_t first = u * unit;
    const uint32_t count = std::min(unit, slot_count - first);
    const bool at_once = places[u] < soon;
    if (!at_once && units_in_last != 0 && units_in_last < units_a_piece) {
      pieces.back().count += count;
      wanted.back() = std::min(wanted.back(), places[u]);
      ++units_in_last;
      continue;
    }
    pieces.push_back({first, count});
    wanted.push_back(places[u]);
    units_in_last = at_once ? 0 : 1;
  }
  std::vector<size_t> by_place(pieces.size());
  std::iota(by_place.begin(), by_place.end(), size_t{0});
  std::stable_sort(by_place.begin(), by_place.end(),
                   [&](size_t a, size_t b) { return wanted[a] < wanted[b]; });
  std::vector<PinPiece> ordered;
  ordered.reserve(by_place.size());
  for (size_t i : by_place) ordered.push_back(pieces[i]);
  return ordered;
}

std::vector<uint32_t> slot_order(const ControlView& view, Rank rank, const ArenaSpec& arena,
                                 uint32_t chunks_ahead) {
  const auto chunk_count = static_cast<uint32_t>(arena.chunks.size());
  Step newest = kNoStep;
  for (uint32_t c = 0; c < chunk_count; ++c) {
    newest = std::max(newest, view.version(rank, ChunkIndex(c)));
  }
  std::vector<uint32_t> behind, done;  // slots
  std::vector<bool> occupied(arena.slot_count, false);
  for (uint32_t c = 0; c < chunk_count; ++c) {
    const Step version = view.version(rank, ChunkIndex(c));
    if (version == kNoStep) continue;
    for (const SlotEntry& entry : view.entries(rank, ChunkIndex(c))) {
      if (entry.slot >= arena.slot_count) continue;
      (version < newest ? behind : done).push_back(entry.slot);
      occupied[entry.slot] = true;
    }
  }
  behind.insert(behind.end(), done.begin(), done.end());
  const size_t ahead = std::min<size_t>(chunks_ahead, behind.size());
  std::vector<uint32_t> order(behind.begin(), behind.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (uint32_t slot = 0; slot < arena.slot_count; ++slot) {
    if (!occupied[slot]) order.push_back(slot);
  }
  order.insert(order.end(), behind.begin() + static_cast<std::ptrdiff_t>(ahead), behind.end());
  return order;
}

HostMemory arena_memory(const ChunkWindow& window, Rank rank, const ArenaSpec& arena,
                        uint32_t chunks_ahead) {
  if (window.slot_count() == 0) return {};
  return {window.slot(SlotIndex(0)), window.slot_bytes(), window.slot_count(),
          slot_order(window.view(), rank, arena, chunks_ahead)};
}

}  // namespace optlease
