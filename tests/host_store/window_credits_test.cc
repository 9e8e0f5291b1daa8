#include "actors/host_store/window_credits.h"

#include <gtest/gtest.h>

namespace optlease {
namespace {

constexpr uint64_t kWindow = 100;

WaitingLease request(uint32_t rank, uint32_t chunk, uint64_t bytes = kWindow) {
  WaitingLease lease;
  lease.header.rank = rank;
  lease.header.sequence = chunk;
  lease.body = {1, chunk, 1};
  lease.bytes = bytes;
  return lease;
}

// Ranks with windows of 100 bytes, three of them a pipeline.
struct Node {
  explicit Node(uint64_t ceiling, std::vector<uint64_t> remaining)
      : credits({.ceiling_bytes = ceiling, .windows_ahead = 3},
                std::vector<uint64_t>(remaining.size(), kWindow)) {
    for (uint32_t r = 0; r < remaining.size(); ++r) {
      loads.push_back({.remaining_bytes = remaining[r], .in_flight_bytes = 0, .attached = true});
      tell(r);
    }
  }
  void tell(uint32_t r) { credits.set_load(Rank{r}, loads[r]); }
  void in_flight(uint32_t r, uint64_t bytes) {
    loads[r].in_flight_bytes = bytes;
    tell(r);
  }
  void detach(uint32_t r) {
    loads[r].attached = false;
    loads[r].in_flight_bytes = 0;
    tell(r);
  }
  bool may(uint32_t r) const { return credits.may_grant(Rank{r}, kWindow); }

  WindowCredits credits;
  std::vector<RankLoad> loads;
};

TEST(WindowCredits, OneRankHasItsWholePipelineWhateverIsLeft) {
  for (const uint64_t left : {10000, 300, 200, 100}) {
    Node node(0, {left});
    node.in_flight(0, std::min<uint64_t>(left - 100, 200));
    EXPECT_TRUE(node.may(0)) << left;
  }
}

TEST(WindowCredits, EqualRanksNeverWaitWithoutACeiling) {
  Node node(0, {5000, 5000, 5000});
  for (uint32_t r = 0; r < 3; ++r) node.in_flight(r, 2 * kWindow);
  for (uint32_t r = 0; r < 3; ++r) EXPECT_TRUE(node.may(r));
  // Nor do such as are a twentieth of their work apart.
  Node apart(0, {5000, 4750});
  apart.in_flight(1, 2 * kWindow);
  EXPECT_TRUE(apart.may(1));
}

TEST(WindowCredits, ARankWithLessLeftGetsLessAndTheLongestItsWholePipeline) {
  Node node(0, {6000, 2000});
  EXPECT_EQ(node.credits.credit_bytes(Rank{0}), 3 * kWindow);
  EXPECT_EQ(node.credits.credit_bytes(Rank{1}), kWindow);
  EXPECT_TRUE(node.may(1));
  node.in_flight(1, kWindow);
  EXPECT_FALSE(node.may(1)) << "it is two thirds ahead and its one window is in flight";
  node.in_flight(0, 2 * kWindow);
  EXPECT_TRUE(node.may(0));
}

TEST(WindowCredits, WhenTheLongestIsGoneTheOthersWaitForNobody) {
  Node node(0, {60000, 2000});
  node.in_flight(1, kWindow);
  EXPECT_FALSE(node.may(1));
  node.detach(0);
  EXPECT_TRUE(node.may(1));
}

TEST(WindowCredits, TheCeilingIsSharedInProportionToWhatIsLeft) {
  Node node(400, {6000, 2000, 0});
  EXPECT_EQ(node.credits.credit_bytes(Rank{0}), 300u);
  EXPECT_EQ(node.credits.credit_bytes(Rank{1}), 100u);
  EXPECT_EQ(node.credits.credit_bytes(Rank{2}), 0u);
  node.in_flight(0, 300);
  node.in_flight(1, 100);
  EXPECT_FALSE(node.may(0));
  EXPECT_FALSE(node.may(1));
}

TEST(WindowCredits, AWindowIsKeptFreeForARankWithNothingInFlight) {
  Node node(400, {5000, 5000, 5000});
  node.in_flight(0, kWindow);
  EXPECT_TRUE(node.may(0)) << "two windows and one for each of the others";
  node.in_flight(0, 2 * kWindow);
  EXPECT_FALSE(node.may(0));
  EXPECT_TRUE(node.may(1));
  EXPECT_TRUE(node.may(2));
}

TEST(WindowCredits, ACeilingBelowOneWindowEachStillGivesEachOne) {
  Node node(1, {5000, 5000});
  EXPECT_TRUE(node.may(0));
  node.in_flight(0, kWindow);
  EXPECT_FALSE(node.may(0));
  EXPECT_TRUE(node.may(1));
}

TEST(WindowCredits, TheShareOfARankThatIsDoneGoesToTheOthers) {
  Node node(400, {5000, 5000});
  node.in_flight(0, 2 * kWindow);
  node.in_flight(1, 2 * kWindow);
  EXPECT_FALSE(node.may(0));
  node.loads[1] = {.remaining_bytes = 0, .in_flight_bytes = 0, .attached = true};
  node.tell(1);
  EXPECT_TRUE(node.may(0));
  EXPECT_EQ(node.credits.credit_bytes(Rank{0}), 3 * kWindow);
}

TEST(WindowCredits, WaitsInOrderAndServesTheRankThatIsFurthestBehind) {
  Node node(400, {5000, 5000});
  node.in_flight(0, 300);
  node.in_flight(1, 100);
  ASSERT_TRUE(node.credits.wait(Rank{0}, request(0, 7)));
  ASSERT_TRUE(node.credits.wait(Rank{1}, request(1, 4)));
  ASSERT_TRUE(node.credits.wait(Rank{1}, request(1, 5)));
  EXPECT_FALSE(node.credits.next()) << "the node is at its ceiling";
  node.in_flight(0, 200);
  const auto first = node.credits.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->header.rank, 1u);
  EXPECT_EQ(first->body.first_chunk, 4u);
  node.in_flight(1, 200);
  EXPECT_FALSE(node.credits.next());
  EXPECT_EQ(node.credits.waiting(Rank{1}), 1u);
  node.in_flight(0, 100);
  EXPECT_EQ(node.credits.next()->header.rank, 0u);
}

TEST(WindowCredits, ARepeatedRequestWaitsOnceAndItsLastWordCounts) {
  Node node(0, {6000, 2000});
  node.in_flight(1, kWindow);
  WaitingLease again = request(1, 3);
  ASSERT_TRUE(node.credits.wait(Rank{1}, again));
  again.header.sequence = 99;
  ASSERT_TRUE(node.credits.wait(Rank{1}, again));
  EXPECT_EQ(node.credits.waiting(Rank{1}), 1u);
  node.in_flight(1, 0);
  EXPECT_EQ(node.credits.next()->header.sequence, 99u);
  EXPECT_FALSE(node.credits.anybody_waits());
}

TEST(WindowCredits, ForgetsWhatARankThatIsGoneWaitedFor) {
  Node node(0, {6000, 2000});
  node.in_flight(1, kWindow);
  for (uint32_t i = 0; i < kLeasesInFlightMax; ++i) {
    ASSERT_TRUE(node.credits.wait(Rank{1}, request(1, i)));
  }
  EXPECT_FALSE(node.credits.wait(Rank{1}, request(1, kLeasesInFlightMax)));
  node.credits.forget(Rank{1});
  EXPECT_FALSE(node.credits.anybody_waits());
}

}  // namespace
}  // namespace optlease
