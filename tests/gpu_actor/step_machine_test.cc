// The actor's decisions, without sockets, clocks or streams.
#include "tests/gpu_actor/machine_rank.h"

namespace optlease {
namespace {

TEST_F(MachineTest, DoesNothingBeforeItIsAttached) {
  make(true);
  EXPECT_TRUE(turn().empty());
  EXPECT_EQ(machine->phase(), Phase::kStarting);
}

TEST_F(MachineTest, InitialisesOnlyTheChunksThatWereNeverWritten) {
  make(false);
  versions = {0, kNoStep, 0};
  machine->on_welcome(kNoStep, kNoStep);
  const auto actions = turn();
  const NextAction* run = find(actions, Kind::kStartRun);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->run, RunKind::kInitialise);
  EXPECT_EQ(run->chunks, std::vector<uint32_t>{1});
  EXPECT_EQ(find(turn(), Kind::kStartRun), nullptr) << "a run was started twice";
}

TEST_F(MachineTest, ARestartedActorFinishesTheOpenStepWithoutGradientsOrGroup) {
  make(false);
  versions = {5, 4, 4};
  machine->on_welcome(4, 5);
  const auto actions = turn();
  const NextAction* run = find(actions, Kind::kStartRun);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->run, RunKind::kUpdate);
  EXPECT_EQ(run->step, 5);
  EXPECT_EQ(run->chunks, (std::vector<uint32_t>{1, 2}));
  EXPECT_FALSE(machine->quiet());
}

// Reading the shards through takes long: it is something to do, and not part of starting the run.
TEST_F(MachineTest, AnUpdateWhoseSumsAnotherIncarnationLeftStartsOnceTheyAreChecked) {
  make(false);
  versions = {4, 4, 4};
  unchecked_step = 5;
  machine->on_welcome(4, 5);
  const auto actions = turn();
  const NextAction* check = find(actions, Kind::kCheckSums);
  ASSERT_NE(check, nullptr);
  EXPECT_EQ(check->step, 5);
  EXPECT_EQ(find(actions, Kind::kStartRun), nullptr) << "started from sums that nobody checked";
  EXPECT_EQ(machine->phase(), Phase::kStream);
  machine->on_detached();  // the store may die meanwhile: the reading goes on
  EXPECT_TRUE(turn().empty());
  machine->on_welcome(4, 5);
  machine->on_group_formed(8);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(turn().empty()) << "it was told to check them already";
  unchecked_step = kNoStep;
  const auto next = turn();
  const NextAction* run = find(next, Kind::kStartRun);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->run, RunKind::kUpdate);
  EXPECT_EQ(find(next, Kind::kCheckSums), nullptr);
}

TEST_F(MachineTest, ChecksNoSumsThatNothingIsLeftToUpdateWith) {
  make(false);
  versions = {5, 5, 5};
  unchecked_step = 5;
  machine->on_welcome(4, 5);
  EXPECT_EQ(find(turn(), Kind::kCheckSums), nullptr);
}

TEST_F(MachineTest, RepublishesWhatItDidNotWriteItselfUnderTheGather) {
  make(false);
  versions = {5, 5, 5};
  published = {kNoStep, 5, kNoStep};
  machine->on_welcome(5, kNoStep);
  machine->on_group_formed(3);
  machine->on_order(order(true, 5));
  const auto actions = turn();
  const NextAction* run = find(actions, Kind::kStartRun);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->run, RunKind::kRepublish);
  EXPECT_EQ(run->chunks, (std::vector<uint32_t>{0, 2}));
  EXPECT_NE(find(actions, Kind::kRunCollective), nullptr);
  EXPECT_LT(run, find(actions, Kind::kRunCollective)) << "what it sends is told by the run";
  EXPECT_EQ(machine->phase(), Phase::kGather);
}

TEST_F(MachineTest, RepeatsReadyUntilTheOrderComes) {
  make(false);
  settle(4);
  EXPECT_TRUE(machine->quiet());
  machine->on_gradients(5);
  EXPECT_FALSE(machine->quiet());
  EXPECT_NE(find(turn(), Kind::kSendReady), nullptr);
  EXPECT_EQ(find(machine->next(now_ms + 1), Kind::kSendReady), nullptr) << "repeated at once";
  EXPECT_NE(find(turn(), Kind::kSendReady), nullptr);
  machine->on_order(order(false, 5));
  const auto actions = turn();
  EXPECT_EQ(find(actions, Kind::kSendReady), nullptr);
  EXPECT_NE(find(actions, Kind::kRunCollective), nullptr);
}

TEST_F(MachineTest, SaysReadyAgainAfterTheGroupBroke) {
  make(false);
  settle(4);
  machine->on_gradients(5);
  turn();
  machine->on_order(order(false, 5));
  ASSERT_NE(find(turn(), Kind::kRunCollective), nullptr);
  machine->on_group_broken(7);
  machine->on_collective_failed();
  EXPECT_NE(find(turn(), Kind::kSendReady), nullptr);
}

TEST_F(MachineTest, IgnoresOrdersAndResultsOfAGroupThatIsGone) {
  make(false);
  settle(4);
  machine->on_gradients(5);
  machine->on_group_broken(7);
  machine->on_order({false, 7, 5, {1, 1}});
  EXPECT_EQ(find(turn(), Kind::kRunCollective), nullptr);
  machine->on_group_formed(8);
  machine->on_reduced(7, 5);
  EXPECT_EQ(find(turn(), Kind::kSendRecord), nullptr) << "a record of a broken group was sent";
}

TEST_F(MachineTest, RepeatsTheRecordUntilTheStepIsOpenAndThenStreams) {
  make(false);
  settle(4);
  machine->on_gradients(5);
  machine->on_order(order(false, 5));
  turn();
  machine->on_reduced(7, 5);
  EXPECT_NE(find(turn(), Kind::kSendRecord), nullptr);
  EXPECT_NE(find(turn(), Kind::kSendRecord), nullptr);
  EXPECT_EQ(machine->phase(), Phase::kWaitOpen);
  machine->on_step_open(5);
  const auto actions = turn();
  EXPECT_EQ(find(actions, Kind::kSendRecord), nullptr);
  ASSERT_NE(find(actions, Kind::kStartRun), nullptr);
  EXPECT_EQ(machine->phase(), Phase::kStream);
}

TEST_F(MachineTest, AGroupThatEndsBeforeTheStepIsOpenVoidsItsRecord) {
  make(false);
  settle(4);
  machine->on_gradients(5);
  machine->on_order(order(false, 5));
  turn();
  machine->on_reduced(7, 5);
  ASSERT_NE(find(turn(), Kind::kSendRecord), nullptr);
  machine->on_group_formed(8);
  const auto actions = turn();
  EXPECT_EQ(find(actions, Kind::kSendRecord), nullptr);
  EXPECT_NE(find(actions, Kind::kSendReady), nullptr);
}

TEST_F(MachineTest, ASkippedStepStreamsNothing) {
  make(false);
  settle(4);
  skipped_step = 5;
  machine->on_gradients(5);
  machine->on_step_open(5);
  EXPECT_EQ(find(turn(), Kind::kStartRun), nullptr);
}

TEST_F(MachineTest, FillsItsOwnGradientsOnceAStepAndStopsAfterTheLast) {
  make(true, 5);
  settle(4);
  auto actions = turn();
  const NextAction* fill = find(actions, Kind::kFillGradients);
  ASSERT_NE(fill, nullptr);
  EXPECT_EQ(fill->step, 5);
  EXPECT_EQ(find(turn(), Kind::kFillGradients), nullptr);
  machine->on_gradients(5);
  machine->on_step_open(5);
  turn();
  finish_run(5);
  machine->on_step_committed(5);
  machine->on_order(order(true, 5));
  ASSERT_NE(find(turn(), Kind::kRunCollective), nullptr);
  machine->on_gathered(7, 5);
  EXPECT_EQ(find(turn(), Kind::kFillGradients), nullptr) << "went past the last step";
  EXPECT_EQ(machine->published(), 5);
}

TEST_F(MachineTest, DoesNotReduceWhileItStillFillsItsBuffer) {
  make(true);
  settle(4);
  ASSERT_NE(find(turn(), Kind::kFillGradients), nullptr);
  machine->on_order(order(false, 5));
  EXPECT_EQ(find(turn(), Kind::kRunCollective), nullptr);
  machine->on_gradients(5);
  EXPECT_NE(find(turn(), Kind::kRunCollective), nullptr);
}

TEST_F(MachineTest, NothingStartsWhileDetached) {
  make(true);
  settle(4);
  machine->on_detached();
  EXPECT_TRUE(turn().empty());
  machine->on_welcome(4, kNoStep);
  EXPECT_FALSE(turn().empty());
}

}  // namespace
}  // namespace optlease
