// A rank's resident segment (docs/SHM_LAYOUT.md, "Resident segment"): the part of its state that
// stays on the device, slot for slot beside the arena. On the cpu device kernels work in it;
// another device's slots are saved into it before anybody reads them at rest. Used by the actor,
// which makes it, and by tools, which read it. It copies nothing.
#pragma once

#include <string>
#include <vector>

#include "shm/contract/geometry.h"
#include "shm/contract/ids.h"
#include "shm/contract/segment_layout.h"
#include "shm/contract/status.h"
#include "shm/control_view.h"
#include "shm/segment.h"

namespace optlease {

class ResidentSegment {
 public:
  // What it must be.
  struct Shape {
    uint8_t job_id[16] = {};
    Rank rank;
    uint64_t slot_bytes = 0;
    uint32_t slot_count = 0;
    uint64_t bytes() const { return kResidentSlotsOffset + slot_bytes * slot_count; }
  };
  static Shape shape_of(const ControlView& view, Rank rank, const ArenaSpec& arena);

  // Opens it, or makes it, its space reserved, so that a later saving cannot lack it; new slots are
  // whole where `is_new_whole`. One that is torn or of another shape is made again; where the state
  // `is_needed` it is Corrupt instead, and left alone, as it is where it is not there.
  static Result<ResidentSegment> open_or_make(const std::string& name, const Shape& shape,
                                              bool is_needed, bool is_new_whole);
  static Result<ResidentSegment> open(const std::string& name, const Shape& shape,
                                      Segment::Access access);

  char* slots() const { return static_cast<char*>(segment_.data()) + kResidentSlotsOffset; }
  uint64_t slot_bytes() const { return header()->slot_bytes; }
  uint64_t slots_bytes() const { return segment_.bytes() - kResidentSlotsOffset; }
  uint64_t bytes() const { return segment_.bytes(); }

  bool is_whole() const { return header()->whole.load(std::memory_order_acquire) == 1; }
  // Ok where it is whole; else Corrupt, with words about what is there and what to do.
  Status check_whole() const;
  // The owner's: before the device's slots are written, and after they were saved.
  void set_void();
  void set_whole(Step committed);

 private:
  explicit ResidentSegment(Segment segment) : segment_(std::move(segment)) {}
  ResidentHeader* header() const { return static_cast<ResidentHeader*>(segment_.data()); }
  Segment segment_;
};

// True where `stands` is what open_or_make may have made in the place of `was`: of the same job,
// rank and shape. A NameWatch::Successor.
bool is_made_anew(const Segment& was, const Segment& stands);

// All resident segments of a job, read-only, by rank; empty where its state has no resident part.
Result<std::vector<ResidentSegment>> open_residents(const std::vector<std::string>& names,
                                                    const ControlView& view);

}  // namespace optlease
