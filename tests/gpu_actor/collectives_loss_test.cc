// What happens when ranks die, hang, are stopped or give up, with real processes and real signals.
#include <unistd.h>

#include <filesystem>
#include <random>

#include "actors/gpu_actor/collectives.h"
#include "actors/gpu_actor/gloo_collectives.h"
#include "actors/gpu_actor/gloo_rendezvous.h"
#include "tests/gpu_actor/group_data.h"
#include "tests/gpu_actor/rank_processes.h"
#include "tests/support/resident_bytes.h"
#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

constexpr uint64_t kTimeoutMs = 30000;
// Ranks' reports on a Board: steps done, by rank; then the status code of the failure, by rank.
constexpr int kSteps = 0;
constexpr int kFailure = 8;

ShardMap even_map(uint32_t world, uint64_t shard) {
  ShardMap map;
  for (uint32_t rank = 0; rank < world; ++rank) {
    map.members.emplace_back(rank);
    map.ranges.push_back({rank * shard, (rank + 1) * shard});
  }
  return map;
}

int fd_count() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

std::unique_ptr<Collectives> connected(const std::string& folder, uint64_t epoch, uint32_t rank,
                                       uint32_t world, uint64_t timeout_ms = kTimeoutMs) {
  auto group = make_gloo_collectives(folder);
  const Status status = group->connect(epoch, Rank(rank), world, timeout_ms);
  RANK_REQUIRE(status.is_ok(), "rank %u: %s", rank, status.text().c_str());
  return group;
}

void require_one_step(Collectives* group, const ShardMap& map, Step step, uint32_t rank) {
  const std::vector<uint8_t> needs(map.members.size(), 1);
  std::string wrong = reduce_and_compare(group, map, step, rank, needs, DType::kBF16);
  RANK_REQUIRE(wrong.empty(), "rank %u: %s", rank, wrong.c_str());
  wrong = gather_and_compare(group, map, step, rank, needs, DType::kBF16);
  RANK_REQUIRE(wrong.empty(), "rank %u: %s", rank, wrong.c_str());
}

// Reduces for ever, into the Board, until a call fails; returns the failure.
Status reduce_until_failure(Collectives* group, const ShardMap& map, uint32_t rank, Board* board) {
  const auto grads = gradient_of(rank, 1, elements_of(map), DType::kF32);
  const std::vector<uint8_t> needs(map.members.size(), 1);
  std::vector<float> out(map.ranges[rank].size());
  for (Step step = 1;; ++step) {
    const Status status =
        group->reduce_scatter({{step, 0}, &map, needs, DType::kF32, grads.data(), out.data()});
    if (!status.is_ok()) return status;
    (*board)[kSteps + static_cast<int>(rank)] = step;
  }
}

TEST(CollectivesLoss, SurvivorsOfAKillFormTheNextEpochWithTheReplacement) {
  constexpr uint32_t kSeed = 7;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  constexpr uint32_t kWorld = 3;
  constexpr uint32_t kKills = 5;
  const ShardMap big = even_map(kWorld, 3u << 20);  // 12 MiB a shard: most of the time in transfers
  const ShardMap small = even_map(kWorld, 1000);
  const TempFolder folder;
  Board board;
  RankProcesses ranks;
  const auto life = [&](uint32_t rank, uint64_t first_epoch) {
    const auto group = make_gloo_collectives(folder / "group");
    for (uint64_t epoch = first_epoch; epoch <= kKills + 1; ++epoch) {
      Status status = group->connect(epoch, Rank(rank), kWorld, kTimeoutMs);
      RANK_REQUIRE(status.is_ok(), "rank %u: %s", rank, status.text().c_str());
      require_one_step(group.get(), small, static_cast<Step>(epoch), rank);
      if (epoch == kKills + 1) return;
      status = reduce_until_failure(group.get(), big, rank, &board);
      RANK_REQUIRE(status.code() == StatusCode::kPeerLost, "rank %u: %s", rank,
                   status.text().c_str());
      board[kFailure + static_cast<int>(rank)] = static_cast<int64_t>(epoch);
    }
  };
  for (uint32_t rank = 0; rank < kWorld; ++rank) ranks.start(rank, [&, rank] { life(rank, 1); });
  for (uint64_t epoch = 1; epoch <= kKills; ++epoch) {
    const uint32_t victim = random() % kWorld;
    board[kSteps + static_cast<int>(victim)] = 0;
    ASSERT_TRUE(board.await(kSteps + static_cast<int>(victim), 2));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    ranks.kill(victim);
    // They must hear of it from the connection, long before the timeout.
    for (uint32_t rank = 0; rank < kWorld; ++rank)
      if (rank != victim) {
        ASSERT_TRUE(board.await(kFailure + static_cast<int>(rank), static_cast<int64_t>(epoch)));
      }
    ranks.start(victim, [&, victim, epoch] { life(victim, epoch + 1); });
  }
  ranks.join_all();
  EXPECT_FALSE(std::filesystem::exists(folder / "group/1"));
  EXPECT_TRUE(std::filesystem::exists(folder / ("group/" + std::to_string(kKills + 1))));
}

TEST(CollectivesLoss, ABrokenEpochStaysBrokenUntilTheNext) {
  const ShardMap map = even_map(2, 1000);
  const TempFolder folder;
  Board board;
  RankProcesses ranks;
  ranks.start(0, [&] {
    const auto group = connected(folder / "group", 1, 0, 2);
    board[0] = 1;
    Status status = reduce_until_failure(group.get(), map, 0, &board);
    RANK_REQUIRE(status.code() == StatusCode::kPeerLost, "%s", status.text().c_str());
    const uint64_t mine = 0;
    uint64_t all[2];
    status = group->all_gather_fixed({1, 0}, &mine, 8, all);
    RANK_REQUIRE(status.code() == StatusCode::kPeerLost, "%s", status.text().c_str());
    board[0] = 2;
    status = group->connect(2, Rank(0), 2, kTimeoutMs);
    RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
    require_one_step(group.get(), map, 1, 0);
  });
  ranks.start(1, [&] { connected(folder / "group", 1, 1, 2); });
  ASSERT_EQ(ranks.join(1), 0);
  ASSERT_TRUE(board.await(0, 2));
  ranks.start(1, [&] {
    const auto group = connected(folder / "group", 2, 1, 2);
    require_one_step(group.get(), map, 1, 1);
  });
  ranks.join_all();
}

TEST(CollectivesLoss, APeerThatDidItsPartMayLeave) {
  const ShardMap map = even_map(2, 2000);
  for (uint64_t epoch = 1; epoch <= 20; ++epoch) {
    const TempFolder folder;
    RankProcesses ranks;
    for (uint32_t rank = 0; rank < 2; ++rank)
      ranks.start(rank, [&, rank] {
        const auto group = connected(folder / "group", epoch, rank, 2);
        const std::string wrong =
            reduce_and_compare(group.get(), map, 1, rank, {1, 0}, DType::kF32);
        RANK_REQUIRE(wrong.empty(), "rank %u: %s", rank, wrong.c_str());
      });
    ranks.join_all();
  }
}

TEST(CollectivesLoss, AbortEndsACallThatWaits) {
  const ShardMap map = even_map(2, 2u << 20);
  const TempFolder folder;
  Board board;
  RankProcesses ranks;
  ranks.start(0, [&] {
    const auto group = connected(folder / "group", 4, 0, 2);
    std::thread other([&] {
      sleep_ms(100);
      group->abort(3);  // an earlier epoch: means nothing to this one
      sleep_ms(100);
      group->abort(4);
    });
    Status status = reduce_until_failure(group.get(), map, 0, &board);
    other.join();
    RANK_REQUIRE(status.code() == StatusCode::kCancelled, "%s", status.text().c_str());
    status = group->connect(4, Rank(0), 2, kTimeoutMs);
    RANK_REQUIRE(status.code() == StatusCode::kCancelled, "%s", status.text().c_str());
    board[kFailure] = 1;
    status = group->connect(5, Rank(0), 2, kTimeoutMs);
    RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
    require_one_step(group.get(), map, 1, 0);
  });
  ranks.start(1, [&] {
    const auto group = connected(folder / "group", 4, 1, 2);
    RANK_REQUIRE(board.await(kFailure, 1), "rank 0 is still in its call");
    const Status status = group->connect(5, Rank(1), 2, kTimeoutMs);
    RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
    require_one_step(group.get(), map, 1, 1);
  });
  ranks.join_all();
}

TEST(CollectivesLoss, AbortEndsAConnectWithoutPeers) {
  const TempFolder folder;
  RankProcesses ranks;
  ranks.start(0, [&] {
    const auto group = make_gloo_collectives(folder / "group");
    std::thread other([&] {
      sleep_ms(50);
      group->abort(1);
    });
    const Status status = group->connect(1, Rank(0), 2, kTimeoutMs);
    other.join();
    RANK_REQUIRE(status.code() == StatusCode::kCancelled, "%s", status.text().c_str());
  });
  ranks.join_all();
}

// The peer has published its addresses and then stands still: by chance of the port numbers it is
// either the one that should connect, or the one that should accept.
TEST(CollectivesLoss, AbortAndTimeoutEndAConnectWithAStoppedPeer) {
  for (uint64_t round = 0; round < 8; ++round) {
    const bool abort = round % 2 == 0;
    const TempFolder folder;
    RankProcesses ranks;
    ranks.start(1, [&] { connected(folder / "group", 1, 1, 2); });
    for (int i = 0; i < 5000 && !std::filesystem::exists(folder / "group/1/1"); ++i) sleep_ms(2);
    ranks.signal(1, SIGSTOP);
    ranks.start(0, [&] {
      const auto group = make_gloo_collectives(folder / "group");
      std::thread other([&] {
        sleep_ms(100);
        if (abort) group->abort(1);
      });
      const Status status = group->connect(1, Rank(0), 2, abort ? kTimeoutMs : 200);
      other.join();
      RANK_REQUIRE(status.code() == (abort ? StatusCode::kCancelled : StatusCode::kTimeout), "%s",
                   status.text().c_str());
    });
    EXPECT_EQ(ranks.join(0), 0);
    ranks.kill(1);
  }
}

TEST(CollectivesLoss, AStoppedPeerIsATimeoutThatNamesIt) {
  const ShardMap map = even_map(2, 2u << 20);
  const TempFolder folder;
  Board board;
  RankProcesses ranks;
  for (uint32_t rank = 0; rank < 2; ++rank)
    ranks.start(rank, [&, rank] {
      const auto group = connected(folder / "group", 1, rank, 2, 1500);
      const Status status = reduce_until_failure(group.get(), map, rank, &board);
      RANK_REQUIRE(status.code() == StatusCode::kTimeout, "%s", status.text().c_str());
      RANK_REQUIRE(status.message().find("for rank 1") != std::string::npos, "%s",
                   status.text().c_str());
    });
  ASSERT_TRUE(board.await(kSteps + 1, 2));
  ranks.signal(1, SIGSTOP);
  EXPECT_EQ(ranks.join(0), 0);
  ranks.kill(1);
}

// Every user of the machine can connect to a port, and see which there are. The stranger knows all
// of rank 0's file but what only this user can read.
TEST(CollectivesLoss, AStrangerWhoTakesARanksPlaceIsFoundOut) {
  const TempFolder folder;
  const std::string real = folder / "group", strange = folder / "strange";
  RankProcesses ranks;
  ranks.start(0, [&] {
    const auto group = make_gloo_collectives(real);
    const Status status = group->connect(1, Rank(0), 2, kTimeoutMs);
    RANK_REQUIRE(status.code() == StatusCode::kPeerLost, "%s", status.text().c_str());
    RANK_REQUIRE(status.message().find("cannot read this job's files") != std::string::npos, "%s",
                 status.text().c_str());
  });
  ranks.start(1, [&] {
    const auto group = make_gloo_collectives(strange);
    RANK_REQUIRE(!group->connect(1, Rank(1), 2, kTimeoutMs).is_ok(), "it knows itself");
  });
  // Each is told where the other listens, and not what the other wants to hear.
  const auto pass_on = [](const std::string& from, const std::string& to, uint32_t rank) {
    Result<std::string> entry = Status(StatusCode::kBusy, "");
    for (int i = 0; i < 15000 && entry.status().code() == StatusCode::kBusy; ++i) {
      sleep_ms(2);
      entry = read_address({from, 1, 1 - rank, 2}, rank);
    }
    ASSERT_TRUE(entry.is_ok()) << entry.status().text();
    PeerAddresses addresses(2);
    addresses[1 - rank] = std::string(16, '\0') + entry.value().substr(16);
    ASSERT_TRUE(publish_addresses({to, 1, rank, 2}, addresses).is_ok());
  };
  pass_on(real, strange, 0);
  pass_on(strange, real, 1);
  ranks.join_all();
}

TEST(CollectivesLoss, ACallThatAPeerNeverMakesIsATimeout) {
  const TempFolder folder;
  Board board;
  RankProcesses ranks;
  ranks.start(0, [&] {
    const auto group = connected(folder / "group", 1, 0, 2, 500);
    const uint64_t mine = 0;
    uint64_t all[2];
    const Status status = group->all_gather_fixed({1, 0}, &mine, 8, all);
    RANK_REQUIRE(status.code() == StatusCode::kTimeout, "%s", status.text().c_str());
    board[0] = 1;
  });
  ranks.start(1, [&] {
    const auto group = connected(folder / "group", 1, 1, 2, kTimeoutMs);
    RANK_REQUIRE(board.await(0, 1), "rank 0 still waits");
  });
  ranks.join_all();
}

TEST(CollectivesLoss, TwoHundredEpochsLeaveNoDescriptorsAndNoMemoryBehind) {
  const ShardMap map = even_map(2, 5000);
  const TempFolder folder;
  RankProcesses ranks;
  for (uint32_t rank = 0; rank < 2; ++rank)
    ranks.start(rank, [&, rank] {
      const auto group = make_gloo_collectives(folder / "group");
      int fds = 0;
      uint64_t bytes = 0;
      for (uint64_t epoch = 1; epoch <= 200; ++epoch) {
        const Status status = group->connect(epoch, Rank(rank), 2, kTimeoutMs);
        RANK_REQUIRE(status.is_ok(), "epoch %llu: %s", static_cast<unsigned long long>(epoch),
                     status.text().c_str());
        require_one_step(group.get(), map, static_cast<Step>(epoch), rank);
        if (epoch == 20) {
          fds = fd_count();
          bytes = resident_bytes();
        }
      }
      // One more or less: a peer that is quicker has closed this epoch's connection already.
      RANK_REQUIRE(fd_count() <= fds + 1, "%d descriptors, then %d", fds, fd_count());
      RANK_REQUIRE(resident_bytes() < bytes + (4 << 20) + kSanitizerKeepsBytes,
                   "%llu bytes, then %llu", static_cast<unsigned long long>(bytes),
                   static_cast<unsigned long long>(resident_bytes()));
    });
  ranks.join_all();
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "group")) {
    (void)entry;
    ++folders;
  }
  EXPECT_EQ(folders, 1u) << "rank 0 removes the folders of earlier epochs";
}

}  // namespace
}  // namespace optlease
