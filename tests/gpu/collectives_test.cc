// Collectives over NCCL with real processes, real kills and real GPUs. This process makes no CUDA
// call; each rank is this program again (collectives_roles.h). What needs two GPUs is skipped, with
// words, where one is visible. Ends with 0 or 1.
//   gpu_collectives_test [--gtest_filter=...]
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/gpu/collectives_roles.h"
#include "tests/gpu_actor/rank_processes.h"
#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

void start(RankProcesses* ranks, const std::string& role, uint32_t rank, const TempFolder& folder,
           uint64_t epoch = 1) {
  ranks->start(rank, [&] {
    const std::string number = std::to_string(rank), at = std::to_string(epoch);
    ::execl("/proc/self/exe", "gpu_collectives_test", "--rank", role.c_str(), number.c_str(),
            at.c_str(), folder.path().c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  });
}

int gpu_count() {
  static const int count = [] {
    const TempFolder folder;
    RankProcesses ranks;
    start(&ranks, "count", 0, folder);
    return ranks.join(0);
  }();
  return count;
}

void run(const std::string& role, uint32_t world) {
  const TempFolder folder;
  RankProcesses ranks;
  for (uint32_t rank = 0; rank < world; ++rank) start(&ranks, role, rank, folder);
  ranks.join_all();
}

#define NEEDS_TWO_GPUS()                                                                   \
  if (gpu_count() < 2)                                                                     \
  GTEST_SKIP() << gpu_count() << " GPU is visible; NCCL refuses two ranks on one GPU, so " \
               << "this part was left out"

TEST(GpuCollectives, AWorldOfOneSumsAndTouchesNoFile) {
  ASSERT_GE(gpu_count(), 1) << "no GPU is visible";
  run("world_of_one", 1);
}

TEST(GpuCollectives, AConnectWithoutPeersEndsByAbortAndByTimeout) { run("alone", 1); }

TEST(GpuCollectives, RefuseTwoRanksOnOneGpuWithWords) {
  const TempFolder folder;
  FileBoard board(folder.path());
  RankProcesses ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) start(&ranks, "one_gpu", rank, folder);
  ranks.join_all();
  EXPECT_GE(board[kGo].load(), 1);
}

TEST(GpuCollectives, GiveTheReferencesBitsInEveryDtypeShapeAndNeed) {
  NEEDS_TWO_GPUS();
  run("bits", 2);
}

TEST(GpuCollectives, GiveTheBitsOfGloo) {
  NEEDS_TWO_GPUS();
  run("like_gloo", 2);
}

// Order of events on real hardware: rank 1 computes its second piece only once rank 0 has received
// its first; and windows of other streams get on while rounds wait for a peer.
TEST(GpuCollectives, GatherPiecesBeforeTheLastWindowIsComputed) {
  NEEDS_TWO_GPUS();
  run("overlap", 2);
}

TEST(GpuCollectives, AbortEndsAGatherUnderWindows) {
  NEEDS_TWO_GPUS();
  run("overlap_abort", 2);
}

TEST(GpuCollectives, AbortEndsACallThatWaits) {
  NEEDS_TWO_GPUS();
  run("abort", 2);
}

TEST(GpuCollectives, ManyEpochsLeaveNoDescriptorsAndNoMemoryBehind) {
  NEEDS_TWO_GPUS();
  run("epochs", 2);
}

TEST(GpuCollectives, Bandwidth) {
  NEEDS_TWO_GPUS();
  run("bandwidth", 2);
}

// The last rank is killed three times, within a reduction; every other one ends its communicator by
// itself and meets the replacement.
void lose_the_last_rank(uint32_t world) {
  const TempFolder folder;
  FileBoard board(folder.path());
  board[kWorld] = world;
  RankProcesses ranks;
  const uint32_t victim = world - 1;
  const int rounds = kRounds + static_cast<int>(victim);
  for (uint32_t rank = 0; rank < victim; ++rank) start(&ranks, "survivor", rank, folder);
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    board[rounds] = 0;
    start(&ranks, "victim", victim, folder, epoch);
    ASSERT_TRUE(board.await(rounds, 3)) << "epoch " << epoch;
    sleep_ms(static_cast<int>(3 * epoch));
    ranks.kill(victim);
    for (uint32_t rank = 0; rank < victim; ++rank)
      ASSERT_TRUE(board.await(kReport + static_cast<int>(rank), static_cast<int64_t>(epoch)))
          << "rank " << rank << ", epoch " << epoch;
  }
  start(&ranks, "victim", victim, folder, 4);
  ranks.join_all();
}

TEST(GpuCollectives, TheSurvivorOfAKillFormsTheNextEpochWithTheReplacement) {
  NEEDS_TWO_GPUS();
  lose_the_last_rank(2);
}

TEST(GpuCollectives, AllSurvivorsOfAKillFormTheNextEpochWithTheReplacement) {
  if (gpu_count() < 3) GTEST_SKIP() << gpu_count() << " GPUs are visible; two survivors need three";
  for (uint32_t world = 3; world <= 4 && static_cast<int>(world) <= gpu_count(); ++world)
    lose_the_last_rank(world);
}

TEST(GpuCollectives, AStoppedPeerIsATimeout) {
  NEEDS_TWO_GPUS();
  const TempFolder folder;
  FileBoard board(folder.path());
  RankProcesses ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) start(&ranks, "stopped", rank, folder);
  ASSERT_TRUE(board.await(kRounds + 1, 2));
  ranks.signal(1, SIGSTOP);
  EXPECT_EQ(ranks.join(0), 0);
  ranks.kill(1);
}

}  // namespace
}  // namespace optlease

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--rank")
    return optlease::run_rank({argv[2], static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)),
                               std::strtoull(argv[4], nullptr, 10), argv[5]});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
