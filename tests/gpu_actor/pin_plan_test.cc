// Which pieces of an arena are pinned and in which order.
#include "actors/gpu_actor/pin_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace optlease {
namespace {

constexpr uint64_t kSlot = 12ull << 20;
constexpr PinLimits kLimits;

std::vector<uint32_t> ascending(uint32_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

void expect_each_slot_once(const std::vector<PinPiece>& pieces, uint32_t slot_count) {
  std::vector<int> seen(slot_count, 0);
  for (const PinPiece& piece : pieces) {
    for (uint32_t s = 0; s < piece.count; ++s) {
      ASSERT_LT(piece.first + s, slot_count);
      ++seen[piece.first + s];
    }
  }
  for (uint32_t s = 0; s < slot_count; ++s) EXPECT_EQ(seen[s], 1) << "slot " << s;
}

TEST(PinPlan, CoversEverySlotOnceWhateverTheOrder) {
  const uint64_t seed = 20261129;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int attempt = 0; attempt < 200; ++attempt) {
    const auto count = static_cast<uint32_t>(1 + random() % 3000);
    const uint64_t slot = 4096 * (1 + random() % 20000);
    std::vector<uint32_t> order = ascending(count);
    std::shuffle(order.begin(), order.end(), random);
    order.resize(random() % (count + 1));
    const std::vector<PinPiece> pieces = plan_pins(count, slot, order, kLimits);
    expect_each_slot_once(pieces, count);
    for (const PinPiece& piece : pieces) {
      EXPECT_TRUE(piece.count == 1 || piece.count * slot <= kLimits.piece_bytes)
          << piece.count << " slots of " << slot;
    }
    if (!order.empty()) {
      EXPECT_LE(pieces[0].first, order[0]);
      EXPECT_GT(pieces[0].first + pieces[0].count, order[0]) << "the first slot wanted waits";
    }
  }
}

TEST(PinPlan, BeginsWithSmallPiecesAndGoesOnWithLargeOnes) {
  const std::vector<PinPiece> pieces = plan_pins(200, kSlot, ascending(200), kLimits);
  EXPECT_EQ(pieces[0], (PinPiece{0, 5}));
  EXPECT_EQ(pieces[1], (PinPiece{5, 5}));
  EXPECT_EQ(pieces.back().first + pieces.back().count, 200u);
  EXPECT_EQ(pieces[9].count, 20u) << "four units of five slots stay below 256 MiB";
}

TEST(PinPlan, PutsThePiecesOfTheFirstWantedSlotsFirst) {
  const std::vector<PinPiece> pieces = plan_pins(200, kSlot, {150, 151, 7}, kLimits);
  EXPECT_EQ(pieces[0], (PinPiece{150, 5}));
  EXPECT_EQ(pieces[1], (PinPiece{5, 5}));
}

TEST(PinPlan, GivesASlotLargerThanAPieceOneOfItsOwn) {
  const std::vector<PinPiece> pieces = plan_pins(3, 1ull << 30, {2}, kLimits);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0], (PinPiece{2, 1}));
}

// Two slots of 1.5 GiB: no registration is of more than 256 MiB, and the slot that is wanted first
// is pinned first, in small pieces.
TEST(PinPlan, CutsSlotsThatAreLargerThanAPieceMayBe) {
  const uint64_t slot = (1536ull << 20) + 4096;
  const HostMemory memory{nullptr, slot, 2, {1, 0}};
  const PinUnits units = pin_units(memory, kLimits);
  EXPECT_EQ(units.bytes, kLimits.first_piece_bytes);
  EXPECT_EQ(units.count, 49u) << "of which the last is 8 KiB";
  EXPECT_EQ(units.order.size(), units.count) << "the unit across the border is named once";
  EXPECT_EQ(units.order.front(), 24u);
  const std::vector<PinPiece> pieces = plan_pins(units.count, units.bytes, units.order, kLimits);
  expect_each_slot_once(pieces, units.count);
  EXPECT_EQ(pieces[0], (PinPiece{24, 1}));
  for (const PinPiece& piece : pieces) EXPECT_LE(piece.count * units.bytes, kLimits.piece_bytes);
}

TEST(PinPlan, LeavesSlotsAsTheyAreThatFitAPiece) {
  const HostMemory memory{nullptr, kLimits.piece_bytes, 7, {3, 1}};
  const PinUnits units = pin_units(memory, kLimits);
  EXPECT_EQ(units.bytes, memory.slot_bytes);
  EXPECT_EQ(units.count, 7u);
  EXPECT_EQ(units.order, memory.order);
}

TEST(PinPlan, IsEmptyForAnArenaWithoutSlots) {
  EXPECT_TRUE(plan_pins(0, kSlot, {}, kLimits).empty());
}

}  // namespace
}  // namespace optlease
