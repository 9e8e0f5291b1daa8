// What the actor decides to do before a step is open, and between its answer and its commit.
#include "tests/gpu_actor/machine_rank.h"

namespace optlease {
namespace {

TEST_F(MachineTest, PrefetchesWhenGradientsAreComingAndHandsOverToTheRun) {
  make(false);
  settle(4);
  EXPECT_EQ(find(turn(), Kind::kPrefetch), nullptr) << "nobody said that gradients are coming";
  machine->on_prepare(5);
  auto actions = turn();
  const NextAction* prefetch = find(actions, Kind::kPrefetch);
  ASSERT_NE(prefetch, nullptr);
  EXPECT_EQ(prefetch->step, 5);
  EXPECT_EQ(prefetch->chunks, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_TRUE(machine->quiet()) << "a trainer may attach, or end";
  EXPECT_EQ(machine->phase(), Phase::kIdle);
  EXPECT_TRUE(turn().empty()) << "prefetched twice";
  machine->on_gradients(5);
  machine->on_order(order(false, 5));
  turn();
  machine->on_reduced(7, 5);
  machine->on_step_open(5);
  actions = turn();
  EXPECT_EQ(find(actions, Kind::kEndPrefetch), nullptr);
  EXPECT_NE(find(actions, Kind::kStartRun), nullptr);
}

TEST_F(MachineTest, PrefetchesForARequestThatNobodyPrepared) {
  make(false);
  settle(4);
  machine->on_gradients(5);
  EXPECT_NE(find(turn(), Kind::kPrefetch), nullptr) << "the reduction takes its time";
}

TEST_F(MachineTest, PreparesItselfBeforeItFillsItsOwnGradients) {
  make(true, 5);
  settle(4);
  const auto actions = turn();
  const NextAction* prefetch = find(actions, Kind::kPrefetch);
  const NextAction* fill = find(actions, Kind::kFillGradients);
  ASSERT_TRUE(prefetch != nullptr && fill != nullptr);
  EXPECT_LT(prefetch, fill);
}

TEST_F(MachineTest, PreparesNothingPastTheLastStepOrOfAnotherStep) {
  make(false, 4);
  settle(4);
  machine->on_prepare(5);
  EXPECT_EQ(find(turn(), Kind::kPrefetch), nullptr);
  make(false);
  settle(4);
  machine->on_prepare(6);
  EXPECT_EQ(find(turn(), Kind::kPrefetch), nullptr);
  machine->on_prepare(4);
  EXPECT_EQ(find(turn(), Kind::kPrefetch), nullptr);
}

TEST_F(MachineTest, EndsAPrefetchWhoseTrainerIsGone) {
  make(false);
  settle(4);
  machine->on_prepare(5);
  ASSERT_NE(find(turn(), Kind::kPrefetch), nullptr);
  machine->on_prepare(kNoStep);
  EXPECT_NE(find(turn(), Kind::kEndPrefetch), nullptr);
  EXPECT_TRUE(turn().empty());
  machine->on_prepare(5);
  EXPECT_NE(find(turn(), Kind::kPrefetch), nullptr) << "its next life";
}

TEST_F(MachineTest, EndsThePrefetchOfASkippedStepAlsoWhenItIsCommittedAtOnce) {
  for (const bool committed_at_once : {false, true}) {
    make(false);
    settle(4);
    skipped_step = 5;
    machine->on_prepare(5);
    machine->on_gradients(5);
    ASSERT_NE(find(turn(), Kind::kPrefetch), nullptr);
    machine->on_step_open(5);
    if (committed_at_once) machine->on_step_committed(5);
    const auto actions = turn();
    EXPECT_NE(find(actions, Kind::kEndPrefetch), nullptr);
    const NextAction* run = find(actions, Kind::kStartRun);
    EXPECT_TRUE(run == nullptr || run->run == RunKind::kRepublish);
  }
}

TEST_F(MachineTest, PrefetchesAgainAfterItAttachedAgain) {
  make(false);
  settle(4);
  machine->on_prepare(5);
  ASSERT_NE(find(turn(), Kind::kPrefetch), nullptr);
  machine->on_detached();
  machine->on_welcome(4, kNoStep);
  const auto actions = turn();
  EXPECT_EQ(find(actions, Kind::kEndPrefetch), nullptr)
      << "the pipeline dropped it when it drained";
  EXPECT_NE(find(actions, Kind::kPrefetch), nullptr);
}

TEST_F(MachineTest, AGroupThatBreaksLeavesThePrefetchAlone) {
  make(false);
  settle(4);
  machine->on_prepare(5);
  ASSERT_NE(find(turn(), Kind::kPrefetch), nullptr);
  machine->on_group_broken(7);
  machine->on_group_formed(8);
  EXPECT_EQ(find(turn(), Kind::kEndPrefetch), nullptr) << "the state of step 4 is what it was";
}

TEST_F(MachineTest, TheGatherOfAnOpenStepStartsWithItsWindows) {
  make(false);
  settle(4);
  machine->on_gradients(5);
  machine->on_step_open(5);
  machine->on_order(order(true, 5));
  const auto actions = turn();
  ASSERT_NE(find(actions, Kind::kStartRun), nullptr);
  const NextAction* gather = find(actions, Kind::kRunCollective);
  ASSERT_NE(gather, nullptr) << "it waits for the windows itself, piece by piece";
  EXPECT_EQ(gather->step, 5);
  EXPECT_LT(find(actions, Kind::kStartRun), gather);
  EXPECT_TRUE(machine->gathering());
  EXPECT_EQ(machine->phase(), Phase::kStream) << "hidden under windows it is no phase";
  machine->on_run_computed();
  EXPECT_EQ(machine->phase(), Phase::kGather);
  machine->on_gathered(7, 5);
  EXPECT_FALSE(machine->gathering());
  EXPECT_EQ(machine->published(), 5);
  EXPECT_EQ(machine->committed(), 4);
  EXPECT_EQ(machine->phase(), Phase::kStream) << "the last windows are written back";
  EXPECT_FALSE(machine->quiet()) << "a restarted trainer waits for the commit";
  EXPECT_TRUE(turn().empty());
  finish_run(5);
  EXPECT_EQ(machine->phase(), Phase::kWaitCommitted);
  machine->on_step_committed(5);
  EXPECT_TRUE(machine->quiet());
}

// Its windows are committed while slower ranks still send.
TEST_F(MachineTest, AGatherGoesOnBeyondTheCommitOfItsStep) {
  make(true);
  settle(4);
  machine->on_gradients(5);
  machine->on_step_open(5);
  machine->on_order(order(true, 5));
  ASSERT_NE(find(turn(), Kind::kRunCollective), nullptr);
  finish_run(5);
  EXPECT_EQ(machine->phase(), Phase::kGather);
  machine->on_step_committed(5);
  EXPECT_EQ(machine->phase(), Phase::kGather);
  EXPECT_FALSE(machine->quiet());
  EXPECT_EQ(find(turn(), Kind::kFillGradients), nullptr) << "its thread still gathers";
  machine->on_gathered(7, 5);
  EXPECT_TRUE(machine->quiet());
  EXPECT_NE(find(turn(), Kind::kFillGradients), nullptr);
}

TEST_F(MachineTest, TheNextGroupGathersTheOpenStepFromTheStart) {
  make(false);
  settle(4);
  machine->on_gradients(5);
  machine->on_step_open(5);
  machine->on_order(order(true, 5));
  ASSERT_NE(find(turn(), Kind::kRunCollective), nullptr);
  machine->on_group_broken(7);
  machine->on_group_formed(8);
  machine->on_order(order(true, 5));
  EXPECT_EQ(find(turn(), Kind::kRunCollective), nullptr) << "the first has not ended yet";
  machine->on_gathered(7, 5);  // it was just through when its group broke
  EXPECT_EQ(machine->published(), 4) << "others of that group may not have been";
  const auto actions = turn();
  const NextAction* again = find(actions, Kind::kRunCollective);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->order.group_epoch, 8u);
  machine->on_collective_failed();
  EXPECT_FALSE(machine->gathering());
  EXPECT_EQ(find(turn(), Kind::kRunCollective), nullptr) << "nobody ordered another";
}

TEST_F(MachineTest, ASuccessorGathersWhileItUpdatesAndPublishesWhatWasCommittedBefore) {
  make(false);
  versions = {5, 4, 4};
  machine->on_welcome(4, 5);
  machine->on_group_formed(8);
  machine->on_order(order(true, 5));
  auto actions = turn();
  ASSERT_NE(find(actions, Kind::kStartRun), nullptr);
  EXPECT_EQ(find(actions, Kind::kStartRun)->chunks, (std::vector<uint32_t>{1, 2}));
  EXPECT_NE(find(actions, Kind::kRunCollective), nullptr);
  finish_run(5);
  published[0] = kNoStep;
  EXPECT_TRUE(turn().empty()) << "published again once no step is open";
  machine->on_step_committed(5);
  actions = turn();
  ASSERT_NE(find(actions, Kind::kStartRun), nullptr);
  EXPECT_EQ(find(actions, Kind::kStartRun)->run, RunKind::kRepublish);
  EXPECT_EQ(find(actions, Kind::kStartRun)->chunks, std::vector<uint32_t>{0});
  EXPECT_TRUE(machine->gathering()) << "it has waited for chunk 0 all the time";
}

TEST_F(MachineTest, GathersAgainForAStoreThatRestarted) {
  make(false);
  settle(4);
  machine->on_gradients(5);
  machine->on_step_open(5);
  machine->on_order(order(true, 5));
  ASSERT_NE(find(turn(), Kind::kRunCollective), nullptr);
  machine->on_detached();
  machine->on_run_over();
  machine->on_collective_failed();
  machine->on_welcome(4, 5);
  EXPECT_NE(find(turn(), Kind::kStartRun), nullptr) << "what is not committed is done again";
  machine->on_group_formed(1000);
  machine->on_order(order(true, 5));
  EXPECT_NE(find(turn(), Kind::kRunCollective), nullptr);
}

TEST_F(MachineTest, ARankWithoutChunksGathersAtOnce) {
  make(false);
  versions.clear();
  published.clear();
  settle(4);
  machine->on_gradients(5);
  machine->on_step_open(5);
  machine->on_order(order(true, 5));
  EXPECT_NE(find(turn(), Kind::kRunCollective), nullptr);
  EXPECT_EQ(machine->phase(), Phase::kGather);
}

}  // namespace
}  // namespace optlease
