#include "actors/gpu_actor/initial_chunk.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/adam_math.h"
#include "shm/contract/remainder.h"

namespace optlease {
namespace {

constexpr uint64_t kPieceElements = 1 << 16;  // of main weights that are split into halves

using Fill = std::function<Status(ElementRange range, float* main)>;

// Main weights [0, layout.elements) as halves: rounded on the device, remainders where they belong.
Status write_halves(const ChunkLayout& layout, ElementRange chunk, const Fill& fill,
                    const ChunkSlots& slots) {
  std::vector<float> main(std::min(kPieceElements, layout.elements));
  char* rounded = slots.resident + layout.rounded.offset;
  for (uint64_t at = 0; at < layout.elements; at += main.size()) {
    const uint64_t count = std::min<uint64_t>(main.size(), layout.elements - at);
    OPTLEASE_TRY(fill({chunk.begin + at, chunk.begin + at + count}, main.data()));
    for (uint64_t i = 0; i < count; ++i) {
      // A NaN of another kind would read as a number once it is rounded.
      const uint32_t bits = bits_of(one_nan(main[i]));
      const uint16_t high = rounded_half(bits), low = remainder_half(bits);
      const ArrayPlace place = place_of(layout, kMainArray, at + i);
      std::memcpy(rounded + (at + i) * sizeof high, &high, sizeof high);
      std::memcpy((place.on_device ? slots.resident : slots.host) + place.offset, &low, sizeof low);
    }
  }
  return Status::ok();
}

Status write_whole(const ChunkLayout& layout, ElementRange chunk, const Fill& fill,
                   const ChunkSlots& slots) {
  const uint64_t resident = layout.arrays[kMainArray].resident.count;
  for (const ElementRange range :
       {ElementRange{0, resident}, ElementRange{resident, layout.elements}}) {
    if (range.size() == 0) continue;
    const ArrayPlace place = place_of(layout, kMainArray, range.begin);
    char* main = (place.on_device ? slots.resident : slots.host) + place.offset;
    OPTLEASE_TRY(
        fill({chunk.begin + range.begin, chunk.begin + range.end}, reinterpret_cast<float*>(main)));
  }
  return Status::ok();
}

}  // namespace

Status write_initial_chunk(const StateSplit& split, const ChunkLayout& layout, ElementRange chunk,
                           const Fill& fill, const ChunkSlots& slots) {
  OPTLEASE_CHECK(chunk.size() == layout.elements, "%llu elements in a layout of %llu",
                 static_cast<unsigned long long>(chunk.size()),
                 static_cast<unsigned long long>(layout.elements));
  OPTLEASE_CHECK(slots.resident != nullptr || layout.resident_bytes == 0, "no resident slot");
  std::memset(slots.host, 0, layout.host_bytes);
  if (layout.resident_bytes != 0) std::memset(slots.resident, 0, layout.resident_bytes);
  switch (split.main) {
    case MainForm::kF32:
      return write_whole(layout, chunk, fill, slots);
    case MainForm::kBf16Remainder:
      return write_halves(layout, chunk, fill, slots);
  }
  return {StatusCode::kInternal, "an unknown form of main weights"};
}

}  // namespace optlease
