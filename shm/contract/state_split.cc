#include "shm/contract/state_split.h"

#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr MainForm kForms[] = {MainForm::kF32, MainForm::kBf16Remainder};

constexpr uint64_t aligned(uint64_t bytes) {
  return (bytes + kArrayAlignBytes - 1) / kArrayAlignBytes * kArrayAlignBytes;
}

// elements * share / whole, rounded down: the product itself may not fit 64 bits.
constexpr uint64_t scaled(uint64_t elements, uint64_t share, uint64_t whole) {
  return elements / whole * share + elements % whole * share / whole;
}
static_assert(scaled(kTensorElementsMax, 12 * kMillion, 12 * kMillion) == kTensorElementsMax);

// The first elements of an array of which `share` of `whole` stays.
constexpr uint64_t resident_elements(uint64_t elements, uint64_t share, uint64_t whole) {
  if (share == whole) return elements;
  return scaled(elements, share, whole) / kShardAlignElements * kShardAlignElements;
}

SlotRange append(uint64_t* slot_bytes, uint64_t first, uint64_t count, uint32_t element_bytes) {
  const SlotRange range{*slot_bytes, first, count};
  *slot_bytes += aligned(count * element_bytes);
  return range;
}

}  // namespace

const char* name_of(MainForm form) {
  switch (form) {
    case MainForm::kF32:
      return "fp32";
    case MainForm::kBf16Remainder:
      return "bf16+remainder";
  }
  return "?";
}

bool parse_main_form(std::string_view name, MainForm* out) {
  for (const MainForm form : kForms) {
    if (name != name_of(form)) continue;
    *out = form;
    return true;
  }
  return false;
}

const char* why_invalid(const StateSplit& split) {
  if (split.main != MainForm::kF32 && split.main != MainForm::kBf16Remainder) {
    return "main weights have a form that this build does not know";
  }
  if (split.resident_millionths > kMillion) return "more than the whole state is resident";
  return nullptr;
}

ChunkLayout layout_of(const StateSplit& split, uint64_t elements) {
  ChunkLayout layout;
  layout.elements = elements;
  const bool halves = split.main == MainForm::kBf16Remainder;
  if (halves) {
    layout.arrays[kMainArray].element_bytes = 2;
    layout.rounded = append(&layout.resident_bytes, 0, elements, 2);
  }
  uint64_t travelling_bytes = 0;  // an element
  for (const ArrayLayout& array : layout.arrays) travelling_bytes += array.element_bytes;
  uint64_t left = travelling_bytes * split.resident_millionths;
  for (ArrayLayout& array : layout.arrays) {
    const uint64_t whole = uint64_t{array.element_bytes} * kMillion;
    const uint64_t share = left < whole ? left : whole;
    left -= share;
    const uint64_t stay = resident_elements(elements, share, whole);
    array.resident = append(&layout.resident_bytes, 0, stay, array.element_bytes);
    array.travelling = append(&layout.host_bytes, stay, elements - stay, array.element_bytes);
    if (stay != 0 && stay != elements) layout.cut = stay;
  }
  return layout;
}

std::array<ElementRange, 2> parts_of(const ChunkLayout& layout) {
  const uint64_t cut = layout.cut == 0 ? layout.elements : layout.cut;
  return {ElementRange{0, cut}, ElementRange{cut, layout.elements}};
}

ArrayPlace place_of(const ChunkLayout& layout, uint32_t array, uint64_t element) {
  const ArrayLayout& at = layout.arrays[array];
  const bool on_device = element < at.resident.count;
  const SlotRange& range = on_device ? at.resident : at.travelling;
  return {on_device, range.offset + (element - range.first) * at.element_bytes};
}

}  // namespace optlease
