#include "actors/gpu_actor/resident_arena.h"

#include <algorithm>

namespace optlease {
namespace {

// Between two pieces the actor's loop turns: heartbeats and the stop of a job must not wait.
constexpr uint64_t kPieceBytes = 64ull << 20;

}  // namespace

Result<ResidentArena> ResidentArena::open(const std::string& name,
                                          const ResidentSegment::Shape& shape, bool is_needed,
                                          bool in_segment) {
  Result<ResidentSegment> segment =
      ResidentSegment::open_or_make(name, shape, is_needed, in_segment);
  if (!segment.is_ok()) return segment.status();
  if (is_needed) OPTLEASE_TRY(segment.value().check_whole());
  // The job ran on another device, and nothing of it is left that counts.
  if (in_segment && !segment.value().is_whole()) segment.value().set_whole(kNoStep);
  return ResidentArena(std::move(segment).value(), in_segment);
}

Status ResidentArena::restore(void* device, const DeviceMemory& memory) const {
  return memory.copy_to_device(device, segment_.slots(), segment_.slots_bytes());
}

ResidentSlots ResidentArena::slots() const {
  char* device = in_segment_ ? segment_.slots() : static_cast<char*>(buffer_.data());
  return {device, segment_.slots(), segment_.slot_bytes()};
}

void ResidentArena::begin_writing() {
  saved_bytes_ = 0;
  if (!in_segment_ && segment_.is_whole()) segment_.set_void();
}

Result<bool> ResidentArena::save_some(Step committed, const DeviceMemory& memory) {
  if (segment_.is_whole()) return true;
  const uint64_t count = std::min(kPieceBytes, segment_.slots_bytes() - saved_bytes_);
  OPTLEASE_TRY(memory.copy_to_host(segment_.slots() + saved_bytes_,
                                   static_cast<const char*>(buffer_.data()) + saved_bytes_, count));
  saved_bytes_ += count;
  if (saved_bytes_ < segment_.slots_bytes()) return false;
  segment_.set_whole(committed);
  saved_bytes_ = 0;
  return true;
}

}  // namespace optlease
