#include "launcher/rehearsals.h"

#include <gtest/gtest.h>

namespace optlease {
namespace {

constexpr Seat kActor0{Role::kGpuActor, 0};
constexpr Seat kActor1{Role::kGpuActor, 1};
constexpr Seat kStore{Role::kHostStore, 0};

Rehearsal kill_of(Role role, uint32_t rank, uint32_t at_rank, Step step) {
  Rehearsal out;
  out.role = role;
  out.rank = rank;
  out.at_rank = at_rank;
  out.step = step;
  return out;
}

TEST(Rehearsals, TellsEachActorWhatIsOpenForIt) {
  const Rehearsals all({kill_of(Role::kGpuActor, 0, 0, 1), kill_of(Role::kHostStore, 0, 1, 2),
                        kill_of(Role::kTrainer, 1, 1, 3)},
                       kNoStep);
  EXPECT_EQ(all.open_for(0), (std::vector<uint32_t>{0}));
  EXPECT_EQ(all.open_for(1), (std::vector<uint32_t>{1, 2}));
}

TEST(Rehearsals, AKilledEntryIsDoneForEver) {
  Rehearsals all({kill_of(Role::kGpuActor, 0, 0, 1)}, kNoStep);
  ASSERT_TRUE(all.reached(0, {kActor0, 1}));
  ASSERT_EQ(all.to_kill().size(), 1u);
  EXPECT_EQ(all.to_kill()[0].target, kActor0);
  all.killed(0, {kActor0, 1});
  EXPECT_TRUE(all.to_kill().empty());
  EXPECT_TRUE(all.open_for(0).empty());
  EXPECT_FALSE(all.reached(0, {kActor0, 2}));
  EXPECT_EQ(all.done(), 1u);
  EXPECT_TRUE(all.gone({kActor0, 1}).empty()) << "the victim itself needs no answer";
}

TEST(Rehearsals, AnswersTheAskerOnceTheVictimIsGone) {
  Rehearsals all({kill_of(Role::kHostStore, 0, 1, 1)}, kNoStep);
  ASSERT_TRUE(all.reached(0, {kActor1, 4}));
  EXPECT_EQ(all.to_kill()[0].target, kStore);
  all.killed(0, {kStore, 2});
  EXPECT_TRUE(all.gone({kStore, 1}).empty());
  const auto waiting = all.gone({kStore, 2});
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0], (LifeOf{kActor1, 4}));
  EXPECT_TRUE(all.gone({kStore, 2}).empty());
}

TEST(Rehearsals, KnowsForEverWhatALifeWasKilledFor) {
  Rehearsals all({kill_of(Role::kHostStore, 0, 1, 7), kill_of(Role::kGpuActor, 0, 0, 9)}, kNoStep);
  ASSERT_TRUE(all.reached(0, {kActor1, 4}));
  EXPECT_EQ(all.that_killed({kStore, 2}), nullptr) << "not yet";
  all.killed(0, {kStore, 2});
  EXPECT_EQ(all.gone({kStore, 2}).size(), 1u);
  ASSERT_NE(all.that_killed({kStore, 2}), nullptr);
  EXPECT_EQ(all.that_killed({kStore, 2})->step, 7);
  EXPECT_EQ(all.that_killed({kStore, 3}), nullptr) << "its successor died otherwise";
  EXPECT_EQ(all.that_killed({kActor0, 1}), nullptr);
}

TEST(Rehearsals, RefusesUnknownEntriesAndOtherRanks) {
  Rehearsals all({kill_of(Role::kHostStore, 0, 1, 1)}, kNoStep);
  EXPECT_FALSE(all.reached(7, {kActor1, 1}));
  EXPECT_FALSE(all.reached(0, {kActor0, 1}));
}

TEST(Rehearsals, StepsThatAreCommittedAreNotWantedAnyMore) {
  const Rehearsals all({kill_of(Role::kGpuActor, 0, 0, 3), kill_of(Role::kGpuActor, 0, 0, 4)}, 3);
  EXPECT_EQ(all.wanted(), 1u);
}

}  // namespace
}  // namespace optlease
