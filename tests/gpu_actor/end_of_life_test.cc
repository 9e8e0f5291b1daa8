// Which ends of an actor save what lies in the launcher's vault, and whether its GPU is the one
// beside its arena.
#include "actors/gpu_actor/end_of_life.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "actors/gpu_actor/gpu_place.h"
#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

TEST(EndOfLife, ByItselfAnActorSavesNothingThatItsSuccessorFindsInTheVault) {
  for (const ExitCode code :
       {ExitCode::kTimeout, ExitCode::kIo, ExitCode::kInternal, ExitCode::kStoreLost}) {
    EXPECT_FALSE(saves_at_end(code, false, false)) << name_of(code);
  }
}

TEST(EndOfLife, WhatDiesWithTheLauncherIsSaved) {
  for (const ExitCode code : {ExitCode::kTimeout, ExitCode::kIo, ExitCode::kInternal,
                              ExitCode::kLauncherLost, ExitCode::kOk}) {
    EXPECT_TRUE(saves_at_end(code, false, true)) << name_of(code);
    EXPECT_TRUE(saves_at_end(code, true, false)) << name_of(code) << ", told to end";
  }
}

TEST(EndOfLife, AnOrderedStopAndAnEndThatEndsTheJobSave) {
  for (const ExitCode code : {ExitCode::kOk, ExitCode::kLauncherLost, ExitCode::kCorruptState,
                              ExitCode::kNoResources, ExitCode::kNoDevice}) {
    EXPECT_TRUE(saves_at_end(code, false, false)) << name_of(code);
  }
}

TEST(EndOfLife, WhoWasReplacedOwnsNothingAnyMore) {
  for (const bool told : {false, true}) {
    for (const bool gone : {false, true}) {
      EXPECT_FALSE(saves_at_end(ExitCode::kReplaced, told, gone));
    }
  }
}

class GpuPlaceTest : public testing::Test {
 protected:
  void gpu_is_on(const std::string& node) {
    const std::string folder = root_.path() + "/sys/bus/pci/devices/0000:3b:00.0";
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/numa_node") << node << "\n";
  }
  std::string mismatch(int64_t planned) {
    return numa_mismatch("0000:3B:00.0", planned, root_.path());
  }
  testing_support::TempDirectory root_;
};

TEST_F(GpuPlaceTest, AGpuOnAnotherNodeThanItsArenaIsSaid) {
  gpu_is_on("1");
  const std::string words = mismatch(0);
  EXPECT_NE(words.find("0000:3b:00.0 is on NUMA node 1"), std::string::npos) << words;
  EXPECT_NE(words.find("placed for node 0"), std::string::npos) << words;
  EXPECT_NE(words.find("CUDA_DEVICE_ORDER=PCI_BUS_ID"), std::string::npos) << words;
}

TEST_F(GpuPlaceTest, NothingIsSaidOfWhatAgreesOrIsNotKnown) {
  EXPECT_EQ(mismatch(0), "") << "there is no such file";
  gpu_is_on("1");
  EXPECT_EQ(mismatch(1), "");
  EXPECT_EQ(mismatch(-1), "") << "nothing was planned";
  EXPECT_EQ(numa_mismatch("", 0, root_.path()), "") << "the CPU device";
  gpu_is_on("-1");
  EXPECT_EQ(mismatch(0), "") << "the firmware does not tell";
}

}  // namespace
}  // namespace optlease
