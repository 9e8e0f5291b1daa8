// What the coordinator allows before a step is open, and between its gather and its commit.
#include "tests/host_store/coordinator_job.h"

namespace optlease {
namespace {

TEST_F(StepCoordinatorTest, LeasesTheStepAtWorkBeforeItIsOpenAndNoOther) {
  start(facts(kNoStep));
  EXPECT_TRUE(c().may_lease(0));
  EXPECT_FALSE(c().may_lease(1));
  EXPECT_FALSE(c().may_lease(kNoStep));
  start(facts(4));
  EXPECT_TRUE(c().may_lease(5)) << "to be read ahead";
  EXPECT_EQ(c().lease_step(), kNoStep) << "and not to be committed";
  EXPECT_FALSE(c().may_lease(4));
  EXPECT_FALSE(c().may_lease(6));
  attach_all(4);
  open_step(5);
  EXPECT_TRUE(c().may_lease(5));
  EXPECT_FALSE(c().may_lease(6)) << "its state is not there before step 5 is committed";
  start(facts(4));
  attach_all(4);
  open_step(5, /*skipped=*/true);
  EXPECT_EQ(c().step_committed(), 5);
  EXPECT_TRUE(c().may_lease(6));
  EXPECT_FALSE(c().may_lease(5));
}

TEST_F(StepCoordinatorTest, OrdersTheGatherOfAStepWithItsOpening) {
  start(facts(0));
  attach_all(0);
  EXPECT_FALSE(c().on_published(Rank{0}, 1)) << "it is not open";
  EXPECT_EQ(open_step(1), (Kinds{Kind::kStepOpen, Kind::kGoGather}));
  EXPECT_EQ(actions_[1].step, 1);
  EXPECT_EQ(actions_[1].group_epoch, c().group_epoch());
  EXPECT_EQ(actions_[1].needs, (std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(kinds(), Kinds{}) << "ordered once";
  EXPECT_TRUE(c().on_published(Rank{0}, 1));
  EXPECT_EQ(c().step_committed(), 0);
  c().on_chunks(Rank{0}, 1, 2);
  c().on_chunks(Rank{1}, 1, 2);
  EXPECT_EQ(kinds(), Kinds{Kind::kCommitStep}) << "the gather under way is the committed step's";
  ready_all(2);
  EXPECT_EQ(kinds(), Kinds{}) << "rank 1 has not published";
  EXPECT_TRUE(c().on_published(Rank{1}, 1));
  EXPECT_EQ(kinds(), Kinds{Kind::kGoReduce});
}

TEST_F(StepCoordinatorTest, TheNextStepWaitsForTheCommitOfOneThatIsPublished) {
  start(facts(0));
  attach_all(0);
  open_step(1);
  for (uint32_t r = 0; r < 2; ++r) EXPECT_TRUE(c().on_published(Rank{r}, 1));
  EXPECT_FALSE(c().check_ready(2));
  EXPECT_EQ(c().hold(1000, 0), (uint64_t{3} << 32) + 1);
  EXPECT_EQ(kinds(), Kinds{}) << "nor is a hold granted before it";
  c().on_chunks(Rank{0}, 1, 2);
  c().on_chunks(Rank{1}, 1, 2);
  EXPECT_EQ(kinds(), (Kinds{Kind::kCommitStep, Kind::kHoldGranted}));
  EXPECT_TRUE(c().check_ready(2));
}

// The trainers of the others have their answer; the state of the dead one is finished by its
// successor, and only that one needs parameters.
TEST_F(StepCoordinatorTest, ARankThatDiesBetweenAnswerAndCommitAloneIsGatheredAgain) {
  start(facts(0));
  attach_all(0);
  open_step(1);
  for (uint32_t r = 0; r < 2; ++r) EXPECT_TRUE(c().on_published(Rank{r}, 1));
  c().on_chunks(Rank{0}, 1, 2);
  c().on_chunks(Rank{1}, 1, 1);
  c().on_lost(Rank{1});
  EXPECT_EQ(kinds(), Kinds{Kind::kGroupBroken});
  c().on_attached(Rank{1}, kNoStep, false);
  EXPECT_EQ(kinds(), (Kinds{Kind::kGroupFormed, Kind::kGoGather}));
  EXPECT_EQ(actions_[1].step, 1);
  EXPECT_EQ(actions_[1].needs, (std::vector<uint8_t>{0, 1}));
  c().on_chunks(Rank{1}, 1, 1);
  EXPECT_EQ(kinds(), Kinds{Kind::kCommitStep}) << "its gather goes on as the committed step's";
}

TEST_F(StepCoordinatorTest, EachGroupThatIsFormedWhileAStepIsOpenGathersItFromTheStart) {
  start(facts(0));
  attach_all(0);
  ready_all(1);
  kinds();
  const uint64_t first = c().group_epoch();
  record_all(1);
  c().on_lost(Rank{0});
  EXPECT_EQ(kinds(), (Kinds{Kind::kStepOpen, Kind::kGroupBroken})) << "nobody is left to gather";
  c().on_attached(Rank{0}, kNoStep, false);
  EXPECT_EQ(kinds(), (Kinds{Kind::kGroupFormed, Kind::kGoGather}));
  EXPECT_GT(actions_[1].group_epoch, first);
  EXPECT_EQ(actions_[1].needs, (std::vector<uint8_t>{1, 1}));
  EXPECT_TRUE(c().on_published(Rank{1}, 1));
  c().on_attached(Rank{0}, kNoStep, true);  // its collectives failed
  EXPECT_EQ(kinds(), (Kinds{Kind::kGroupBroken, Kind::kGroupFormed, Kind::kGoGather}));
  EXPECT_EQ(actions_[2].needs, (std::vector<uint8_t>{1, 0}));
}

TEST_F(StepCoordinatorTest, ASkippedStepIsGatheredOnlyOnceItIsCommitted) {
  start(facts(0));
  c().on_attached(Rank{0}, 0, false);
  c().on_attached(Rank{1}, 0, false);
  kinds();
  c().on_older_reaped(Rank{1}, true);
  ready_all(1);
  kinds();
  c().on_older_reaped(Rank{1}, false);
  record_all(1, /*skipped=*/true);
  EXPECT_EQ(kinds(), (Kinds{Kind::kStepOpen, Kind::kApplySkip}));
  c().on_older_reaped(Rank{1}, true);
  EXPECT_EQ(kinds(), (Kinds{Kind::kCommitStep, Kind::kGoGather}));
}

TEST_F(StepCoordinatorTest, AStoreThatRestartsBetweenAnswerAndCommitGathersNothingAgain) {
  CoordinatorFacts recovered = facts(4);
  recovered.ranks = {{2, 2, true, false}, {2, 1, true, false}};
  start(recovered);
  attach_all(5);  // both hold the open step's parameters
  EXPECT_EQ(kinds(), Kinds{Kind::kGroupFormed});
  c().on_chunks(Rank{1}, 5, 1);
  EXPECT_EQ(kinds(), Kinds{Kind::kCommitStep});
  ready_all(6);
  EXPECT_EQ(kinds(), Kinds{Kind::kGoReduce});
}

TEST_F(StepCoordinatorTest, NobodyHoldsTheParametersOfAStepThatIsNotOpen) {
  start(facts(4));
  attach_all(5);
  EXPECT_EQ(kinds(), Kinds{Kind::kGroupFormed});
  EXPECT_FALSE(c().on_published(Rank{0}, 5));
}

}  // namespace
}  // namespace optlease
