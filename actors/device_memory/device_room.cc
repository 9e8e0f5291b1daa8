#include "actors/device_memory/device_room.h"

#include <algorithm>

namespace optlease {
namespace {

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

Status check_room(const std::vector<RoomRow>& rows, const DeviceRoom& room, DevicePlace place) {
  uint64_t needed = 0;
  for (const RoomRow& row : rows) needed += std::min(row.bytes, UINT64_MAX - needed);
  if (needed <= room.free_bytes) return Status::ok();
  std::string text =
      format("%s device %d has too little memory:", name_of(place.kind), place.ordinal);
  for (const RoomRow& row : rows) {
    text += format("\n  %-40s %12.1f MiB", row.name.c_str(), mib(row.bytes));
  }
  text += format("\n  %-40s %12.1f MiB", "needed in all", mib(needed));
  text +=
      format("\n  %-40s %12.1f MiB of %.1f", "free", mib(room.free_bytes), mib(room.total_bytes));
  text +=
      "\n  end other programs on it, use 2-byte model.param_dtype and grad_dtype, or spread the "
      "job "
      "over more GPUs";
  return {StatusCode::kNoSpace, text};
}

}  // namespace optlease
