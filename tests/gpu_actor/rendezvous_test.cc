// How collectives cut shards into pieces, and how ranks on GPUs find and lose each other: without a
// GPU, with real processes and real kills.
#include <filesystem>
#include <fstream>

#include "actors/gpu_actor/exchange_plan.h"
#include "actors/gpu_actor/nccl_rendezvous.h"
#include "tests/gpu_actor/rank_processes.h"
#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

GpuUuid gpu(unsigned char number) {
  GpuUuid id{};
  id[7] = number;
  return id;
}

NcclRendezvous rendezvous_of(const TempFolder& folder, uint32_t rank, uint32_t world,
                             uint64_t epoch = 5) {
  return NcclRendezvous({folder / "group", epoch, rank, world});
}

TEST(ExchangePlan, CutsEveryNeededShardIntoPiecesOnce) {
  ShardMap map;
  map.members = {Rank(1), Rank(4), Rank(6)};
  map.ranges = {{0, 1000}, {1000, 1000}, {1000, 1333}};
  const std::vector<uint8_t> needs = {1, 0, 1};
  for (const uint64_t piece_bytes : {128u, 300u, 1024u, 1u << 20}) {
    const ExchangePlan plan =
        plan_exchange(map, needs, Rank(4), DType::kBF16, piece_bytes, ShardsMoved::kNeeded);
    EXPECT_EQ(plan.me, 1u);
    EXPECT_FALSE(plan.i_need());
    EXPECT_EQ(plan.piece_elements % 64, 0u);
    EXPECT_LE(plan.piece_elements * 2, piece_bytes);
    for (uint32_t member = 0; member < 3; ++member) {
      uint64_t at = map.ranges[member].begin;
      for (uint64_t index = 0; index < plan.piece_count; ++index) {
        const ElementRange piece = plan.piece(member, index);
        EXPECT_EQ(piece.begin, at);
        at = piece.end;
      }
      EXPECT_EQ(at, map.ranges[member].end);
      EXPECT_EQ(plan.piece(member, plan.piece_count).size(), 0u);
    }
  }
}

TEST(ExchangePlan, HasNoPiecesWhereNobodyNeedsAny) {
  ShardMap map;
  map.members = {Rank(0), Rank(1)};
  map.ranges = {{0, 1000}, {1000, 2000}};
  const std::vector<uint8_t> needs = {0, 0};
  EXPECT_EQ(plan_exchange(map, needs, Rank(0), DType::kF32, 4096, ShardsMoved::kNeeded).piece_count,
            0u);
  EXPECT_EQ(plan_exchange(map, needs, Rank(0), DType::kF32, 4096, ShardsMoved::kAll).piece_count,
            1u);
  EXPECT_EQ(member_index_in(map, Rank(2)), -1);
}

TEST(NcclRendezvous, RanksFindEachOtherAndTheId) {
  const TempFolder folder;
  NcclRendezvous first = rendezvous_of(folder, 0, 2), second = rendezvous_of(folder, 1, 2);
  ASSERT_TRUE(first.announce(gpu(1)).is_ok());
  EXPECT_EQ(first.first_missing().value(), 1u);
  ASSERT_TRUE(second.announce(gpu(2)).is_ok());
  EXPECT_EQ(first.first_missing().value(), 2u);
  EXPECT_EQ(second.first_missing().value(), 2u);
  EXPECT_EQ(second.read_id().status().code(), StatusCode::kBusy);
  NcclIdBytes id;
  for (size_t i = 0; i < id.size(); ++i) id[i] = static_cast<char>(3 * i);
  ASSERT_TRUE(first.publish_id(id).is_ok());
  EXPECT_EQ(second.read_id().value(), id);
  EXPECT_EQ(std::filesystem::status(folder / "group/5").permissions(),
            std::filesystem::perms::owner_all);
  EXPECT_EQ(std::filesystem::status(folder / "group/5/nccl_id").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(NcclRendezvous, ARankThatLeavesIsGone) {
  const TempFolder folder;
  NcclRendezvous first = rendezvous_of(folder, 0, 3), second = rendezvous_of(folder, 1, 3),
                 third = rendezvous_of(folder, 2, 3);
  ASSERT_TRUE(first.announce(gpu(1)).is_ok());
  ASSERT_TRUE(second.announce(gpu(2)).is_ok());
  ASSERT_TRUE(third.announce(gpu(3)).is_ok());
  for (NcclRendezvous* each : {&first, &second, &third}) {
    ASSERT_EQ(each->first_missing().value(), 3u);
    EXPECT_EQ(each->first_gone(), 3u);
  }
  third.leave();
  EXPECT_EQ(first.first_gone(), 2u);
  EXPECT_EQ(second.first_gone(), 2u);
  EXPECT_EQ(first.first_gone(), 2u) << "looking changes nothing";
  second.leave();
  EXPECT_EQ(first.first_gone(), 1u);
}

TEST(NcclRendezvous, ARankThatIsKilledIsGone) {
  const TempFolder folder;
  RankProcesses ranks;
  ranks.start(1, [&] {
    NcclRendezvous mine = rendezvous_of(folder, 1, 2);
    RANK_REQUIRE(mine.announce(gpu(2)).is_ok(), "announce");
    while (true) sleep_ms(1000);
  });
  NcclRendezvous first = rendezvous_of(folder, 0, 2);
  ASSERT_TRUE(first.announce(gpu(1)).is_ok());
  for (int i = 0; i < 5000 && first.first_missing().value() != 2; ++i) sleep_ms(2);
  ASSERT_EQ(first.first_missing().value(), 2u);
  EXPECT_EQ(first.first_gone(), 2u);
  ranks.kill(1);
  EXPECT_EQ(first.first_gone(), 1u);
}

TEST(NcclRendezvous, RefusesTwoRanksOnOneGpuWithWords) {
  const TempFolder folder;
  NcclRendezvous first = rendezvous_of(folder, 0, 2), second = rendezvous_of(folder, 1, 2);
  ASSERT_TRUE(first.announce(gpu(1)).is_ok());
  ASSERT_TRUE(second.announce(gpu(1)).is_ok());
  const Status status = second.first_missing().status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("ranks 0 and 1"), std::string::npos) << status.text();
}

TEST(NcclRendezvous, RefusesFilesOfAnotherEpoch) {
  const TempFolder folder;
  NcclRendezvous other = rendezvous_of(folder, 1, 2, 4), first = rendezvous_of(folder, 0, 2);
  ASSERT_TRUE(other.announce(gpu(2)).is_ok());
  ASSERT_TRUE(other.publish_id({}).is_ok());
  ASSERT_TRUE(first.announce(gpu(1)).is_ok());
  std::filesystem::copy_file(folder / "group/4/gpu_rank_1", folder / "group/5/gpu_rank_1");
  std::filesystem::copy_file(folder / "group/4/nccl_id", folder / "group/5/nccl_id");
  EXPECT_EQ(first.first_missing().status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(first.read_id().status().code(), StatusCode::kCorrupt);
  std::ofstream(folder / "group/5/gpu_rank_1") << "short";
  EXPECT_EQ(first.first_missing().status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace optlease
