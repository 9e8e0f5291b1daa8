// Where the part of a rank's state is that stays on the device (shm/contract/state_split.h), slot i
// beside slot i of the arena. Addresses only: made by RankBuffers, used by the window pipeline.
#pragma once

#include <cstdint>

namespace optlease {

// Empty where the state has no such part.
struct ResidentSlots {
  char* device = nullptr;  // slot 0, as kernels address it
  char* image = nullptr;   // slot 0 in host memory: device itself, or where first values are made
  uint64_t slot_bytes = 0;

  char* device_slot(uint32_t slot) const {
    return device == nullptr ? nullptr : device + slot * slot_bytes;
  }
  char* image_slot(uint32_t slot) const {
    return image == nullptr ? nullptr : image + slot * slot_bytes;
  }
};

}  // namespace optlease
