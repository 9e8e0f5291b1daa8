// The NCCL collectives' own logic on a GPU that is none (fake_gpu.h): pieces, scratch, dependencies
// between streams, epochs, aborts; with more ranks than a machine has GPUs. What real ones do with
// it is tests/gpu's.
#include <gtest/gtest.h>
#include <nccl.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "tests/gpu_actor/nccl_fake_ranks.h"
#include "tests/gpu_actor/rank_processes.h"

namespace optlease {
namespace {

constexpr uint64_t kTimeoutMs = 20000;

using Body = std::function<void(Collectives*, uint32_t)>;

// Ranks as threads, connected as group epoch 1; none leaves before all are through.
void run_ranks(uint32_t world, uint64_t scratch, const Body& body) {
  const TempFolder folder;
  std::atomic<uint32_t> through{0};
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < world; ++rank)
    ranks.emplace_back([&, rank] {
      const auto group = make_group(folder, rank, scratch);
      const Status status = group->connect(1, Rank(rank), world, kTimeoutMs);
      EXPECT_TRUE(status.is_ok()) << rank << ": " << status.text();
      if (status.is_ok()) body(group.get(), rank);
      ++through;
      while (through < world) sleep_ms(1);
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(fake_gpu_leftovers(), 0u);
}

TEST(NcclCollectivesLogic, SumAndGatherInManyPiecesInAnyOrderOfTheStreams) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    fake_gpu_seed(seed);
    const ShardMap maps[] = {map_of({0, 1, 2, 3}, {10000, 1, 3777, 0}),
                             map_of({0, 1, 2, 3}, {64, 64, 64, 64})};
    run_ranks(4, 4096, [&](Collectives* group, uint32_t rank) {  // pieces of 512 bytes
      Step step = 0;
      for (const ShardMap& map : maps)
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
          for (const std::vector<uint8_t>& needs :
               {std::vector<uint8_t>{1, 1, 1, 1}, {0, 1, 1, 0}, {1, 0, 0, 0}})
            expect_step(group, map, ++step, rank, needs, dtype);
    });
  }
}

TEST(NcclCollectivesLogic, GatherShardsLongerThanAPiece) {
  const ShardMap map = map_of({0, 1}, {(8u << 20) + 67, 1000});  // pieces of 4 MiB
  run_ranks(2, 8u << 20, [&](Collectives* group, uint32_t rank) {
    expect_step(group, map, 1, rank, {1, 1}, DType::kF32);
  });
}

// Rank 1 computes beyond its first piece only once rank 0 has received that.
TEST(NcclCollectivesLogic, GatherPiecesBeforeTheLastWindowIsComputed) {
  constexpr uint64_t kPiece = (4u << 20) / sizeof(float);
  const ShardMap map = map_of({0, 1}, {6 * kPiece, 6 * kPiece - 100});
  const std::vector<uint8_t> needs = {1, 1};
  std::atomic<bool> seen{false};
  run_ranks(2, 4096, [&](Collectives* group, uint32_t rank) {
    const ElementRange mine = map.ranges[rank], theirs = map.ranges[1 - rank];
    std::vector<float> params(elements_of(map), -1.0f);
    GatherFeed feed;
    feed.begin({mine.begin});
    const auto value = [](uint64_t i) { return static_cast<float>(i % 65521) + 0.5f; };
    const auto compute = [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) params[i] = value(i);
      feed.publish(0, end);
    };
    const auto has = [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i)
        if (params[i] != value(i)) return false;
      return true;
    };
    std::thread gathers([&] {
      const Status status =
          group->all_gather({{1, 0}, &map, needs, DType::kF32, params.data(), &feed});
      EXPECT_TRUE(status.is_ok()) << status.text();
    });
    if (rank == 0) {
      compute(mine.begin, mine.end);
      // Four rounds may be in the stream: in the fifth the first is over.
      while (feed.asked(0) < mine.begin + 5 * kPiece) sleep_ms(1);
      EXPECT_TRUE(has(theirs.begin, theirs.begin + kPiece));
      seen = true;
    } else {
      compute(mine.begin, mine.begin + kPiece);
      while (!seen) sleep_ms(1);
      compute(mine.begin + kPiece, mine.end);
    }
    gathers.join();
    EXPECT_TRUE(has(0, elements_of(map))) << rank;
  });
}

// Neither waits for the other: each for its own windows.
TEST(NcclCollectivesLogic, AbortAndSilenceEndAGatherThatWaitsForItsOwnWindows) {
  const ShardMap map = map_of({0, 1}, {1000, 1000});
  const std::vector<uint8_t> needs = {1, 1};
  for (const bool aborts : {true, false}) {
    run_ranks(2, 4096, [&](Collectives* group, uint32_t rank) {
      const Status again = group->connect(2, Rank(rank), 2, aborts ? kTimeoutMs : 2000);
      ASSERT_TRUE(again.is_ok()) << again.text();
      std::vector<float> params(2000);
      GatherFeed feed;
      feed.begin({map.ranges[rank].begin});
      std::thread other([&] {
        while (feed.asked(0) == 0) sleep_ms(1);
        if (aborts) group->abort(2);
        if (aborts) feed.look_now();
      });
      const Status status =
          group->all_gather({{1, 0}, &map, needs, DType::kF32, params.data(), &feed});
      other.join();
      EXPECT_EQ(status.code(), aborts ? StatusCode::kCancelled : StatusCode::kTimeout)
          << status.text();
    });
  }
}

TEST(NcclCollectivesLogic, LeaveOutRanksThatAreNoMembers) {
  const ShardMap outer = map_of({0, 2}, {900, 380}), single = map_of({1}, {2000});
  run_ranks(3, 4096, [&](Collectives* group, uint32_t rank) {
    for (Step step = 1; step <= 3; ++step) {
      expect_step(group, outer, step, rank, {1, 1}, DType::kBF16);
      expect_step(group, single, step, rank, {1}, DType::kBF16);
    }
  });
}

TEST(NcclCollectivesLogic, GatherSmallFactsInRankOrder) {
  run_ranks(5, 4096, [](Collectives* group, uint32_t rank) {
    for (uint32_t step = 1; step <= 20; ++step) {
      const uint64_t mine[3] = {rank, step, ~0ull};
      uint64_t all[5][3] = {};
      ASSERT_TRUE(group->all_gather_fixed({step, 0}, mine, sizeof mine, all).is_ok());
      for (uint32_t i = 0; i < 5; ++i) {
        EXPECT_EQ(all[i][0], i);
        EXPECT_EQ(all[i][1], step);
      }
    }
  });
}

TEST(NcclCollectivesLogic, AWorldOfOneTouchesNoFile) {
  const TempFolder folder;
  const auto group = make_group(folder, 0);
  ASSERT_TRUE(group->connect(1, Rank(0), 1, 1000).is_ok());
  expect_step(group.get(), map_of({0}, {100003}), 1, 0, {1}, DType::kF16);
  uint64_t mine = 7, all = 0;
  ASSERT_TRUE(group->all_gather_fixed({1, 0}, &mine, 8, &all).is_ok());
  EXPECT_EQ(all, 7u);
  EXPECT_FALSE(std::filesystem::exists(folder / "group"));
}

TEST(NcclCollectivesLogic, AbortAndTimeoutEndAConnectWithoutPeers) {
  const TempFolder folder;
  const auto group = make_group(folder, 0);
  std::thread other([&] {
    sleep_ms(30);
    group->abort(1);
  });
  EXPECT_EQ(group->connect(1, Rank(0), 2, kTimeoutMs).code(), StatusCode::kCancelled);
  other.join();
  EXPECT_EQ(group->connect(1, Rank(0), 2, kTimeoutMs).code(), StatusCode::kCancelled);
  const Status late = group->connect(2, Rank(0), 2, 50);
  EXPECT_EQ(late.code(), StatusCode::kTimeout);
  EXPECT_NE(late.message().find("for rank 1"), std::string::npos) << late.text();
}

TEST(NcclCollectivesLogic, RefuseTwoRanksOnOneGpu) {
  const TempFolder folder;
  std::atomic<int> refused{0};
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const auto group = make_group(folder, 0);
      const StatusCode code = group->connect(1, Rank(rank), 2, kTimeoutMs).code();
      refused += code == StatusCode::kUnsupported ? 1 : 0;
      EXPECT_TRUE(code == StatusCode::kUnsupported || code == StatusCode::kPeerLost);
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_GE(refused, 1);
}

// Rank 1 does not make the call that rank 0 waits in; both meet again under later epochs.
TEST(NcclCollectivesLogic, ACallThatEndsEarlyBreaksItsEpochOnly) {
  const TempFolder folder;
  const ShardMap map = map_of({0, 1}, {5000, 5000});
  std::atomic<int> go{0};
  const auto stuck = [&](Collectives* group) {
    const auto grads = gradient_of(0, 9, 10000, DType::kF32);
    std::vector<float> out(5000);
    const std::vector<uint8_t> needs = {1, 1};
    return group->reduce_scatter({{9, 0}, &map, needs, DType::kF32, grads.data(), out.data()});
  };
  std::thread first([&] {
    const auto group = make_group(folder, 0, 4096);
    ASSERT_TRUE(group->connect(1, Rank(0), 2, kTimeoutMs).is_ok());
    std::thread other([&] {
      sleep_ms(50);
      group->abort(1);
    });
    EXPECT_EQ(stuck(group.get()).code(), StatusCode::kCancelled);
    other.join();
    EXPECT_EQ(stuck(group.get()).code(), StatusCode::kCancelled) << "it stays broken";
    go = 1;
    ASSERT_TRUE(group->connect(2, Rank(0), 2, 200).is_ok());
    EXPECT_EQ(stuck(group.get()).code(), StatusCode::kTimeout);
    go = 2;
    ASSERT_TRUE(group->connect(3, Rank(0), 2, kTimeoutMs).is_ok());
    EXPECT_EQ(stuck(group.get()).code(), StatusCode::kPeerLost);
    ASSERT_TRUE(group->connect(4, Rank(0), 2, kTimeoutMs).is_ok());
    expect_step(group.get(), map, 1, 0, {1, 1}, DType::kBF16);
    go = 3;
  });
  std::thread second([&] {
    const auto await = [&](int at_least) {
      while (go < at_least) sleep_ms(1);
    };
    auto group = make_group(folder, 1, 4096);
    EXPECT_TRUE(group->connect(1, Rank(1), 2, kTimeoutMs).is_ok());
    await(1);
    EXPECT_TRUE(group->connect(2, Rank(1), 2, kTimeoutMs).is_ok());
    await(2);
    EXPECT_TRUE(group->connect(3, Rank(1), 2, kTimeoutMs).is_ok());
    group.reset();  // as a process that ends
    group = make_group(folder, 1, 4096);
    EXPECT_TRUE(group->connect(4, Rank(1), 2, kTimeoutMs).is_ok());
    expect_step(group.get(), map, 1, 1, {1, 1}, DType::kBF16);
    await(3);
  });
  first.join();
  second.join();
  EXPECT_EQ(fake_gpu_leftovers(), 0u);
  EXPECT_FALSE(std::filesystem::exists(folder / "group/1"));
  EXPECT_TRUE(std::filesystem::exists(folder / "group/4"));
}

// Ranks without a peer need no NCCL; others say which one they want, and only a new start helps.
TEST(NcclCollectivesLogic, AnNcclThatIsMissingOrWillNotDoIsRefusedWhereThereArePeers) {
  const TempFolder folder;
  const auto connect = [&](uint64_t epoch, uint32_t world) {
    return make_group(folder, 0)->connect(epoch, Rank(0), world, 50);
  };
  EXPECT_EQ(connect(1, 2).code(), StatusCode::kTimeout) << "for its peer";
  fake_nccl_version(21899);
  Status refused = connect(2, 2);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("NCCL 2.18.99 was found"), std::string::npos) << refused.text();
  EXPECT_TRUE(connect(3, 1).is_ok());
  fake_nccl_version(NCCL_VERSION_CODE);
  fake_nccl_is_installed(false);
  EXPECT_EQ(connect(4, 2).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(connect(5, 1).is_ok());
  fake_nccl_is_installed(true);
  EXPECT_FALSE(std::filesystem::exists(folder / "group/2")) << "its peers wait for it in vain";
}

}  // namespace
}  // namespace optlease
