#include "launcher/rank_lives.h"

#include <gtest/gtest.h>

namespace optlease {
namespace {

LifeTotals life(uint64_t in, uint64_t out, Step last_step, std::vector<double> seconds) {
  LifeTotals totals;
  totals.bytes_h2d = in;
  totals.bytes_d2h = out;
  totals.bytes_bounced = 3;
  totals.pin_refused_bytes = in;
  totals.leases_deferred = 2;
  totals.credit_wait_seconds = 0.5;
  totals.staging_known = true;
  totals.staging_bytes = in;
  totals.staging_budget_bytes = 1000;
  totals.last_step = last_step;
  totals.step_seconds = std::move(seconds);
  return totals;
}

ActorTelemetry answer(uint64_t incarnation, uint64_t in) {
  ActorTelemetry told;
  told.incarnation = incarnation;
  told.h2d_bytes_total = in;
  told.staging_peak_bytes = 5;
  told.staging_budget_bytes = 6;
  return told;
}

TEST(RankLives, SumsWhatEveryLifeDid) {
  const RankLives rank =
      lives_of({{1, life(10, 20, 4, {1, 2})}, {3, life(100, 200, 9, {3})}}, {{3, answer(3, 60)}});
  EXPECT_EQ(rank.bytes_h2d, 110u) << "an answer that is older than the page adds nothing";
  EXPECT_EQ(rank.bytes_d2h, 220u);
  EXPECT_TRUE(rank.bytes_are_exact);
  EXPECT_EQ(rank.bytes_bounced, 6u);
  EXPECT_EQ(rank.pin_refused_bytes, 100u) << "the last life's";
  EXPECT_EQ(rank.leases_deferred, 4u);
  EXPECT_EQ(rank.credit_wait_seconds, 1.0);
  EXPECT_TRUE(rank.staging_known);
  EXPECT_EQ(rank.staging_peak_bytes, 100u);
  EXPECT_EQ(rank.staging_budget_bytes, 1000u);
  EXPECT_EQ(rank.last_step, 9);
  EXPECT_EQ(rank.step_seconds, (std::vector<double>{1, 2, 3}));
  ASSERT_TRUE(rank.last.has_value());
  EXPECT_EQ(rank.last->incarnation, 3u);
}

TEST(RankLives, TakesTheLastAnswerOfALifeWithoutAPageAndSaysSo) {
  const RankLives rank = lives_of({{2, life(100, 200, 9, {3})}}, {{1, answer(1, 60)}});
  EXPECT_EQ(rank.bytes_h2d, 160u);
  EXPECT_FALSE(rank.bytes_are_exact);
  EXPECT_EQ(rank.staging_budget_bytes, 1000u);
}

TEST(RankLives, SaysThatALifeIsMissingOfWhichNothingIsKnown) {
  const RankLives rank = lives_of({{1, std::nullopt}, {2, life(100, 200, 9, {3})}}, {});
  EXPECT_EQ(rank.bytes_h2d, 100u);
  EXPECT_FALSE(rank.bytes_are_exact);
}

TEST(RankLives, KeepsTheLatestStepsOfAllLives) {
  std::vector<double> first(kStepTimesMax, 1.0), second(10, 2.0);
  const RankLives rank = lives_of({{1, life(0, 0, 5, first)}, {2, life(0, 0, 6, second)}}, {});
  ASSERT_EQ(rank.step_seconds.size(), kStepTimesMax);
  EXPECT_EQ(rank.step_seconds[kStepTimesMax - 11], 1.0);
  EXPECT_EQ(rank.step_seconds[kStepTimesMax - 10], 2.0);
}

TEST(RankLives, OfNobodyAreZeroAndNotMeasured) {
  const RankLives rank = lives_of({}, {});
  EXPECT_EQ(rank.bytes_h2d, 0u);
  EXPECT_TRUE(rank.bytes_are_exact);
  EXPECT_FALSE(rank.staging_known);
  EXPECT_EQ(rank.last_step, kNoStep);
  EXPECT_FALSE(rank.last.has_value());
}

}  // namespace
}  // namespace optlease
