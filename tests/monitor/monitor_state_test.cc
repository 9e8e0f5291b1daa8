#include "actors/monitor/monitor_state.h"

#include <gtest/gtest.h>

#include "actors/monitor/monitor.h"

namespace optlease {
namespace {

using Source = MonitorState::Source;

// A job of two ranks; `say` is one document of rank 0.
class MonitorStateTest : public testing::Test {
 protected:
  static std::string document(uint64_t incarnation, uint64_t sequence, uint32_t rank = 0,
                              const std::string& job = "job") {
    ActorTelemetry t;
    t.job = job;
    t.rank = rank;
    t.incarnation = incarnation;
    t.sequence = sequence;
    return to_json(t);
  }
  StatusCode say(uint64_t incarnation, uint64_t sequence, Source source = Source::kPublished) {
    return state_.on_frame(0, source, document(incarnation, sequence), ++now_ms_).code();
  }
  const RankView& rank() const { return state_.ranks()[0]; }

  MonitorState state_{"job", 2, 100, 200};
  int64_t now_ms_ = 0;
};

TEST_F(MonitorStateTest, CountsNoGapWhereNoneIs) {
  for (uint64_t sequence = 5; sequence < 10; ++sequence) {
    EXPECT_EQ(say(1, sequence), StatusCode::kOk);
  }
  EXPECT_EQ(rank().gaps, 0u);
  EXPECT_EQ(rank().last->sequence, 9u);
}

TEST_F(MonitorStateTest, CountsWhatIsMissingBetweenTwoPublications) {
  say(1, 7);
  say(1, 10);
  say(1, 11);
  say(1, 13);
  EXPECT_EQ(rank().gaps, 3u);
}

TEST_F(MonitorStateTest, ASnapshotIsNoBaseOfGaps) {
  EXPECT_EQ(say(1, 3, Source::kSnapshot), StatusCode::kOk);
  say(1, 20);  // the subscription became effective here
  EXPECT_EQ(rank().gaps, 0u);
  say(1, 22, Source::kSnapshot);
  say(1, 21);
  say(1, 22);
  EXPECT_EQ(rank().gaps, 0u);
}

TEST_F(MonitorStateTest, ANewIncarnationStartsANewCount) {
  say(1, 50);
  say(2, 4);
  say(2, 5);
  EXPECT_EQ(rank().gaps, 0u);
  EXPECT_EQ(rank().last->incarnation, 2u);
}

TEST_F(MonitorStateTest, ALateWordOfAReplacedActorIsIgnored) {
  say(2, 4);
  EXPECT_EQ(say(1, 51), StatusCode::kStaleStep);
  say(2, 5);
  EXPECT_EQ(rank().gaps, 0u);
  EXPECT_EQ(rank().last->sequence, 5u);
}

TEST_F(MonitorStateTest, ARepeatedDocumentIsASignOfLifeOnly) {
  say(1, 4);
  EXPECT_EQ(say(1, 4), StatusCode::kStaleStep);
  EXPECT_EQ(say(1, 3), StatusCode::kStaleStep);
  EXPECT_EQ(rank().last_ms, now_ms_);
  EXPECT_EQ(rank().gaps, 0u);
  say(1, 5);
  EXPECT_EQ(rank().gaps, 0u);
}

TEST_F(MonitorStateTest, BadDocumentsAreCountedAndChangeNothing) {
  say(1, 4);
  EXPECT_FALSE(state_.on_frame(0, Source::kPublished, "garbage", 99).is_ok());
  EXPECT_FALSE(state_.on_frame(0, Source::kPublished, document(1, 5, 1), 99).is_ok());
  EXPECT_FALSE(state_.on_frame(0, Source::kPublished, document(1, 5, 0, "other"), 99).is_ok());
  EXPECT_EQ(rank().bad_documents, 3u);
  EXPECT_EQ(rank().last->sequence, 4u);
  EXPECT_EQ(rank().last_ms, 1);
}

TEST_F(MonitorStateTest, ARankIsSilentAfterTwoSecondsOrFiveIntervals) {
  EXPECT_FALSE(state_.is_silent(rank(), 1000000));  // never heard is something else
  say(1, 1);
  EXPECT_FALSE(state_.is_silent(rank(), rank().last_ms + 2000));
  EXPECT_TRUE(state_.is_silent(rank(), rank().last_ms + 2001));
  MonitorState slow("job", 1, 100, 1000);
  ASSERT_TRUE(slow.on_frame(0, Source::kPublished, document(1, 1), 0).is_ok());
  EXPECT_FALSE(slow.is_silent(slow.ranks()[0], 5000));
  EXPECT_TRUE(slow.is_silent(slow.ranks()[0], 5001));
}

TEST_F(MonitorStateTest, CountsTheRanksItHasHeard) {
  EXPECT_EQ(state_.ranks_heard(), 0u);
  say(1, 1);
  EXPECT_EQ(state_.ranks_heard(), 1u);
}

TEST(JobLife, EndsWithItsPlanOrWithTheLauncherItHad) {
  JobLife by_hand;
  EXPECT_FALSE(by_hand.ended(true, false));
  EXPECT_TRUE(by_hand.ended(false, false));
  JobLife launched;
  EXPECT_FALSE(launched.ended(true, true));
  EXPECT_TRUE(launched.ended(true, false));
}

}  // namespace
}  // namespace optlease
