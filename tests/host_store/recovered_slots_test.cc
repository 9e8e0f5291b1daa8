// Slots of a store that was started again: whoever may have been granted them by an earlier life of
// it may write them until the grace period after its reaping is over, in whatever order the
// launcher and the last incarnation are heard.
#include <gtest/gtest.h>

#include "shm/lease_table.h"

namespace optlease {
namespace {

constexpr Rank kRank{0};
constexpr uint64_t kGraceMs = 10;
constexpr Incarnation kOlder{4}, kLast{5};

class RecoveredSlots : public testing::Test {
 protected:
  RecoveredSlots() {
    table_.add_rank(kRank, {1, 1}, {SlotIndex{2}, SlotIndex{3}}, kLast);
    table_.lost(kRank, kOlder, now_);
    table_.started(kRank, kLast, now_);
  }
  void hello() { ASSERT_TRUE(table_.hello(kRank, kLast, now_)); }
  void reap() { table_.reaped(kRank, kOlder, now_); }
  void advance_ms(uint64_t ms) {
    now_ += ms;
    table_.advance(now_);
  }
  size_t free() const { return table_.free_slots(kRank); }

  uint64_t now_ = 1000;
  LeaseTable table_{{.lease_ms = 100, .quarantine_grace_ms = kGraceMs, .window_chunks = 2}};
};

TEST_F(RecoveredSlots, WaitForTheGraceOfAnOlderOneThatIsReapedAfterTheLastOnesHello) {
  hello();
  reap();
  advance_ms(kGraceMs - 1);
  EXPECT_EQ(free(), 0u);
  advance_ms(1);
  EXPECT_EQ(free(), 2u);
}

TEST_F(RecoveredSlots, WaitForTheGraceOfAnOlderOneThatIsReapedBeforeTheLastOnesHello) {
  reap();
  hello();
  EXPECT_EQ(free(), 0u) << "the driver may still finish a copy of the older one";
  advance_ms(kGraceMs - 1);
  hello();
  EXPECT_EQ(free(), 0u);
  advance_ms(1);
  EXPECT_EQ(free(), 2u);
}

TEST_F(RecoveredSlots, WaitForNothingMoreOnceThatGraceIsOver) {
  reap();
  advance_ms(kGraceMs);
  EXPECT_EQ(free(), 0u) << "the last one may be writing";
  hello();
  EXPECT_EQ(free(), 2u);
}

// The launcher's list was written before the last one died, and its successor came before the list.
TEST(RecoveredTable, WaitsForOneThatIsSaidToLiveAfterItsSuccessorsHello) {
  LeaseTable table({.lease_ms = 100, .quarantine_grace_ms = kGraceMs, .window_chunks = 2});
  table.add_rank(kRank, {1, 1}, {SlotIndex{2}, SlotIndex{3}}, kOlder);
  constexpr Incarnation kSuccessor{6};
  ASSERT_TRUE(table.hello(kRank, kSuccessor, 1000));
  table.started(kRank, kLast, 1001);
  table.reaped(kRank, kOlder, 1002);
  EXPECT_FALSE(table.older_are_reaped(kRank)) << "5 may be writing";
  table.lost(kRank, kLast, 1003);
  table.reaped(kRank, kLast, 1004);
  EXPECT_TRUE(table.older_are_reaped(kRank));
}

}  // namespace
}  // namespace optlease
