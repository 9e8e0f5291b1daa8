// The step coordinator, rule by rule.
#include "tests/host_store/coordinator_job.h"

namespace optlease {
namespace {

TEST_F(StepCoordinatorTest, FormsAGroupOnceEveryRankIsAttached) {
  start(facts(0));
  c().on_attached(Rank{0}, 0, false);
  EXPECT_EQ(kinds(), Kinds{});
  c().on_attached(Rank{1}, 0, false);
  EXPECT_EQ(kinds(), Kinds{Kind::kGroupFormed});
  EXPECT_EQ(actions_[0].group_epoch, (uint64_t{3} << 32) | 1);
  EXPECT_EQ(kinds(), Kinds{}) << "nothing is said twice";
}

TEST_F(StepCoordinatorTest, BreaksTheGroupWhenARankIsLostAndFormsAnotherWhenItIsBack) {
  start(facts(0));
  attach_all(0);
  kinds();
  c().on_lost(Rank{1});
  EXPECT_EQ(kinds(), Kinds{Kind::kGroupBroken});
  c().on_lost(Rank{1});
  EXPECT_EQ(kinds(), Kinds{}) << "a repeated loss is none";
  c().on_attached(Rank{1}, 0, false);
  EXPECT_EQ(kinds(), Kinds{Kind::kGroupFormed});
  EXPECT_EQ(actions_[0].group_epoch, (uint64_t{3} << 32) | 2) << "never repeated";
}

TEST_F(StepCoordinatorTest, FormsTheGroupAnewWhenAnAttachedRankSaysHelloAgain) {
  start(facts(0));
  attach_all(0);
  kinds();
  ready_all(1);
  EXPECT_EQ(kinds(), Kinds{Kind::kGoReduce});
  c().on_attached(Rank{0}, 0, true);
  EXPECT_EQ(kinds(), (Kinds{Kind::kGroupBroken, Kind::kGroupFormed, Kind::kGoReduce}))
      << "what it was ready for stays";
}

TEST_F(StepCoordinatorTest, InitialisesWithoutRecordsThenGathers) {
  start(facts(kNoStep));
  EXPECT_EQ(c().lease_step(), 0);
  attach_all(kNoStep);
  EXPECT_EQ(kinds(), Kinds{Kind::kGroupFormed});
  c().on_chunks(Rank{0}, 0, 2);
  c().on_chunks(Rank{1}, 0, 1);
  EXPECT_EQ(kinds(), Kinds{});
  c().on_chunks(Rank{1}, 0, 1);
  EXPECT_EQ(kinds(), (Kinds{Kind::kCommitStep, Kind::kGoGather}));
  EXPECT_EQ(actions_[1].needs, (std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(c().lease_step(), kNoStep);
}

TEST_F(StepCoordinatorTest, WalksOneWholeStep) {
  start(facts(0));
  attach_all(0);
  kinds();
  c().on_ready(Rank{0}, 1);
  EXPECT_EQ(kinds(), Kinds{});
  c().on_ready(Rank{1}, 1);
  EXPECT_EQ(kinds(), Kinds{Kind::kGoReduce});
  EXPECT_EQ(actions_[0].needs, (std::vector<uint8_t>{1, 1}));
  c().on_record(Rank{0}, 1, false);
  EXPECT_EQ(kinds(), Kinds{});
  EXPECT_EQ(c().lease_step(), kNoStep);
  c().on_record(Rank{1}, 1, false);
  EXPECT_EQ(kinds(), (Kinds{Kind::kStepOpen, Kind::kGoGather}));
  EXPECT_EQ(c().lease_step(), 1);
  c().on_chunks(Rank{0}, 1, 2);
  c().on_chunks(Rank{1}, 1, 2);
  EXPECT_EQ(kinds(), Kinds{Kind::kCommitStep});
  EXPECT_TRUE(c().on_published(Rank{0}, 1));
  c().on_ready(Rank{0}, 2);
  c().on_ready(Rank{1}, 2);
  EXPECT_EQ(kinds(), Kinds{}) << "a gather that somebody needs goes first";
  EXPECT_TRUE(c().on_published(Rank{1}, 1));
  EXPECT_EQ(kinds(), Kinds{Kind::kGoReduce});
}

TEST_F(StepCoordinatorTest, CommitsOnlyWhenEveryOlderIncarnationIsReaped) {
  start(facts(0));
  attach_all(0);
  EXPECT_EQ(open_step(1), (Kinds{Kind::kStepOpen, Kind::kGoGather}));
  c().on_older_reaped(Rank{1}, false);
  c().on_chunks(Rank{0}, 1, 2);
  c().on_chunks(Rank{1}, 1, 2);
  kinds();
  EXPECT_EQ(c().step_committed(), 0);
  c().on_older_reaped(Rank{1}, true);
  kinds();
  EXPECT_EQ(c().step_committed(), 1);
}

TEST_F(StepCoordinatorTest, ReducesOnlyWhenEveryOlderIncarnationIsReaped) {
  start(facts(0));
  attach_all(0);
  EXPECT_EQ(kinds(), Kinds{Kind::kGroupFormed});
  c().on_older_reaped(Rank{0}, false);
  ready_all(1);
  EXPECT_EQ(kinds(), Kinds{}) << "its gradient shard may still be written";
  c().on_older_reaped(Rank{0}, true);
  EXPECT_EQ(kinds(), Kinds{Kind::kGoReduce});
}

TEST_F(StepCoordinatorTest, VoidsTheRecordsOfAGroupThatEndedAndReducesAgainForAll) {
  start(facts(0));
  attach_all(0);
  ready_all(1);
  kinds();
  const uint64_t group = c().group_epoch();
  c().on_record(Rank{1}, 1, false);
  c().on_lost(Rank{0});
  c().on_attached(Rank{0}, kNoStep, false);
  EXPECT_EQ(kinds(),
            (Kinds{Kind::kGroupBroken, Kind::kVoidRecords, Kind::kGroupFormed, Kind::kGoGather}));
  EXPECT_EQ(actions_[1].step, 1);
  EXPECT_EQ(actions_[3].needs, (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(c().may_record(1, group).code(), StatusCode::kStaleStep) << "a late record";
  EXPECT_EQ(c().may_record(1, c().group_epoch()).code(), StatusCode::kStaleStep)
      << "nobody ordered a reduction in this group";
  EXPECT_TRUE(c().on_published(Rank{0}, 0));
  EXPECT_EQ(kinds(), Kinds{}) << "the new incarnation is not ready yet";
  c().on_ready(Rank{0}, 1);
  EXPECT_EQ(kinds(), Kinds{Kind::kGoReduce});
  EXPECT_EQ(actions_[0].needs, (std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(c().may_record(1, group).code(), StatusCode::kStaleStep);
  EXPECT_TRUE(c().may_record(1, c().group_epoch()));
}

TEST_F(StepCoordinatorTest, OpensAStepOfWhichAllRecordsAreDurableWhoeverIsLost) {
  start(facts(0));
  attach_all(0);
  ready_all(1);
  kinds();
  c().on_record(Rank{0}, 1, false);
  c().on_lost(Rank{0});
  c().on_record(Rank{1}, 1, false);
  EXPECT_EQ(kinds(), (Kinds{Kind::kStepOpen, Kind::kGroupBroken}));
  EXPECT_EQ(c().lease_step(), 1);
}

TEST_F(StepCoordinatorTest, VoidsAfterARestartTheRecordsOfAStepThatWasNotOpen) {
  CoordinatorFacts recovered = facts(4);
  recovered.ranks = {{2, 0, true, true}, {2, 0, false, false}};
  start(recovered);
  EXPECT_EQ(c().step_open(), kNoStep);
  EXPECT_EQ(kinds(), Kinds{Kind::kVoidRecords});
  EXPECT_EQ(actions_[0].step, 5);
  EXPECT_EQ(kinds(), Kinds{});
}

TEST_F(StepCoordinatorTest, FinishesAnOpenStepAfterARestartWithoutGroupOrGradients) {
  CoordinatorFacts recovered = facts(4);
  recovered.ranks = {{2, 2, true, false}, {2, 1, true, false}};
  start(recovered);
  EXPECT_EQ(c().step_open(), 5);
  EXPECT_EQ(c().chunks_done(Rank{1}), 1u);
  c().on_attached(Rank{1}, 4, false);
  c().on_chunks(Rank{1}, 5, 1);
  EXPECT_EQ(kinds(), Kinds{Kind::kCommitStep});
}

TEST_F(StepCoordinatorTest, AppliesASkippedStepOnceAndAgainAfterARestart) {
  start(facts(0));
  attach_all(0);
  kinds();
  EXPECT_EQ(open_step(1, true),
            (Kinds{Kind::kStepOpen, Kind::kApplySkip, Kind::kCommitStep, Kind::kGoGather}));
  CoordinatorFacts recovered = facts(4);
  recovered.ranks = {{2, 2, true, true}, {2, 1, true, true}};
  start(recovered);
  EXPECT_EQ(c().lease_step(), kNoStep) << "a skipped step has nothing to write";
  EXPECT_EQ(kinds(), (Kinds{Kind::kApplySkip, Kind::kCommitStep}));
}

TEST_F(StepCoordinatorTest, DoesNotGatherTheCommittedStepWhileTheNextIsOpen) {
  start(facts(0));
  attach_all(0);
  open_step(1);
  c().on_lost(Rank{0});
  c().on_attached(Rank{0}, kNoStep, false);
  EXPECT_EQ(kinds(), (Kinds{Kind::kGroupBroken, Kind::kGroupFormed, Kind::kGoGather}));
  EXPECT_EQ(actions_[2].step, 1);
}

TEST_F(StepCoordinatorTest, RefusesWhatBelongsToAnotherStep) {
  start(facts(4));
  EXPECT_EQ(c().check_ready(4).code(), StatusCode::kStaleStep);
  EXPECT_EQ(c().check_ready(6).code(), StatusCode::kStaleStep);
  EXPECT_EQ(c().may_record(4, 0).code(), StatusCode::kStaleStep);
  EXPECT_EQ(c().may_record(6, 0).code(), StatusCode::kStaleStep);
  EXPECT_EQ(c().on_published(Rank{0}, 3).code(), StatusCode::kStaleStep);
  EXPECT_EQ(c().on_published(Rank{0}, 5).code(), StatusCode::kStaleStep);
  start(facts(kNoStep));
  EXPECT_EQ(c().check_ready(0).code(), StatusCode::kStaleStep);
  EXPECT_EQ(c().on_published(Rank{0}, kNoStep).code(), StatusCode::kStaleStep);
}

TEST_F(StepCoordinatorTest, GrantsAHoldAtTheBoundaryAndReducesNothingUntilItEnds) {
  start(facts(0));
  attach_all(0);
  kinds();
  ready_all(1);
  EXPECT_EQ(kinds(), Kinds{Kind::kGoReduce});
  const uint64_t hold = c().hold(100, 0);
  EXPECT_EQ(kinds(), Kinds{}) << "the step is being reduced";
  record_all(1);
  EXPECT_EQ(kinds(1), (Kinds{Kind::kStepOpen, Kind::kGoGather}));
  c().on_chunks(Rank{0}, 1, 2);
  c().on_chunks(Rank{1}, 1, 2);
  EXPECT_EQ(kinds(1), (Kinds{Kind::kCommitStep, Kind::kHoldGranted}));
  EXPECT_EQ(actions_[1].step, 1);
  EXPECT_TRUE(c().on_published(Rank{0}, 1));
  EXPECT_TRUE(c().on_published(Rank{1}, 1));
  ready_all(2);
  EXPECT_EQ(kinds(2), Kinds{});
  EXPECT_EQ(c().may_record(2, c().group_epoch()).code(), StatusCode::kStaleStep);
  EXPECT_TRUE(c().renew_hold(hold, 100, 50));
  EXPECT_EQ(c().next_deadline_ms(), 150u);
  EXPECT_EQ(kinds(149), Kinds{});
  EXPECT_EQ(kinds(150), (Kinds{Kind::kHoldEnded, Kind::kGoReduce}));
  EXPECT_EQ(c().renew_hold(hold, 100, 151).code(), StatusCode::kNotFound);
}

TEST_F(StepCoordinatorTest, ReducesAgainWhenAHoldIsReleased) {
  start(facts(0));
  attach_all(0);
  const uint64_t hold = c().hold(100, 0);
  EXPECT_EQ(kinds(), (Kinds{Kind::kGroupFormed, Kind::kHoldGranted}));
  ready_all(1);
  EXPECT_EQ(kinds(), Kinds{});
  EXPECT_TRUE(c().release_hold(hold));
  EXPECT_EQ(c().release_hold(hold).code(), StatusCode::kNotFound);
  EXPECT_EQ(kinds(), Kinds{Kind::kGoReduce});
}

TEST_F(StepCoordinatorTest, StopsAtTheBoundaryOnceItsParametersAreGathered) {
  start(facts(0));
  attach_all(0);
  open_step(1);
  c().stop(1000, 0);
  EXPECT_EQ(kinds(1), Kinds{});
  c().on_chunks(Rank{0}, 1, 2);
  c().on_chunks(Rank{1}, 1, 2);
  EXPECT_EQ(kinds(2), Kinds{Kind::kCommitStep});
  ASSERT_TRUE(c().on_published(Rank{0}, 1));
  ASSERT_TRUE(c().on_published(Rank{1}, 1));
  ready_all(2);
  EXPECT_EQ(kinds(3), Kinds{Kind::kStop});
  EXPECT_EQ(actions_[0].step, 1);
  EXPECT_EQ(kinds(4), Kinds{}) << "it stops once";
}

TEST_F(StepCoordinatorTest, StopsInTheMiddleOfAStepWhenItsTimeIsOver) {
  start(facts(0));
  attach_all(0);
  open_step(1);
  c().stop(1000, 5);
  c().stop(9000, 6);
  EXPECT_EQ(c().next_deadline_ms(), 1005u) << "the first stop counts";
  EXPECT_EQ(kinds(1004), Kinds{});
  EXPECT_EQ(kinds(1005), Kinds{Kind::kStop});
}

TEST_F(StepCoordinatorTest, StopsAtOnceWhereNobodyIsAttachedAndNothingIsOpen) {
  start(facts(kNoStep));
  c().stop(1000, 0);
  EXPECT_EQ(kinds(), Kinds{Kind::kStop});
}

}  // namespace
}  // namespace optlease
