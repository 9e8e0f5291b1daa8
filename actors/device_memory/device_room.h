// Whether a device has the room for what a process is about to make on it, told as a table before
// anything is made. Pure. Used by the GPU actor at its start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/device_memory/device_memory.h"
#include "shm/contract/status.h"

namespace optlease {

struct RoomRow {
  std::string name;  // "parameters of space dense"
  uint64_t bytes = 0;
};

// NoSpace with one line a row, the sum and what is free, where the sum does not fit.
Status check_room(const std::vector<RoomRow>& rows, const DeviceRoom& room, DevicePlace place);

}  // namespace optlease
