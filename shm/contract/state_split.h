// How the bytes of a chunk are split between two places: its slot in the rank's arena, which is
// host memory and travels each step, and the slot of the same index in the rank's resident arena,
// which is the device's own memory. Pure arithmetic, used by whoever reads or writes a slot. By
// default everything is the host's and there is no resident arena.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace optlease {

inline constexpr uint32_t kAdamArrayCount = 3;  // main, exp_avg, exp_avg_sq: FP32
// The state arrays' names, in slot order, as torch.optim's state dict has them.
inline constexpr const char* kAdamArrayNames[kAdamArrayCount] = {"main", "exp_avg", "exp_avg_sq"};
inline constexpr uint32_t kMainArray = 0;

// How main weights lie in memory. The numbers are stored in segments. Frozen: append only.
enum class MainForm : uint32_t {
  kF32 = 0,
  kBf16Remainder = 1,  // remainder.h: a BF16 that stays on the device, and 16 bits that travel
};
const char* name_of(MainForm form);  // "fp32", "bf16+remainder"; "?" for a value that is none
bool parse_main_form(std::string_view name, MainForm* out);

inline constexpr uint32_t kMillion = 1'000'000;

// The same for all chunks of a job.
struct StateSplit {
  MainForm main = MainForm::kF32;
  // The share of the bytes that could travel which stays on the device: first of main, then of
  // exp_avg, then of exp_avg_sq.
  uint32_t resident_millionths = 0;

  bool has_resident() const { return main != MainForm::kF32 || resident_millionths != 0; }
  bool operator==(const StateSplit&) const = default;
};
// Null, or the broken rule in words.
const char* why_invalid(const StateSplit& split);

// [begin, end) in elements.
struct ElementRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

// Elements [first, first + count) of an array of the chunk, one after another from `offset` bytes
// of a slot on.
struct SlotRange {
  uint64_t offset = 0;
  uint64_t first = 0;
  uint64_t count = 0;
};

struct ArrayLayout {
  uint32_t element_bytes = 4;  // 2: the remainders of main
  SlotRange resident;          // in the device's slot: the first elements
  SlotRange travelling;        // in the host's slot: the others
};

struct ChunkLayout {
  uint64_t elements = 0;
  std::array<ArrayLayout, kAdamArrayCount> arrays;
  SlotRange rounded;            // in the device's slot: main's BF16 halves, all of them; 0 in kF32
  uint64_t host_bytes = 0;      // of the host's slot, from its start
  uint64_t resident_bytes = 0;  // of the device's slot, from its start
  // Within [0, cut) and within [cut, elements) each array is in one of the two slots.
  uint64_t cut = 0;
};

// Every array starts kArrayAlignBytes-aligned in its slot; cut is 0, elements, or a multiple of
// kShardAlignElements. REQUIRES: why_invalid(split) is null; elements <= kTensorElementsMax.
ChunkLayout layout_of(const StateSplit& split, uint64_t elements);

// The ranges on either side of the cut: one or two, ascending; both empty for an empty chunk.
std::array<ElementRange, 2> parts_of(const ChunkLayout& layout);

struct ArrayPlace {
  bool on_device = false;
  uint64_t offset = 0;  // bytes from the start of that slot
};
// Where `element` of an array is (of main in its remainder form: the remainder).
// REQUIRES: element < layout.elements.
ArrayPlace place_of(const ChunkLayout& layout, uint32_t array, uint64_t element);

}  // namespace optlease
