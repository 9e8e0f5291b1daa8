#include "actors/gpu_actor/collectives.h"

#include <filesystem>

#include "actors/gpu_actor/gloo_collectives.h"
#include "tests/gpu_actor/group_data.h"
#include "tests/gpu_actor/rank_processes.h"
#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

constexpr uint64_t kTimeoutMs = 20000;

ShardMap map_of(std::vector<uint32_t> members, std::vector<uint64_t> sizes) {
  ShardMap map;
  uint64_t at = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    map.members.emplace_back(members[i]);
    map.ranges.push_back({at, at + sizes[i]});
    at += sizes[i];
  }
  return map;
}

// Runs `body(group, rank)` in `world` processes, connected as group epoch 1.
void run_ranks(uint32_t world, const std::function<void(Collectives*, uint32_t)>& body) {
  const TempFolder folder;
  RankProcesses ranks;
  for (uint32_t rank = 0; rank < world; ++rank)
    ranks.start(rank, [&, rank] {
      const auto group = make_gloo_collectives(folder / "group");
      const Status status = group->connect(1, Rank(rank), world, kTimeoutMs);
      RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
      body(group.get(), rank);
    });
  ranks.join_all();
}

void require_reduce(Collectives* group, const ShardMap& map, Step step, uint32_t rank,
                    const std::vector<uint8_t>& needs, DType dtype) {
  const std::string wrong = reduce_and_compare(group, map, step, rank, needs, dtype);
  RANK_REQUIRE(wrong.empty(), "rank %u, step %lld, %s: %s", rank, static_cast<long long>(step),
               name_of(dtype), wrong.c_str());
}

void require_gather(Collectives* group, const ShardMap& map, Step step, uint32_t rank,
                    const std::vector<uint8_t>& needs, DType dtype) {
  const std::string wrong = gather_and_compare(group, map, step, rank, needs, dtype);
  RANK_REQUIRE(wrong.empty(), "rank %u, step %lld, %s: %s", rank, static_cast<long long>(step),
               name_of(dtype), wrong.c_str());
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

TEST(Collectives, TestGradientsNoticeTheOrderOfAdding) {
  uint32_t differing = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const float a = test_gradient(0, 1, i), b = test_gradient(1, 1, i), c = test_gradient(2, 1, i);
    differing += (a + b) + c != a + (b + c);
  }
  EXPECT_GT(differing, 100u);
}

TEST(Collectives, SumAndGatherUnevenAndEmptyShardsInEveryDtype) {
  const ShardMap maps[] = {map_of({0, 1, 2}, {100, 1, 37}), map_of({0, 1, 2}, {0, 130, 64}),
                           map_of({0, 1, 2}, {64, 0, 0})};
  run_ranks(3, [&](Collectives* group, uint32_t rank) {
    Step step = 0;
    for (const ShardMap& map : maps)
      for (const DType dtype : kDTypes) {
        require_reduce(group, map, ++step, rank, {1, 1, 1}, dtype);
        require_gather(group, map, step, rank, {1, 1, 1}, dtype);
      }
  });
}

TEST(Collectives, MoveShardsOfManyPieces) {
  // Pieces of at most 4 MiB: two of them and a rest, one whole piece, a short one, and none.
  const ShardMap map = map_of({0, 1, 2, 3}, {(2u << 20) + 67, 1u << 20, 1000, 0});
  run_ranks(4, [&](Collectives* group, uint32_t rank) {
    require_reduce(group, map, 1, rank, {1, 1, 1, 1}, DType::kF32);
    require_gather(group, map, 1, rank, {1, 1, 1, 1}, DType::kF32);
    require_reduce(group, map, 2, rank, {1, 0, 1, 1}, DType::kBF16);
    require_gather(group, map, 2, rank, {0, 1, 0, 1}, DType::kBF16);
  });
}

TEST(Collectives, GiveOnlyToRanksInNeed) {
  const ShardMap map = map_of({0, 1, 2}, {100, 50, 70});
  run_ranks(3, [&](Collectives* group, uint32_t rank) {
    for (uint8_t mask = 0; mask < 8; ++mask) {
      const std::vector<uint8_t> needs = {static_cast<uint8_t>(mask & 1),
                                          static_cast<uint8_t>(mask >> 1 & 1),
                                          static_cast<uint8_t>(mask >> 2 & 1)};
      require_reduce(group, map, mask, rank, needs, DType::kF16);
      require_gather(group, map, mask, rank, needs, DType::kF16);
    }
  });
}

TEST(Collectives, TakeNullForAShardThatIsNotNeeded) {
  const ShardMap map = map_of({0, 1}, {64, 64});
  run_ranks(2, [&](Collectives* group, uint32_t rank) {
    const auto grads = gradient_of(rank, 1, 128, DType::kF32);
    const std::vector<uint8_t> needs = {1, 0};
    std::vector<float> out(64);
    const ReduceScatterCall call{{1, 0},      &map,         needs,
                                 DType::kF32, grads.data(), rank == 0 ? out.data() : nullptr};
    const Status status = group->reduce_scatter(call);
    RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
    RANK_REQUIRE(rank == 1 || out == reference_sum(map, 1, 128, DType::kF32, {0, 64}), "sum");
  });
}

TEST(Collectives, LeaveOutRanksThatAreNoMembers) {
  const ShardMap outer = map_of({0, 2}, {90, 38});
  const ShardMap single = map_of({1}, {200});
  run_ranks(3, [&](Collectives* group, uint32_t rank) {
    for (Step step = 1; step <= 3; ++step) {
      require_reduce(group, outer, step, rank, {1, 1}, DType::kBF16);
      require_gather(group, outer, step, rank, {1, 1}, DType::kBF16);
      require_reduce(group, single, step, rank, {1}, DType::kBF16);
      require_gather(group, single, step, rank, {1}, DType::kBF16);
    }
  });
}

TEST(Collectives, GatherSmallFactsInRankOrder) {
  struct Fact {
    double norm;
    uint32_t rank;
    uint32_t step;
  };
  run_ranks(4, [](Collectives* group, uint32_t rank) {
    for (uint32_t step = 1; step <= 20; ++step) {
      const Fact mine{0.5 * rank, rank, step};
      Fact all[4] = {};
      const Status status = group->all_gather_fixed({step, 0}, &mine, sizeof mine, all);
      RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
      for (uint32_t i = 0; i < 4; ++i)
        RANK_REQUIRE(all[i].rank == i && all[i].step == step && all[i].norm == 0.5 * i, "%u", i);
    }
  });
}

TEST(Collectives, NeverMixCallsOfRanksThatRunAhead) {
  // Ranks that need nothing only send, and are many calls ahead of the one that is slow.
  const ShardMap map = map_of({0, 1}, {64, 0});
  run_ranks(2, [&](Collectives* group, uint32_t rank) {
    for (Step step = 1; step <= 50; ++step) {
      if (rank == 0 && step % 10 == 0) sleep_ms(5);
      require_reduce(group, map, step, rank, {1, 0}, DType::kF32);
    }
  });
}

TEST(Collectives, AWorldOfOneTouchesNoFile) {
  const TempFolder folder;
  const auto group = make_gloo_collectives(folder / "group");
  ASSERT_TRUE(group->connect(1, Rank(0), 1, 1000).is_ok());
  const ShardMap map = map_of({0}, {300});
  EXPECT_EQ(reduce_and_compare(group.get(), map, 1, 0, {1}, DType::kF16), "");
  EXPECT_EQ(gather_and_compare(group.get(), map, 1, 0, {1}, DType::kF16), "");
  const uint64_t mine = 7;
  uint64_t all = 0;
  ASSERT_TRUE(group->all_gather_fixed({1, 0}, &mine, 8, &all).is_ok());
  EXPECT_EQ(all, 7u);
  EXPECT_FALSE(std::filesystem::exists(folder / "group"));
}

TEST(Collectives, TakeShardsAndNeedsFromTheSpace) {
  SegmentPlan plan;
  plan.job_name = "j";
  plan.world_size = 3;
  SpaceSpec space;
  space.name = "s";
  space.members = {Rank(0), Rank(2)};
  space.tensors.push_back({"t", {100}, 0, 0, {}, {}});
  plan.spaces.push_back(space);
  ASSERT_TRUE(lay_out(&plan, 0).is_ok());
  const ShardMap map = shard_map_of(plan.spaces[0]);
  ASSERT_EQ(map.ranges.size(), 2u);
  EXPECT_EQ(map.ranges[0].end, map.ranges[1].begin);
  EXPECT_EQ(map.ranges[1].end, 100u);
  const std::vector<uint8_t> needs = {0, 1, 1};
  EXPECT_EQ(needs_of_members(plan.spaces[0], needs), (std::vector<uint8_t>{0, 1}));
}

}  // namespace
}  // namespace optlease
