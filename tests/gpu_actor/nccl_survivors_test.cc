// What becomes of the ranks of a group when one of them is gone, on the fake GPU: two and more
// survivors, each of which ends its communicator by itself and meets the others again; and one
// whose communicator does not end.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/gpu_actor/nccl_fake_ranks.h"
#include "tests/gpu_actor/rank_processes.h"

namespace optlease {
namespace {

constexpr uint64_t kTimeoutMs = 60000;
constexpr uint64_t kScratch = 4096;

ShardMap even_map(uint32_t world) {
  std::vector<uint32_t> members;
  for (uint32_t rank = 0; rank < world; ++rank) members.push_back(rank);
  return map_of(members, std::vector<uint64_t>(world, 900));
}

// What a rank's calls read and write. It outlives the rank's collectives: a call that has failed
// may be under way until its communicator has ended.
struct RankMemory {
  RankMemory(const ShardMap& of, uint32_t number)
      : map(of),
        rank(number),
        grads(gradient_of(rank, 9, elements_of(map), DType::kBF16)),
        shard(map.ranges[rank].size()),
        params(elements_of(map) * 2) {}
  const ShardMap map;
  const uint32_t rank;
  std::vector<std::byte> grads;
  std::vector<float> shard;
  std::vector<std::byte> params;
};

// Calls as all ranks make them, one after another: reduce, gather, facts. The first failure, or ok
// after `calls_max`.
Status call_until_failure(Collectives* group, RankMemory* mine, int calls_max) {
  const std::vector<uint8_t> needs(mine->map.members.size(), 1);
  std::vector<uint64_t> facts(needs.size());
  for (int call = 0; call < calls_max; ++call) {
    const Step step = 100 + call / 3;
    Status status;
    if (call % 3 == 0) {
      status = group->reduce_scatter(
          {{step, 0}, &mine->map, needs, DType::kBF16, mine->grads.data(), mine->shard.data()});
    } else if (call % 3 == 1) {
      status = group->all_gather({{step, 0}, &mine->map, needs, DType::kBF16, mine->params.data()});
    } else {
      const uint64_t fact = mine->rank;
      status = group->all_gather_fixed({step, 0}, &fact, sizeof fact, facts.data());
    }
    if (!status.is_ok()) return status;
  }
  return Status::ok();
}

// Who leaves an epoch, and after how many calls of it.
struct Loss {
  uint32_t victim = 0;
  int calls = 0;
};

// One rank's life over all epochs: in each but the last somebody leaves in the middle of a step.
void live(const TempFolder& folder, uint32_t rank, const ShardMap& map,
          const std::vector<Loss>& losses, std::atomic<uint32_t>* through) {
  const auto world = static_cast<uint32_t>(map.members.size());
  RankMemory memory(map, rank);
  auto group = make_group(folder, rank, kScratch);
  const std::vector<uint8_t> needs(world, 1);
  for (uint64_t epoch = 1; epoch <= losses.size() + 1; ++epoch) {
    const Status joined = group->connect(epoch, Rank(rank), world, kTimeoutMs);
    ASSERT_TRUE(joined.is_ok()) << "rank " << rank << " epoch " << epoch << ": " << joined.text();
    expect_step(group.get(), map, static_cast<Step>(epoch), rank, needs, DType::kBF16);
    if (epoch > losses.size()) break;
    const Loss& loss = losses[epoch - 1];
    if (loss.victim == rank) {
      ASSERT_TRUE(call_until_failure(group.get(), &memory, loss.calls).is_ok());
      group.reset();  // as a process that ends
      group = make_group(folder, rank, kScratch);
      continue;
    }
    const Status lost = call_until_failure(group.get(), &memory, 1000);
    EXPECT_EQ(lost.code(), StatusCode::kPeerLost)
        << "rank " << rank << " epoch " << epoch << ": " << lost.text();
    EXPECT_EQ(call_until_failure(group.get(), &memory, 1).code(), StatusCode::kPeerLost);
  }
  // Nobody leaves the last epoch before all are through it.
  ++*through;
  while (*through < world) sleep_ms(1);
}

void lose_ranks(uint32_t world, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "world " << world << ", seed " << seed);
  fake_gpu_seed(seed);
  std::mt19937_64 random(seed);
  std::vector<Loss> losses(3);
  for (Loss& loss : losses) {
    loss = {static_cast<uint32_t>(random() % world), static_cast<int>(random() % 7)};
  }
  const TempFolder folder;
  const uint64_t aborts_before = fake_nccl_aborts();
  const ShardMap map = even_map(world);
  std::atomic<uint32_t> through{0};
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < world; ++rank)
    ranks.emplace_back([&, rank] { live(folder, rank, map, losses, &through); });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(fake_nccl_aborts() - aborts_before, world * (losses.size() + 1))
      << "every rank ends its communicator of every epoch, and once";
  EXPECT_EQ(fake_gpu_leftovers(), 0u);
}

TEST(NcclSurvivors, OfOneGroupAllEndTheirCommunicatorsAndMeetTheReplacement) {
  for (const uint32_t world : {3u, 4u, 6u}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) lose_ranks(world, seed);
  }
}

// All survivors are within NCCL's abort at one time, and one's call has given up waiting for it.
TEST(NcclSurvivors, WhoseAbortsTakeLongMeetAgainOnceThoseAreOver) {
  constexpr uint32_t kWorld = 4;
  const TempFolder folder;
  const ShardMap map = even_map(kWorld);
  std::atomic<uint32_t> lost{0}, through{0};
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < kWorld; ++rank)
    ranks.emplace_back([&, rank] {
      RankMemory memory(map, rank);
      auto group = make_group(folder, rank, kScratch);
      ASSERT_TRUE(group->connect(1, Rank(rank), kWorld, kTimeoutMs).is_ok());
      if (rank == kWorld - 1) {
        fake_nccl_hold_aborts(true, static_cast<int>(rank));
        group.reset();
        group = make_group(folder, rank, kScratch);
      } else {
        EXPECT_EQ(call_until_failure(group.get(), &memory, 1000).code(), StatusCode::kPeerLost);
        ++lost;
      }
      const Status joined = group->connect(2, Rank(rank), kWorld, kTimeoutMs);
      EXPECT_TRUE(joined.is_ok()) << "rank " << rank << ": " << joined.text();
      if (joined.is_ok()) expect_step(group.get(), map, 1, rank, {1, 1, 1, 1}, DType::kF32);
      ++through;
      while (through < kWorld) sleep_ms(1);
    });
  while (lost == 0 || fake_nccl_aborts_held() < kWorld - 1) sleep_ms(1);
  fake_nccl_hold_aborts(false);
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(fake_gpu_leftovers(), 0u);
}

// Rank 0 of two, which was connected as epoch 1 and has lost its peer while aborts do not come
// back.
struct StuckRank {
  explicit StuckRank(const TempFolder& folder) : group(make_group(folder, 0, kScratch)) {
    std::atomic<bool> may_leave{false};
    std::thread peer([&] {
      auto other = make_group(folder, 1, kScratch);
      EXPECT_TRUE(other->connect(1, Rank(1), 2, kTimeoutMs).is_ok());
      while (!may_leave) sleep_ms(1);
    });
    EXPECT_TRUE(group->connect(1, Rank(0), 2, kTimeoutMs).is_ok());
    may_leave = true;
    peer.join();
    fake_nccl_hold_aborts(true);
    EXPECT_EQ(call_until_failure(group.get(), &memory, 1000).code(), StatusCode::kPeerLost);
  }
  RankMemory memory{even_map(2), 0};
  std::unique_ptr<Collectives> group;
};

TEST(NcclSurvivors, OneWhoseAbortNeverComesBackIsOfNoUseToAnyLaterGroup) {
  const TempFolder folder;
  StuckRank rank(folder);
  auto& group = rank.group;
  // Far less than its peers would wait for it; and a group that breaks meanwhile changes nothing.
  std::thread store([&] {
    sleep_ms(500);
    group->abort(2);
  });
  Status useless = group->connect(2, Rank(0), 2, kTimeoutMs);
  store.join();
  EXPECT_TRUE(useless.code() == StatusCode::kCancelled || useless.code() == StatusCode::kInternal)
      << useless.text();
  useless = group->connect(3, Rank(0), 2, kTimeoutMs);
  EXPECT_EQ(useless.code(), StatusCode::kInternal) << useless.text();
  EXPECT_NE(useless.message().find("nvidia-smi"), std::string::npos) << useless.text();
  EXPECT_EQ(group->connect(4, Rank(0), 2, kTimeoutMs).code(), StatusCode::kInternal);
  group->abort(5);
  EXPECT_EQ(group->connect(5, Rank(0), 2, kTimeoutMs).code(), StatusCode::kInternal)
      << "an abort would have its actor form one group after another";
  fake_nccl_hold_aborts(false);
  group.reset();
  EXPECT_EQ(fake_gpu_leftovers(), 0u);
}

TEST(NcclSurvivorsDeathTest, OneWhoseAbortNeverComesBackEndsAsAProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        const TempFolder folder;
        StuckRank(folder).group.reset();
      },
      testing::ExitedWithCode(1), "the process ends at once");
}

}  // namespace
}  // namespace optlease
