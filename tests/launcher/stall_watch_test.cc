// What is said of a job in which nothing moves, and when.
#include "launcher/stall_watch.h"

#include <gtest/gtest.h>

namespace optlease {
namespace {

// Looks once a second at a job of two ranks.
class StallWatchTest : public testing::Test {
 protected:
  StallWatchTest() {
    for (uint64_t life : {1, 1}) facts_.ranks.push_back({.incarnation = life});
    facts_.body.step_committed = 6;
    facts_.body.step_open = kNoStep;
    phases(Phase::kIdle, Phase::kIdle);
  }

  void phases(Phase first, Phase second) {
    facts_.ranks[0].phase = static_cast<uint32_t>(first);
    facts_.ranks[1].phase = static_cast<uint32_t>(second);
  }
  // All that is said in so many seconds.
  std::vector<std::string> pass(int seconds) {
    std::vector<std::string> said;
    for (int i = 0; i < seconds; ++i) {
      now_ms_ += 1000;
      const auto words =
          watch_.look(facts_, now_ms_, [](Seat seat) { return text_of(seat) + " stands"; });
      if (words) said.push_back(*words);
    }
    return said;
  }

  StoreFacts facts_;
  uint64_t now_ms_ = 1'000'000;
  StallWatch watch_{10'000, true};
};

TEST_F(StallWatchTest, NamesTheTrainerThatHasNotAsked) {
  phases(Phase::kWaitPeers, Phase::kIdle);
  const auto said = pass(12);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("nothing has moved for 10.0 s, step 7: "), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("the trainers of rank 1 have not asked for it; trainer 1 stands"),
            std::string::npos)
      << said[0];
  EXPECT_NE(said[0].find("rank 0 in wait_peers"), std::string::npos) << said[0];
  EXPECT_EQ(said[0].find("actor 0"), std::string::npos) << "rank 0 has done its part";
}

TEST_F(StallWatchTest, NamesTheCollectiveThatDoesNotEnd) {
  phases(Phase::kReduce, Phase::kReduce);
  const auto said = pass(12);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("ranks 0, 1 in a collective (reduce); gpu_actor 0 stands; gpu_actor 1 "
                         "stands"),
            std::string::npos)
      << said[0];
}

TEST_F(StallWatchTest, SaysItAgainOnlyWhenItTookTwiceAsLong) {
  EXPECT_EQ(pass(85).size(), 4u);  // after 10, 20, 40 and 80 s
  ASSERT_EQ(watch_.stalls().size(), 1u);
  EXPECT_EQ(watch_.stalls()[0].lasted_ms, 84'000u);
  EXPECT_FALSE(watch_.stalls()[0].over);
}

TEST_F(StallWatchTest, WhatMovesOnIsOverAndASlowJobIsGivenMoreTime) {
  EXPECT_EQ(pass(16).size(), 1u);
  ++facts_.body.step_committed;
  EXPECT_TRUE(pass(60).empty()) << "it stood for 16 s before, and moved on";
  ASSERT_EQ(watch_.stalls().size(), 1u);
  EXPECT_TRUE(watch_.stalls()[0].over);
  EXPECT_EQ(watch_.stalls()[0].step, 7);
  EXPECT_EQ(watch_.stalls()[0].lasted_ms, 16'000u);
  EXPECT_EQ(pass(6).size(), 1u);
  EXPECT_EQ(watch_.stalls()[1].step, 8);
}

TEST_F(StallWatchTest, ANightThatATrainerWasStoppedHidesNoLaterStall) {
  EXPECT_FALSE(pass(8 * 3600).empty());
  ++facts_.body.step_committed;
  EXPECT_TRUE(pass(100).empty()) << "ten times its patience";
  EXPECT_EQ(pass(2).size(), 1u);
  EXPECT_EQ(watch_.stalls().back().step, 8);
}

TEST_F(StallWatchTest, AStoppedLauncherIsNobodysStall) {
  EXPECT_TRUE(pass(5).empty());
  now_ms_ += 3'600'000;
  EXPECT_TRUE(pass(5).empty());
  EXPECT_EQ(pass(6).size(), 1u);
}

TEST_F(StallWatchTest, CommitsAndNewLivesAreMovement) {
  for (int i = 0; i < 20; ++i) {
    ++facts_.body.commits;
    EXPECT_TRUE(pass(8).empty());
    ++facts_.ranks[1].incarnation;
    EXPECT_TRUE(pass(8).empty());
  }
  facts_.ranks.clear();
  EXPECT_TRUE(pass(100).empty()) << "without a store nobody knows";
}

TEST_F(StallWatchTest, KeepsTheLastHundred) {
  uint64_t patience_s = 10;
  for (size_t i = 0; i < kStallsMax + 5; ++i) {
    ++facts_.ranks[0].incarnation;
    ++facts_.body.step_committed;
    EXPECT_EQ(pass(static_cast<int>(patience_s) + 2).size(), 1u);
  }
  ASSERT_EQ(watch_.stalls().size(), kStallsMax);
  EXPECT_EQ(watch_.stalls().front().step, 6 + 5 + 2);
}

}  // namespace
}  // namespace optlease
