#include "shm/chunk_window.h"

#include "shm/arena_check.h"

namespace optlease {

ChunkWindow::ChunkWindow(Segment control, Segment arena, ControlView view)
    : control_(std::move(control)), arena_(std::move(arena)), view_(view) {}

Result<ChunkWindow> ChunkWindow::open(const std::string& control_name,
                                      const std::string& arena_name, Rank rank) {
  Result<Segment> control = Segment::open(control_name, Segment::Access::kReadOnly);
  if (!control.is_ok()) return control.status();
  Result<ControlView> view = ControlView::over(control.value().data(), control.value().bytes());
  if (!view.is_ok()) {
    const Status why = view.status();
    return Status{why.code(), Segment::path_of(control_name) + ": " + why.message()};
  }
  if (rank.value >= view.value().header().world_size) {
    return Status{StatusCode::kInvalidArgument, format("rank %u of a job of %u ranks", rank.value,
                                                       view.value().header().world_size)};
  }
  Result<Segment> arena = open_arena(arena_name, view.value(), rank, Segment::Access::kReadWrite);
  if (!arena.is_ok()) return arena.status();
  return ChunkWindow(std::move(control).value(), std::move(arena).value(), view.value());
}

uint64_t ChunkWindow::slot_bytes() const {
  return static_cast<const ArenaHeader*>(arena_.data())->slot_bytes;
}

uint32_t ChunkWindow::slot_count() const {
  return static_cast<const ArenaHeader*>(arena_.data())->slot_count;
}

char* ChunkWindow::slot(SlotIndex slot) const {
  OPTLEASE_CHECK(slot.value < slot_count(), "slot %u of %u", slot.value, slot_count());
  return static_cast<char*>(arena_.data()) + kArenaSlotsOffset + slot.value * slot_bytes();
}

}  // namespace optlease
