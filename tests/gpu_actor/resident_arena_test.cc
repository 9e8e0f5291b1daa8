// The resident part of a rank's state over the lives of its actor and its launcher.
#include <cstring>

#include "tests/gpu_actor/rank_buffers_life.h"

namespace optlease {
namespace {

class ResidentArenaTest : public RankBuffersTest {};

TEST_F(ResidentArenaTest, HaveNoResidentSlotsWhereAllOfTheStateIsTheHosts) {
  RankBuffers buffers = opened(kNoStep);
  EXPECT_EQ(buffers.resident(), nullptr);
}

TEST_F(ResidentArenaTest, KeepResidentSlotsOverTheLifeOfAnActor) {
  make_resident(false);
  {
    RankBuffers buffers = opened(kNoStep);
    buffers.resident()->begin_writing();
    std::memset(resident_of(buffers), 0x5a, 5 * 4096);
  }
  setup_.has_state = true;
  RankBuffers buffers = opened(kNoStep);  // nothing was saved, and nothing need be
  EXPECT_EQ(resident_of(buffers)[5 * 4096 - 1], 0x5a);
  EXPECT_NE(resident_of(buffers), buffers.resident()->slots().image);
}

TEST_F(ResidentArenaTest, RestoreSavedResidentSlotsUnderTheNextLauncher) {
  make_resident(false);
  {
    RankBuffers buffers = opened(kNoStep);
    buffers.resident()->begin_writing();
    std::memset(resident_of(buffers), 0x5b, 5 * 4096);
    save(buffers, 9);
  }
  next_launcher();
  setup_.has_state = true;
  RankBuffers buffers = opened(kNoStep);
  EXPECT_EQ(resident_of(buffers)[0], 0x5b);
  EXPECT_EQ(resident_of(buffers)[5 * 4096 - 1], 0x5b);
}

TEST_F(ResidentArenaTest, SayWhatIsLostWhereResidentSlotsMovedOnAfterTheirSaving) {
  make_resident(false);
  {
    RankBuffers buffers = opened(kNoStep);
    buffers.resident()->begin_writing();
    save(buffers, 9);
    buffers.resident()->begin_writing();
    resident_of(buffers)[0] = 1;
  }
  next_launcher();
  setup_.has_state = true;
  for (int attempt = 0; attempt < 2; ++attempt) {  // a refusal leaves nothing to be believed
    const Status status = open(kNoStep).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    for (const char* words : {"rank 0", "of step 9", "--fresh", "from a checkpoint"}) {
      EXPECT_NE(status.message().find(words), std::string::npos) << words << ": " << status.text();
    }
  }
  setup_.has_state = false;  // nothing is committed: a new state begins there
  RankBuffers buffers = opened(kNoStep);
  EXPECT_EQ(resident_of(buffers)[0], 0);
}

TEST_F(ResidentArenaTest, SayWhatIsLostWhereTheResidentSegmentIsGoneOrAnotherJobs) {
  make_resident(true);
  const Status gone = open(kNoStep).status();
  EXPECT_EQ(gone.code(), StatusCode::kCorrupt);
  EXPECT_NE(gone.message().find("is not there"), std::string::npos) << gone.text();
  make_resident(false);
  {
    RankBuffers buffers = opened(kNoStep);
    save(buffers, 1);
  }
  next_launcher();
  setup_.has_state = true;
  setup_.resident->job_id[0] ^= 1;
  const Status foreign = open(kNoStep).status();
  EXPECT_EQ(foreign.code(), StatusCode::kCorrupt);
  EXPECT_NE(foreign.message().find("another job"), std::string::npos) << foreign.text();
}

TEST_F(ResidentArenaTest, OfTheCpuDeviceHaveTheirResidentSlotsInTheSegment) {
  setup_.home = ShardHome::kSegment;
  make_resident(false);
  {
    RankBuffers buffers = opened(kNoStep);
    buffers.resident()->begin_writing();
    EXPECT_EQ(resident_of(buffers), buffers.resident()->slots().image);
    resident_of(buffers)[4096] = 'x';
    const Result<bool> saved = buffers.resident()->save_some(3, buffers.memory());
    EXPECT_TRUE(saved.is_ok() && saved.value()) << "they are always there";
  }
  next_launcher();
  setup_.has_state = true;
  RankBuffers buffers = opened(kNoStep);
  EXPECT_EQ(resident_of(buffers)[4096], 'x');
}

}  // namespace
}  // namespace optlease
