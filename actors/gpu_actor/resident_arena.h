// The slots of a rank's state that stay on its device, and their named segment (docs/SHM_LAYOUT.md,
// "Resident segment"). On the cpu device they are the segment. On another they lie in memory that
// the launcher's vault keeps, and are saved into the segment, whole or not at all, before anybody
// reads them at rest and before the vault goes. Used by RankBuffers and, through it, the actor; it
// decides neither when to save nor what a state is worth.
#pragma once

#include <cstdint>
#include <string>

#include "actors/device_memory/device_memory.h"
#include "actors/gpu_actor/resident_slots.h"
#include "shm/resident_segment.h"

namespace optlease {

class ResidentArena {
 public:
  // The segment. `is_needed`: chunks are committed whose bytes nothing but the segment has.
  // Corrupt, with words, where it has not them.
  static Result<ResidentArena> open(const std::string& name, const ResidentSegment::Shape& shape,
                                    bool is_needed, bool in_segment);

  // Where the slots lie on the device, for a device whose memory is not the segment's.
  MappedDeviceBuffer* buffer() { return &buffer_; }
  uint64_t bytes() const { return segment_.slots_bytes(); }
  // Copies what was saved to new device memory. REQUIRES: the segment is whole.
  Status restore(void* device, const DeviceMemory& memory) const;
  ResidentSlots slots() const;

  // Before the device's slots are written.
  void begin_writing();
  // Saves the next piece of the slots; true when the segment is whole, as of `committed`. REQUIRES:
  // no stream writes to them.
  Result<bool> save_some(Step committed, const DeviceMemory& memory);

 private:
  ResidentArena(ResidentSegment segment, bool in_segment)
      : segment_(std::move(segment)), in_segment_(in_segment) {}
  ResidentSegment segment_;
  bool in_segment_;
  MappedDeviceBuffer buffer_;
  uint64_t saved_bytes_ = 0;  // of a saving under way
};

}  // namespace optlease
