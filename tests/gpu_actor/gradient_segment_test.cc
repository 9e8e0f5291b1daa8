// A rank's buffers with a real vault and real segments: what a later incarnation finds, and what it
// does with a gradient segment that its predecessor did not finish making.
#include "actors/gpu_actor/rank_buffers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "tests/gpu_actor/actor_home.h"

namespace optlease {
namespace {

constexpr uint64_t kElements = 3000;
constexpr uint64_t kTimeoutMs = 30'000;

Result<RankBuffers> open_buffers(const ActorHome& home, bool step_is_open) {
  RankBuffersSetup setup;
  setup.rank = Rank(0);
  setup.vault_socket = home.directory().vault_socket();
  setup.gradient_segment = home.directory().gradient_segment(Rank(0));
  setup.open_step = step_is_open ? 1 : kNoStep;
  setup.timeout_ms = kTimeoutMs;
  return RankBuffers::open(home.plan(), setup, DeviceMemory::open(DevicePlace{}).value());
}

class GradientSegment : public testing::Test {
 protected:
  Result<RankBuffers> open(bool step_is_open) { return open_buffers(home_, step_is_open); }
  // A segment as an actor leaves it that dies after it had reserved `bytes` of it.
  void leave(uint64_t bytes, mode_t mode = 0600) {
    const UniqueFd fd(::open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd) << path_;
    ASSERT_EQ(::fchmod(fd.get(), mode), 0);
    ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    if (bytes == 0) return;
    ASSERT_EQ(::pwrite(fd.get(), "left", 4, 0), 4);
  }
  uint64_t bytes_there() const {
    struct stat found {};
    return ::stat(path_.c_str(), &found) == 0 ? static_cast<uint64_t>(found.st_size) : UINT64_MAX;
  }

  ActorHome home_{kElements};
  const std::string name_ = home_.directory().gradient_segment(Rank(0));
  const std::string path_ = Segment::path_of(name_);
  const uint64_t bytes_ = array_stride_bytes(kElements);
};

TEST_F(GradientSegment, IsMadeWholeAndEmptyByTheFirstIncarnation) {
  const Result<RankBuffers> buffers = open(false);
  ASSERT_TRUE(buffers.is_ok()) << buffers.status().text();
  EXPECT_EQ(bytes_there(), bytes_);
  auto made = std::move(open(false)).value();
  ASSERT_EQ(made.spaces().size(), 1u);
  const RankSpace& space = made.spaces()[0];
  EXPECT_EQ(space.shard.size(), kElements);
  EXPECT_EQ(space.params.bytes(), kElements * 4);
  EXPECT_EQ(space.grads.bytes(), kElements * 4);
  ASSERT_NE(space.grad_shard, nullptr);
  for (uint64_t i = 0; i < kElements; ++i) ASSERT_EQ(space.grad_shard[i], 0.0f) << i;
}

TEST_F(GradientSegment, OfTheRightSizeKeepsItsBytesAndSoDoTheVaultsBuffers) {
  {
    RankBuffers first = std::move(open(false)).value();
    RankSpace& space = first.spaces()[0];
    for (uint64_t i = 0; i < kElements; ++i) space.grad_shard[i] = static_cast<float>(i) + 0.5f;
    std::memset(space.params.data(), 'p', space.params.bytes());
    std::memset(space.grads.data(), 'g', space.grads.bytes());
  }
  for (const bool step_is_open : {true, false}) {
    Result<RankBuffers> opened = open(step_is_open);
    ASSERT_TRUE(opened.is_ok()) << opened.status().text();
    const RankSpace& space = opened.value().spaces()[0];
    for (uint64_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(space.grad_shard[i], static_cast<float>(i) + 0.5f) << i;
    }
    EXPECT_EQ(static_cast<const char*>(space.params.data())[kElements * 4 - 1], 'p');
    EXPECT_EQ(static_cast<const char*>(space.grads.data())[kElements * 4 - 1], 'g');
  }
}

TEST_F(GradientSegment, OfAnotherSizeIsMadeAgainWhileNoStepIsOpen) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4}, bytes_ - 256, bytes_ + 256}) {
    Segment::unlink(name_);
    ASSERT_NO_FATAL_FAILURE(leave(bytes));
    Result<RankBuffers> opened = open(false);
    ASSERT_TRUE(opened.is_ok()) << bytes << " bytes: " << opened.status().text();
    EXPECT_EQ(bytes_there(), bytes_);
    float* shard = opened.value().spaces()[0].grad_shard;
    EXPECT_EQ(shard[0], 0.0f) << "bytes of the torn one are taken for gradients";
    shard[kElements - 1] = 1;  // a page that was never there ends the test
  }
}

TEST_F(GradientSegment, OfAnotherSizeIsCorruptWhileAStepIsOpenAndIsLeftForDiagnosis) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4}, bytes_ - 256, bytes_ + 256}) {
    Segment::unlink(name_);
    ASSERT_NO_FATAL_FAILURE(leave(bytes));
    const Status status = open(true).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << bytes;
    const std::string words = format(
        "gradient segment %s does not have the %llu bytes that the open step needs; if the job ran "
        "on another device, resume it there, else start again with --fresh (model.source takes "
        "exported weights)",
        name_.c_str(), static_cast<unsigned long long>(bytes_));
    EXPECT_EQ(status.message(), words);
    EXPECT_EQ(bytes_there(), bytes) << "it was changed";
  }
}

// What is summed is what the update reads: not the bytes behind the shard.
TEST_F(GradientSegment, IsSummedWithoutItsPaddingAndNamedInWords) {
  RankBuffers buffers = std::move(open(false)).value();
  const std::vector<GradRange> ranges =
      buffers.chunk_gradients(arena_of(home_.plan().segment, Rank(0)));
  uint64_t elements = 0;
  for (const GradRange& range : ranges) elements += range.elements;
  EXPECT_EQ(elements, kElements);
  ASSERT_GT(bytes_, kElements * sizeof(float)) << "no padding to leave out";
  EXPECT_EQ(ranges.front().at, buffers.spaces()[0].grad_shard);
  EXPECT_EQ(buffers.place_of_shards(), "gradient segment " + path_);
}

// Its sums are what the open step is finished with: an empty one in its place would go unnoticed.
TEST_F(GradientSegment, ThatIsGoneWhileAStepIsOpenIsCorruptAndIsNotMadeAnew) {
  const Status status = open(true).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find(name_ + " is gone"), std::string::npos) << status.text();
  EXPECT_FALSE(Segment::exists(name_));
}

TEST_F(GradientSegment, ThatOthersMayReadIsRefusedAndNeverReplaced) {
  ASSERT_NO_FATAL_FAILURE(leave(4, 0644));
  for (const bool step_is_open : {true, false}) {
    const Status status = open(step_is_open).status();
    EXPECT_EQ(status.code(), StatusCode::kPermission) << status.text();
    EXPECT_NE(status.message().find("0644"), std::string::npos) << status.text();
    EXPECT_EQ(bytes_there(), 4u) << "somebody else's file is not ours to remove";
  }
}

TEST_F(GradientSegment, ThatIsASymbolicLinkIsRefusedAndNeverFollowed) {
  const std::string target = home_.directory().path() + "/elsewhere";
  ASSERT_EQ(::symlink(target.c_str(), path_.c_str()), 0);
  for (const bool step_is_open : {true, false}) {
    EXPECT_EQ(open(step_is_open).status().code(), StatusCode::kPermission);
  }
  EXPECT_NE(::access(target.c_str(), F_OK), 0);
  struct stat found {};
  ASSERT_EQ(::lstat(path_.c_str(), &found), 0);
  EXPECT_TRUE(S_ISLNK(found.st_mode));
}

TEST(RankBuffers, OfASizeThatThePlanDoesNotHaveAreCorruptWithTheNumbers) {
  const ActorHome home(kElements);
  const std::string key = vault_key("grad", 0, "dense");
  const UniqueFd memory = std::move(create_memfd(key, 4096)).value();
  const Status put =
      vault_put(home.directory().vault_socket(), key, 4096, memory.get(), kTimeoutMs);
  ASSERT_TRUE(put.is_ok()) << put.text();
  const Status status = open_buffers(home, false).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "shared buffer 'grad.0.dense' has 4096 bytes, the plan needs 12000");
}

}  // namespace
}  // namespace optlease
