#include "shm/contract/state_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "shm/contract/geometry.h"
#include "shm/contract/limits.h"
#include "shm/contract/remainder.h"

namespace optlease {
namespace {

const StateSplit kAllHost;

// Every byte of the arrays, each array's elements once, nothing overlapping.
void expect_sound(const StateSplit& split, uint64_t elements) {
  SCOPED_TRACE(testing::Message() << name_of(split.main) << ", " << split.resident_millionths
                                  << " millionths, " << elements << " elements");
  const ChunkLayout layout = layout_of(split, elements);
  struct Extent {
    uint64_t begin, end;
  };
  std::vector<Extent> slots[2];  // host, device
  for (const ArrayLayout& array : layout.arrays) {
    EXPECT_EQ(array.resident.first, 0u);
    EXPECT_EQ(array.travelling.first, array.resident.count);
    EXPECT_EQ(array.resident.count + array.travelling.count, elements);
    const uint64_t bytes = array.element_bytes;
    slots[0].push_back(
        {array.travelling.offset, array.travelling.offset + array.travelling.count * bytes});
    slots[1].push_back(
        {array.resident.offset, array.resident.offset + array.resident.count * bytes});
    // Between the cuts an array is on one side.
    EXPECT_TRUE(array.resident.count == 0 || array.resident.count == elements ||
                array.resident.count == layout.cut);
  }
  const bool halves = split.main == MainForm::kBf16Remainder;
  EXPECT_EQ(layout.rounded.count, halves ? elements : 0);
  slots[1].push_back({layout.rounded.offset, layout.rounded.offset + layout.rounded.count * 2});
  const uint64_t ends[2] = {layout.host_bytes, layout.resident_bytes};
  for (int side = 0; side < 2; ++side) {
    std::sort(slots[side].begin(), slots[side].end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    uint64_t end = 0;
    for (const Extent& extent : slots[side]) {
      if (extent.begin == extent.end) continue;
      EXPECT_EQ(extent.begin % kArrayAlignBytes, 0u);
      EXPECT_GE(extent.begin, end);
      end = extent.end;
    }
    EXPECT_LE(end, ends[side]);
  }
  EXPECT_TRUE(layout.cut == 0 || layout.cut % kShardAlignElements == 0);
  const auto parts = parts_of(layout);
  EXPECT_EQ(parts[0].begin, 0u);
  EXPECT_EQ(parts[0].end, parts[1].begin);
  EXPECT_EQ(parts[1].end, elements);
}

TEST(StateSplit, PlacesEveryElementOnceForAnySplitAndSize) {
  const uint64_t seed = 20261130;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", case " << i);
    const StateSplit split{
        random() % 2 == 0 ? MainForm::kF32 : MainForm::kBf16Remainder,
        i % 5 == 0 ? kMillion : static_cast<uint32_t>(random() % (kMillion + 1))};
    expect_sound(split, random() % (random() % 3 == 0 ? 300 : 2'000'000));
    if (HasFailure()) return;
  }
  expect_sound({MainForm::kBf16Remainder, 999'999}, kTensorElementsMax);
}

TEST(StateSplit, OfNothingIsTheLayoutWithoutASplit) {
  for (uint64_t elements : {1ull, 63ull, 64ull, 65ull, 1000ull, 5'000'003ull}) {
    const ChunkLayout layout = layout_of(kAllHost, elements);
    EXPECT_EQ(layout.host_bytes, chunk_bytes(elements));
    EXPECT_EQ(layout.resident_bytes, 0u);
    for (uint32_t a = 0; a < kAdamArrayCount; ++a) {
      EXPECT_EQ(place_of(layout, a, 0).offset, a * array_stride_bytes(elements));
      EXPECT_FALSE(place_of(layout, a, elements - 1).on_device);
    }
  }
  EXPECT_FALSE(kAllHost.has_resident());
}

TEST(StateSplit, KeepsTheShareThatItIsGivenMainWeightsFirst) {
  constexpr uint64_t kElements = 64'000;
  const ChunkLayout third = layout_of({MainForm::kF32, 333'333}, kElements);
  EXPECT_EQ(third.arrays[0].resident.count, kElements - 64);  // 999 999 millionths of main
  EXPECT_EQ(third.arrays[1].resident.count, 0u);
  const ChunkLayout half = layout_of({MainForm::kF32, 500'000}, kElements);
  EXPECT_EQ(half.arrays[0].resident.count, kElements);
  EXPECT_EQ(half.arrays[1].resident.count, kElements / 2);
  EXPECT_EQ(half.arrays[2].resident.count, 0u);
  EXPECT_EQ(half.resident_bytes, half.host_bytes);
  const ChunkLayout all = layout_of({MainForm::kF32, kMillion}, kElements);
  EXPECT_EQ(all.host_bytes, 0u);
  EXPECT_EQ(all.resident_bytes, kElements * 12);
}

TEST(StateSplit, InHalvesTenBytesAnElementTravel) {
  const ChunkLayout layout = layout_of({MainForm::kBf16Remainder, 0}, 64'000);
  EXPECT_EQ(layout.host_bytes, 64'000u * 10);
  EXPECT_EQ(layout.resident_bytes, 64'000u * 2);
}

SegmentPlan plan_with(const StateSplit& split) {
  SegmentPlan plan;
  plan.job_name = "split";
  plan.world_size = 1;
  plan.split = split;
  SpaceSpec space;
  space.name = "dense";
  space.members = {Rank(0)};
  space.param_dtype = DType::kBF16;
  TensorSpec tensor;
  tensor.name = "weight";
  tensor.shape = {100'003};
  space.tensors = {tensor};
  plan.spaces = {space};
  EXPECT_TRUE(lay_out(&plan, 64 << 10).is_ok());
  return plan;
}

TEST(StateSplit, ChangesSlotsButNeitherChunksNorSlotCount) {
  const ArenaSpec plain = arena_of(plan_with(kAllHost), Rank(0));
  EXPECT_EQ(plain.resident_slot_bytes, 0u);
  for (const StateSplit split :
       {StateSplit{MainForm::kBf16Remainder, 0}, StateSplit{MainForm::kF32, 700'000},
        StateSplit{MainForm::kF32, kMillion}, StateSplit{MainForm::kBf16Remainder, 450'000}}) {
    const ArenaSpec arena = arena_of(plan_with(split), Rank(0));
    ASSERT_EQ(arena.chunks.size(), plain.chunks.size());
    EXPECT_EQ(arena.slot_count, plain.slot_count);
    EXPECT_LT(arena.slot_bytes, plain.slot_bytes);
    EXPECT_GE(arena.slot_bytes, kPageBytes);
    for (const ChunkSpec& chunk : arena.chunks) {
      const ChunkLayout layout = layout_of(split, chunk.range.size());
      EXPECT_LE(layout.host_bytes, arena.slot_bytes);
      EXPECT_LE(layout.resident_bytes, arena.resident_slot_bytes);
    }
  }
  EXPECT_EQ(arena_of(plan_with({MainForm::kF32, kMillion}), Rank(0)).slot_bytes, kPageBytes);
}

// A segment that was made before there were splits is resumed by this build.
TEST(StateSplit, OfNothingLeavesTheLayoutHashAlone) {
  const SegmentPlan plain = plan_with(kAllHost);
  EXPECT_EQ(layout_hash(plain), 0x1e79a1b495e137cu);
  std::vector<uint64_t> hashes = {layout_hash(plain)};
  for (const StateSplit split : {StateSplit{MainForm::kBf16Remainder, 0},
                                 StateSplit{MainForm::kF32, 1}, StateSplit{MainForm::kF32, 2}}) {
    const uint64_t hash = layout_hash(plan_with(split));
    EXPECT_EQ(std::count(hashes.begin(), hashes.end(), hash), 0);
    hashes.push_back(hash);
  }
}

TEST(StateSplit, RefusesFormsAndSharesThatAreNone) {
  EXPECT_EQ(why_invalid(StateSplit{MainForm::kBf16Remainder, kMillion}), nullptr);
  EXPECT_NE(why_invalid(StateSplit{static_cast<MainForm>(2), 0}), nullptr);
  EXPECT_NE(why_invalid(StateSplit{MainForm::kF32, kMillion + 1}), nullptr);
  SegmentPlan plan = plan_with({MainForm::kBf16Remainder, 0});
  EXPECT_EQ(why_invalid(plan), "");
  plan.spaces[0].param_dtype = DType::kF16;
  EXPECT_NE(why_invalid(plan), "");
}

TEST(Remainder, RestoresEveryFloatBitForBit) {
  uint64_t wrong = 0;
  uint32_t bits = 0;
  do {
    wrong += joined_bits(rounded_half(bits), remainder_half(bits)) != bits ? 1 : 0;
  } while (++bits != 0);  // all 2^32 of them
  EXPECT_EQ(wrong, 0u);
}

TEST(Remainder, RoundsToNearestTiesAwayFromZero) {
  EXPECT_EQ(rounded_half(0x3f800000), 0x3f80);  // 1
  EXPECT_EQ(rounded_half(0x3f807fff), 0x3f80);
  EXPECT_EQ(rounded_half(0x3f808000), 0x3f81);  // a tie, whose even neighbour is below
  EXPECT_EQ(rounded_half(0xbf808000), 0xbf81);
  EXPECT_EQ(rounded_half(0x7f7fffff), 0x7f80);  // the largest finite number
  EXPECT_EQ(rounded_half(0x7f800000), 0x7f80);  // infinity
  EXPECT_EQ(rounded_half(0x7fc00000), 0x7fc0);  // the NaN that is stored
  EXPECT_EQ(rounded_half(0x80000000), 0x8000);  // -0
}

}  // namespace
}  // namespace optlease
