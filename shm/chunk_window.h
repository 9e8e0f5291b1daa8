// The lessee's rights: one actor's mapping of its rank's arena (read-write) and of the control
// segment (read-only). Addresses of leased slots; nothing here decides anything.
#pragma once

#include <string>

#include "shm/contract/ids.h"
#include "shm/control_view.h"
#include "shm/segment.h"

namespace optlease {

class ChunkWindow {
 public:
  static Result<ChunkWindow> open(const std::string& control_name, const std::string& arena_name,
                                  Rank rank);

  const ControlView& view() const { return view_; }
  uint64_t slot_bytes() const;
  uint32_t slot_count() const;
  // Slot memory. Read only slots of a lease's source, write only those of its shadow.
  // REQUIRES: slot < slot_count().
  char* slot(SlotIndex slot) const;

 private:
  ChunkWindow(Segment control, Segment arena, ControlView view);
  Segment control_;
  Segment arena_;
  ControlView view_;
};

}  // namespace optlease
