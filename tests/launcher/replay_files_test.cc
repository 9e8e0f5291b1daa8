#include "launcher/replay_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "actors/tensor_files/safetensors.h"
#include "launcher/committed_word.h"
#include "shm/contract/segment_layout.h"
#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

class ReplayFiles : public testing::Test {
 protected:
  ReplayFiles() {
    plan_.segment.world_size = 2;
    plan_.steps = 5;
    SpaceSpec space;
    space.name = "dense";
    space.members = {Rank(0), Rank(1)};
    TensorSpec tensor;
    tensor.name = "w";
    tensor.shape = {4};
    space.tensors = {tensor};
    plan_.segment.spaces = {space};
    plan_.gradients.source = GradientSource::kReplay;
    plan_.gradients.replay_path = directory_.path() + "/g.{step}.{rank}";
  }
  void record(const std::string& name, const std::string& tensor, uint64_t elements) const {
    FileTensor row;
    row.name = tensor;
    row.dtype = "F32";
    row.shape = {elements};
    auto writer = SafetensorsWriter::begin(directory_.path() + "/" + name, {}, {row});
    ASSERT_TRUE(writer.is_ok()) << writer.status().text();
    const std::vector<float> zeros(elements);
    ASSERT_TRUE(writer.value().append(zeros.data(), elements * 4).is_ok());
    ASSERT_TRUE(writer.value().finish().is_ok());
  }
  std::string refusal(Step next) const {
    const Status checked = check_replay_files(plan_, next, "job.toml:7:3");
    if (checked.is_ok()) return "";
    EXPECT_EQ(checked.code(), StatusCode::kInvalidArgument);
    return checked.message();
  }

  testing_support::TempDirectory directory_;
  JobPlan plan_;
};

TEST_F(ReplayFiles, MustBeThereForTheNextStepOfEveryRank) {
  EXPECT_NE(refusal(1).find("job.toml:7:3: gradients.replay_path: the gradients of step 1, rank 0"),
            std::string::npos)
      << refusal(1);
  record("g.1.0", "w", 4);
  EXPECT_NE(refusal(1).find("step 1, rank 1"), std::string::npos) << refusal(1);
  EXPECT_NE(refusal(1).find("g.1.1"), std::string::npos) << refusal(1);
  record("g.1.1", "w", 4);
  EXPECT_EQ(refusal(1), "");
  EXPECT_NE(refusal(2).find("step 2, rank 0"), std::string::npos) << refusal(2);
}

TEST_F(ReplayFiles, MustHoldEveryTensorInItsShape) {
  record("g.1.0", "v", 4);
  EXPECT_NE(refusal(1).find("has no tensor 'w'"), std::string::npos) << refusal(1);
  record("g.1.0", "w", 5);
  EXPECT_NE(refusal(1).find("another shape"), std::string::npos) << refusal(1);
  std::ofstream(directory_.path() + "/g.1.0") << "no such format";
  EXPECT_NE(refusal(1).find("g.1.0"), std::string::npos) << refusal(1);
}

TEST_F(ReplayFiles, AreNotLookedForWhereNoStepReplaysThem) {
  EXPECT_EQ(refusal(6), "") << "the job has five steps";
  plan_.gradients.source = GradientSource::kSynthetic;
  EXPECT_EQ(refusal(1), "");
}

TEST_F(ReplayFiles, AreOnlyTheirMembersTensors) {
  plan_.segment.spaces[0].members = {Rank(0)};
  record("g.1.0", "w", 4);
  record("g.1.1", "other", 1);
  EXPECT_EQ(refusal(1), "");
}

// The word is read from the file, also while it is too short to be mapped.
TEST(CommittedWord, IsReadFromTheSegmentAndNextStepFollowsIt) {
  const testing_support::TempDirectory directory;
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", directory.path().c_str(), 1), 0);
  const auto run = RunDirectory::of("word-" + std::to_string(getpid()));
  ASSERT_TRUE(run.is_ok());
  EXPECT_EQ(next_step_of(run.value()), 1) << "there is no state";
  const std::string name = run.value().control_segment();
  {
    auto made = Segment::create(name, 8192);
    ASSERT_TRUE(made.is_ok()) << made.status().text();
    auto* header = static_cast<SegmentHeader*>(made.value().data());
    header->step_committed.store(kNoStep);
    EXPECT_EQ(next_step_of(run.value()), 1) << "step 0 was never committed";
    const auto word = CommittedWord::open(name);
    ASSERT_TRUE(word.is_ok()) << word.status().text();
    header->step_committed.store(41);
    EXPECT_EQ(word.value().read(), 41);
    EXPECT_EQ(next_step_of(run.value()), 42);
    std::filesystem::resize_file(Segment::path_of(name), 16);
    EXPECT_EQ(word.value().read(), std::nullopt);
  }
  Segment::unlink(name);
  unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace
}  // namespace optlease
