// All-gathers that run while the ranks still compute: what is final travels, nothing else does, and
// a slow rank is waited for. By the order of events; no time is measured.
#include <thread>

#include "actors/gpu_actor/collectives.h"
#include "actors/gpu_actor/exchange_plan.h"
#include "actors/gpu_actor/gloo_collectives.h"
#include "tests/gpu_actor/group_data.h"
#include "tests/gpu_actor/rank_processes.h"
#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

constexpr uint64_t kTimeoutMs = 20000;
constexpr Step kStep = 3;
// Words of a Board: what a rank has seen.
constexpr int kSeen = 0;

ShardMap map_of(const std::vector<uint64_t>& sizes) {
  ShardMap map;
  uint64_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    map.members.emplace_back(static_cast<uint32_t>(i));
    map.ranges.push_back({at, at + sizes[i]});
    at += sizes[i];
  }
  return map;
}

// One rank whose shard is computed bit by bit while a thread gathers.
class ComputingRank {
 public:
  ComputingRank(const std::string& folder, const ShardMap& map, uint32_t rank,
                std::vector<uint8_t> needs, uint64_t timeout_ms = kTimeoutMs)
      : map_(map),
        rank_(rank),
        needs_(std::move(needs)),
        params_(elements_of(map), -1.0f),
        group_(make_gloo_collectives(folder)) {
    const Status status =
        group_->connect(1, Rank(rank), static_cast<uint32_t>(map.members.size()), timeout_ms);
    RANK_REQUIRE(status.is_ok(), "rank %u: %s", rank, status.text().c_str());
    feed_.begin({map.ranges[rank].begin});
    thread_ = std::thread([this] {
      AllGatherCall call{{kStep, 0}, &map_, needs_, DType::kF32, params_.data(), &feed_};
      outcome_ = group_->all_gather(call);
    });
  }
  uint64_t begin() const { return map_.ranges[rank_].begin; }
  uint64_t end() const { return map_.ranges[rank_].end; }
  // The next window of this rank's shard: up to element `end`.
  void compute(uint64_t end) {
    for (; computed_ < end - begin(); ++computed_)
      params_[begin() + computed_] = test_gradient(rank_, kStep, begin() + computed_);
    feed_.publish(0, end);
  }
  // Until the gather has come to the piece that ends at `end` of its own shard.
  void await_asked(uint64_t end) {
    for (int i = 0; i < 15000 && feed_.asked(0) < end; ++i) sleep_ms(2);
    RANK_REQUIRE(feed_.asked(0) >= end, "rank %u: the gather is at %llu, not %llu", rank_,
                 static_cast<unsigned long long>(feed_.asked(0)),
                 static_cast<unsigned long long>(end));
  }
  bool has(uint32_t owner, uint64_t first, uint64_t last) const {
    for (uint64_t i = first; i < last; ++i)
      if (params_[i] != test_gradient(owner, kStep, i)) return false;
    return true;
  }
  Status join() {
    thread_.join();
    return outcome_;
  }
  void require_whole() {
    const Status status = join();
    RANK_REQUIRE(status.is_ok(), "rank %u: %s", rank_, status.text().c_str());
    for (size_t member = 0; member < map_.members.size(); ++member)
      RANK_REQUIRE(!needs_[rank_] || has(static_cast<uint32_t>(member), map_.ranges[member].begin,
                                         map_.ranges[member].end),
                   "rank %u has not member %zu's parameters", rank_, member);
  }
  GatherFeed& feed() { return feed_; }
  Collectives* group() { return group_.get(); }

 private:
  const ShardMap& map_;
  uint32_t rank_;
  std::vector<uint8_t> needs_;
  std::vector<float> params_;
  uint64_t computed_ = 0;
  GatherFeed feed_;
  std::unique_ptr<Collectives> group_;
  Status outcome_;
  std::thread thread_;
};

uint64_t piece_of(const ShardMap& map) {
  const std::vector<uint8_t> needs(map.members.size(), 1);
  const uint64_t bytes =
      gather_piece_bytes(map, DType::kF32, kGlooGatherPieceBytesMin, kGlooPieceBytesMax);
  return plan_exchange(map, needs, Rank(0), DType::kF32, bytes, ShardsMoved::kAll).piece_elements;
}

// Rank 1 computes its second half only once rank 0 has received its first: were the gather to wait
// for the last window, nobody would get on.
TEST(GatherOverlap, PiecesArriveBeforeTheLastWindowIsComputed) {
  const ShardMap map = map_of({200'000, 160'000});
  const uint64_t piece = piece_of(map);
  ASSERT_LT(piece * 8, 160'000u) << "too few pieces to show anything";
  const TempFolder folder;
  Board board;
  RankProcesses ranks;
  ranks.start(0, [&] {
    ComputingRank rank(folder / "group", map, 0, {1, 1});
    rank.compute(rank.end());
    // In its round 4 it has taken in what came in round 2, and the rounds before.
    rank.await_asked(4 * piece);
    RANK_REQUIRE(rank.has(1, map.ranges[1].begin, map.ranges[1].begin + 2 * piece),
                 "the first pieces");
    board[kSeen] = 1;
    rank.require_whole();
  });
  ranks.start(1, [&] {
    ComputingRank rank(folder / "group", map, 1, {1, 1});
    rank.compute(rank.begin() + 4 * piece);
    RANK_REQUIRE(board.await(kSeen, 1), "rank 0 has nothing of what is final");
    rank.await_asked(rank.begin() + 5 * piece);
    rank.compute(rank.end());
    rank.require_whole();
  });
  ranks.join_all();
}

TEST(GatherOverlap, NothingTravelsBeforeItIsFinal) {
  const ShardMap map = map_of({100'000, 100'000});
  const TempFolder folder;
  Board board;
  RankProcesses ranks;
  ranks.start(0, [&] {
    ComputingRank rank(folder / "group", map, 0, {1, 1});
    rank.compute(rank.end());
    rank.require_whole();
    RANK_REQUIRE(board[kSeen].load() == 1, "it was through before rank 1 had computed anything");
  });
  ranks.start(1, [&] {
    ComputingRank rank(folder / "group", map, 1, {1, 1});
    rank.await_asked(rank.begin() + 1);
    sleep_ms(50);  // room for a mistake to show
    board[kSeen] = 1;
    for (uint64_t end = rank.begin() + 1; end < rank.end(); end += 7777) rank.compute(end);
    rank.compute(rank.end());
    rank.require_whole();
  });
  ranks.join_all();
}

// Uneven and empty shards, windows that end anywhere, ranks that need nothing.
TEST(GatherOverlap, GivesTheSameBytesWhateverTheWindowsAreAndWhoIsInNeed) {
  const ShardMap maps[] = {map_of({90'000, 1, 40'000}), map_of({0, 70'001, 64})};
  for (const ShardMap& map : maps) {
    for (const uint32_t mask : {7u, 5u, 2u, 0u}) {
      const std::vector<uint8_t> needs = {static_cast<uint8_t>(mask & 1),
                                          static_cast<uint8_t>(mask >> 1 & 1),
                                          static_cast<uint8_t>(mask >> 2)};
      const TempFolder folder;
      RankProcesses ranks;
      for (uint32_t r = 0; r < 3; ++r)
        ranks.start(r, [&, r] {
          ComputingRank rank(folder / "group", map, r, needs);
          for (uint64_t end = rank.begin() + 1; end < rank.end(); end += 5000 + 1777 * r) {
            rank.compute(end);
            std::this_thread::yield();
          }
          if (rank.end() > rank.begin()) rank.compute(rank.end());
          rank.require_whole();
        });
      ranks.join_all();
    }
  }
}

// A rank that nobody needs anything of takes in what the others send, its own windows or not.
TEST(GatherOverlap, ARankAloneInNeedWaitsForNoWindowOfItsOwn) {
  const ShardMap map = map_of({50'000, 50'000});
  const TempFolder folder;
  RankProcesses ranks;
  for (uint32_t r = 0; r < 2; ++r)
    ranks.start(r, [&, r] {
      ComputingRank rank(folder / "group", map, r, {0, 1});
      if (r == 0) rank.compute(rank.end());
      const Status status = rank.join();
      RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
      RANK_REQUIRE(r == 0 || rank.has(0, 0, 50'000), "rank 0's parameters");
    });
  ranks.join_all();
}

// Rank 1's windows take longer than the limit on a time in which nothing arrives; rank 0's own
// actor keeps saying that the step is open. Once it no longer does, the limit counts.
TEST(GatherOverlap, ASlowWindowIsNoLostPeerAndASilentOneIs) {
  const ShardMap map = map_of({40'000, 40'000});
  constexpr uint64_t kShortMs = 1500;
  const TempFolder folder;
  Board board;
  RankProcesses ranks;
  ranks.start(0, [&] {
    ComputingRank rank(folder / "group", map, 0, {1, 1}, kShortMs);
    rank.compute(rank.end());
    for (int i = 0; i < 300; ++i) {  // twice the limit
      rank.feed().renew();
      sleep_ms(10);
    }
    board[kSeen] = 1;
    const Status status = rank.join();
    RANK_REQUIRE(status.code() == StatusCode::kTimeout, "%s", status.text().c_str());
    RANK_REQUIRE(status.message().find("for rank 1") != std::string::npos, "%s",
                 status.text().c_str());
    board[kSeen] = 2;
  });
  ranks.start(1, [&] {
    ComputingRank rank(folder / "group", map, 1, {1, 1});
    rank.compute(rank.begin() + 1);
    RANK_REQUIRE(board.await(kSeen, 1), "rank 0 gave up too early");
    RANK_REQUIRE(board.await(kSeen, 2), "rank 0 waits for ever");
    rank.group()->abort(1);
    rank.feed().look_now();
    const StatusCode code = rank.join().code();
    RANK_REQUIRE(code == StatusCode::kCancelled || code == StatusCode::kPeerLost, "%d",
                 static_cast<int>(code));
  });
  ranks.join_all();
}

TEST(GatherOverlap, AbortEndsAGatherThatWaitsForItsOwnWindows) {
  const ShardMap map = map_of({40'000, 40'000});
  const TempFolder folder;
  RankProcesses ranks;
  for (uint32_t r = 0; r < 2; ++r)
    ranks.start(r, [&, r] {
      ComputingRank rank(folder / "group", map, r, {1, 1});
      rank.await_asked(rank.begin() + 1);
      rank.group()->abort(1);
      rank.feed().look_now();
      const Status status = rank.join();
      RANK_REQUIRE(status.code() == StatusCode::kCancelled, "%s", status.text().c_str());
    });
  ranks.join_all();
}

TEST(GatherOverlap, PiecesAreEqualOnAllMembersAndSmallAgainstTheLongestShard) {
  const ShardMap even = map_of({1u << 24, 1u << 24}), uneven = map_of({1u << 24, 5});
  EXPECT_EQ(gather_piece_bytes(even, DType::kBF16, 1 << 10, 1u << 30), (2u << 24) / 16);
  EXPECT_EQ(gather_piece_bytes(uneven, DType::kBF16, 1 << 10, 1u << 30), (2u << 24) / 16);
  EXPECT_EQ(gather_piece_bytes(even, DType::kF32, 1 << 10, 1u << 20), 1u << 20) << "at most";
  EXPECT_EQ(gather_piece_bytes(uneven, DType::kF32, 8u << 20, 1u << 30), 8u << 20) << "at least";
}

}  // namespace
}  // namespace optlease
