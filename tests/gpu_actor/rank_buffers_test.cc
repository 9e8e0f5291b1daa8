// A rank's shared buffers, and gradient shards that outlive the vault: the cuda device's way of
// keeping them (ShardHome::kVault), over the cpu kind of device memory.
#include "actors/gpu_actor/rank_buffers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "kernels/checksum.h"
#include "shm/vault.h"
#include "tests/gpu_actor/rank_buffers_life.h"

namespace optlease {
namespace {

TEST_F(RankBuffersTest, KeepShardsInTheVaultBesideParametersAndGradients) {
  {
    RankBuffers buffers = opened(kNoStep);
    ASSERT_EQ(buffers.spaces().size(), 2u);
    EXPECT_TRUE(buffers.can_save_shards());
    EXPECT_EQ(buffers.spaces()[0].params.bytes(), kElements * 4);
    EXPECT_NE(buffers.spaces()[0].grad_shard, nullptr);
  }
  const std::vector<std::string> wanted = {"grad.0.dense",       "grad.0.tiny",
                                           "grad_shard.0.dense", "grad_shard.0.tiny",
                                           "param.0.dense",      "param.0.tiny"};
  EXPECT_EQ(keys(), wanted);
}

TEST_F(RankBuffersTest, OfARankWithoutElementsHaveNoShardAndNothingToSave) {
  plan_.segment.spaces.erase(plan_.segment.spaces.begin());
  setup_.rank = Rank(1);
  RankBuffers buffers = opened(kNoStep);
  ASSERT_EQ(buffers.spaces().size(), 1u);
  EXPECT_EQ(buffers.spaces()[0].shard.size(), 0u);
  EXPECT_EQ(buffers.spaces()[0].grad_shard, nullptr);
  EXPECT_FALSE(buffers.can_save_shards());
  EXPECT_TRUE(buffers.save_shards(1).is_ok());
  EXPECT_FALSE(Segment::exists(setup_.gradient_segment));
}

TEST_F(RankBuffersTest, FindShardsOfAnEarlierIncarnationAsTheyWereLeft) {
  {
    RankBuffers first = opened(kNoStep);
    fill(first, 5);
  }
  RankBuffers second = opened(3);  // within an open step, and nothing was saved
  EXPECT_TRUE(holds(second, 5));
}

TEST_F(RankBuffersTest, RestoreSavedShardsUnderTheNextLauncher) {
  {
    RankBuffers buffers = opened(kNoStep);
    fill(buffers, 7);
    ASSERT_TRUE(buffers.save_shards(12).is_ok());
  }
  next_launcher();
  RankBuffers buffers = opened(12);
  EXPECT_TRUE(holds(buffers, 7));
}

TEST_F(RankBuffersTest, SaveAgainOverWhatWasSaved) {
  RankBuffers buffers = opened(kNoStep);
  fill(buffers, 1);
  ASSERT_TRUE(buffers.save_shards(1).is_ok());
  fill(buffers, 2);
  ASSERT_TRUE(buffers.save_shards(2).is_ok());
  { const RankBuffers gone = std::move(buffers); }
  next_launcher();
  EXPECT_EQ(open(1).status().code(), StatusCode::kCorrupt);
  RankBuffers again = opened(2);
  EXPECT_TRUE(holds(again, 2));
}

TEST_F(RankBuffersTest, SayWhatIsLostWhereAnOpenStepWasNotSaved) {
  { RankBuffers buffers = opened(kNoStep); }
  next_launcher();
  const Status never = open(4).status();
  EXPECT_EQ(never.code(), StatusCode::kCorrupt);
  for (const char* words :
       {"rank 0", "open step 4", "nothing was ever saved", "gradients.durable", "--fresh"}) {
    EXPECT_NE(never.message().find(words), std::string::npos) << words << ": " << never.text();
  }
  {
    RankBuffers buffers = opened(kNoStep);
    ASSERT_TRUE(buffers.save_shards(3).is_ok());
  }
  next_launcher();
  const Status older = open(4).status();
  EXPECT_EQ(older.code(), StatusCode::kCorrupt);
  EXPECT_NE(older.message().find("those of step 3"), std::string::npos) << older.text();
  // A refusal must leave nothing that a later start would take for the shards.
  EXPECT_EQ(open(4).status().code(), StatusCode::kCorrupt);
}

TEST_F(RankBuffersTest, TrustNoShardsOfAnotherJob) {
  {
    RankBuffers buffers = opened(kNoStep);
    ASSERT_TRUE(buffers.save_shards(4).is_ok());
  }
  next_launcher();
  setup_.job_id[3] ^= 1;
  const Status status = open(4).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("another job's"), std::string::npos) << status.text();
}

TEST_F(RankBuffersTest, TrustNoShardsWhoseSavingWasNotFinished) {
  {
    RankBuffers buffers = opened(kNoStep);
    ASSERT_TRUE(buffers.save_shards(4).is_ok());
  }
  {
    Result<Segment> segment = Segment::open(setup_.gradient_segment, Segment::Access::kReadWrite);
    ASSERT_TRUE(segment.is_ok());
    static_cast<SavedShardsHeader*>(segment.value().data())->checksum = 0;
  }
  next_launcher();
  const Status status = open(4).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("never finished"), std::string::npos) << status.text();
}

TEST_F(RankBuffersTest, TrustNoSavedShardsOfWhichABitChanged) {
  {
    RankBuffers buffers = opened(kNoStep);
    fill(buffers, 4);
    ASSERT_TRUE(buffers.save_shards(4).is_ok());
  }
  const auto flip = [&] {
    Result<Segment> segment = Segment::open(setup_.gradient_segment, Segment::Access::kReadWrite);
    static_cast<char*>(segment.value().data())[kSavedShardsOffset + 77] ^= 2;
  };
  flip();
  next_launcher();
  const Status status = open(4).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  for (const char* words : {"rank 0", "step 4", "sum to", "--fresh"}) {
    EXPECT_NE(status.message().find(words), std::string::npos) << words << ": " << status.text();
  }
  flip();
  RankBuffers buffers = opened(4);
  EXPECT_TRUE(holds(buffers, 4)) << "the refusal changed something";
}

// What the shards sum to is known before they are saved.
TEST_F(RankBuffersTest, SaveNoCopyThatIsNotWhatTheShardsSummedTo) {
  RankBuffers buffers = opened(kNoStep);
  fill(buffers, 6);
  uint64_t sum = 0;
  for (const GradRange& chunk : buffers.chunk_gradients(arena_of(plan_.segment, Rank(0)))) {
    sum += checksum_words(chunk.at, chunk.elements, chunk.first_word);
  }
  const Status same = buffers.save_shards(make_sums_digest(5, sum));
  EXPECT_TRUE(same.is_ok()) << same.text();
  buffers.spaces()[1].grad_shard[1] += 1;
  const Status status = buffers.save_shards(make_sums_digest(5, sum));
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  for (const char* words : {"rank 0", "step 5", "device cpu:0"}) {
    EXPECT_NE(status.message().find(words), std::string::npos) << words << ": " << status.text();
  }
}

TEST_F(RankBuffersTest, ListTheGradientsOfEveryChunkOnceAndInTheOrderOfTheArena) {
  RankBuffers buffers = opened(kNoStep);
  const ArenaSpec arena = arena_of(plan_.segment, Rank(0));
  const std::vector<GradRange> ranges = buffers.chunk_gradients(arena);
  ASSERT_EQ(ranges.size(), arena.chunks.size());
  ASSERT_GT(ranges.size(), 2u);
  uint64_t word = 0;
  for (size_t c = 0; c < ranges.size(); ++c) {
    const RankSpace& mine = buffers.spaces()[arena.chunks[c].space];
    EXPECT_EQ(ranges[c].at, mine.grad_shard + (arena.chunks[c].range.begin - mine.shard.begin));
    EXPECT_EQ(ranges[c].elements, arena.chunks[c].range.size());
    EXPECT_EQ(ranges[c].first_word, word);
    word += ranges[c].elements;
  }
  EXPECT_EQ(word, buffers.spaces()[0].shard.size() + buffers.spaces()[1].shard.size());
}

// A step that never opened is reduced again, perhaps to other sums: what was saved of it is void.
TEST_F(RankBuffersTest, ForgetWhatWasSavedOfAStepThatIsReducedAgain) {
  {
    RankBuffers buffers = opened(kNoStep);
    ASSERT_TRUE(buffers.save_shards(4).is_ok());
  }
  next_launcher();
  { RankBuffers buffers = opened(kNoStep); }
  next_launcher();
  const Status status = open(4).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << "the sums of an earlier reduction of step 4";
  EXPECT_NE(status.message().find("are lost"), std::string::npos) << status.text();
}

TEST_F(RankBuffersTest, MakeATornSegmentAgain) {
  ASSERT_TRUE(Segment::create(setup_.gradient_segment, 4096).is_ok());
  const Status needed = open(1).status();
  EXPECT_EQ(needed.code(), StatusCode::kCorrupt);
  EXPECT_NE(needed.message().find("another device"), std::string::npos) << needed.text();
  RankBuffers buffers = opened(kNoStep);
  fill(buffers, 1);
  EXPECT_TRUE(buffers.save_shards(1).is_ok());
}

// An actor whose launcher was killed saves for a while: its successor under the next launcher waits
// for its end, and then finds what was saved last.
TEST_F(RankBuffersTest, WaitForTheLastActorOfAnEarlierLauncher) {
  int ready[2], go[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC) + ::pipe2(go, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    RankBuffers buffers = opened(kNoStep);
    char byte = 'r';
    if (::write(ready[1], &byte, 1) != 1 || ::read(go[0], &byte, 1) != 1) _exit(1);
    ::usleep(200'000);
    fill(buffers, 9);
    _exit(buffers.save_shards(6).is_ok() ? 0 : 2);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  next_launcher();
  setup_.timeout_ms = 30;
  const Status early = open(6).status();
  EXPECT_EQ(early.code(), StatusCode::kTimeout) << early.text();
  EXPECT_NE(early.message().find("earlier run"), std::string::npos) << early.text();
  setup_.timeout_ms = kTimeoutMs;
  ASSERT_EQ(::write(go[1], &byte, 1), 1);
  RankBuffers buffers = opened(6);
  EXPECT_TRUE(holds(buffers, 9));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
}

// The cpu device's way, unchanged: the segment is the shards, without a header.
TEST_F(RankBuffersTest, OfTheCpuDeviceAreTheSegmentItself) {
  EXPECT_EQ(shard_home_of(DeviceKind::kCpu), ShardHome::kSegment);
  EXPECT_EQ(shard_home_of(DeviceKind::kCuda), ShardHome::kVault);
  setup_.home = ShardHome::kSegment;
  {
    RankBuffers buffers = opened(kNoStep);
    EXPECT_FALSE(buffers.can_save_shards());
    fill(buffers, 3);
    EXPECT_TRUE(buffers.save_shards(1).is_ok());
    EXPECT_FALSE(buffers.spaces()[0].grad_shard_buffer.data());
  }
  Result<Segment> segment = Segment::open(setup_.gradient_segment, Segment::Access::kReadOnly);
  ASSERT_TRUE(segment.is_ok());
  EXPECT_EQ(static_cast<const float*>(segment.value().data())[0], 3.0f);
  next_launcher();
  RankBuffers again = opened(1);
  EXPECT_TRUE(holds(again, 3));
}

TEST_F(RankBuffersTest, OfTheCpuDeviceAreCorruptWhereAnOpenStepFindsATornSegment) {
  setup_.home = ShardHome::kSegment;
  ASSERT_TRUE(Segment::create(setup_.gradient_segment, 4096 * 3).is_ok());
  EXPECT_EQ(open(2).status().code(), StatusCode::kCorrupt);
  RankBuffers buffers = opened(kNoStep);
  fill(buffers, 1);
  EXPECT_TRUE(holds(buffers, 1));
}

}  // namespace
}  // namespace optlease
