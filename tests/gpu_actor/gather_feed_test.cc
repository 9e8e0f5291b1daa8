// What the gather's thread is told of a rank's own shards, and how long it waits.
#include "actors/gpu_actor/gather_feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "actors/gpu_actor/shard_feeder.h"

namespace optlease {
namespace {

constexpr uint64_t kLongMs = 60'000;

Status never_over() { return Status::ok(); }

TEST(GatherFeed, LetsThroughWhatIsFinalAndNothingBeyond) {
  GatherFeed feed;
  feed.begin({100, 0});
  EXPECT_TRUE(feed.await(0, 100, kLongMs, never_over).is_ok()) << "an empty shard";
  feed.publish(0, 150);
  EXPECT_TRUE(feed.await(0, 150, kLongMs, never_over).is_ok());
  EXPECT_EQ(feed.await(0, 151, 1, never_over).code(), StatusCode::kTimeout);
  EXPECT_EQ(feed.await(1, 1, 1, never_over).code(), StatusCode::kTimeout) << "another space";
  feed.publish(0, 120);
  EXPECT_TRUE(feed.await(0, 150, kLongMs, never_over).is_ok()) << "it never falls";
  feed.begin({100, 0});
  EXPECT_EQ(feed.await(0, 101, 1, never_over).code(), StatusCode::kTimeout) << "the next gather";
}

TEST(GatherFeed, WakesWhoWaitsOncePiecesBecomeFinal) {
  GatherFeed feed;
  feed.begin({0});
  std::atomic<uint64_t> through{0};
  std::thread gathers([&] {
    for (uint64_t end = 10; end <= 40; end += 10) {
      EXPECT_TRUE(feed.await(0, end, kLongMs, never_over).is_ok());
      through = end;
    }
  });
  for (uint64_t end = 10; end <= 40; end += 10) {
    while (feed.asked(0) < end) std::this_thread::yield();
    EXPECT_EQ(through, end - 10) << "before it is final";
    feed.publish(0, end);
  }
  gathers.join();
  EXPECT_EQ(through, 40u);
}

TEST(GatherFeed, EndsAWaitWhoseGroupIsOver) {
  GatherFeed feed;
  feed.begin({0});
  std::atomic<bool> over{false};
  const auto check = [&] { return over ? Status(StatusCode::kCancelled, "over") : Status::ok(); };
  std::thread gathers(
      [&] { EXPECT_EQ(feed.await(0, 1, kLongMs, check).code(), StatusCode::kCancelled); });
  while (feed.asked(0) == 0) std::this_thread::yield();
  over = true;
  feed.look_now();
  gathers.join();
  EXPECT_EQ(feed.await(0, 1, kLongMs, check).code(), StatusCode::kCancelled) << "and at once";
}

// The limit counts from the last word, not from the wait's begin.
TEST(GatherFeed, NoTimeCountsBeforeTheLastWordThatSomebodyMayBeComputing) {
  using Clock = GatherFeed::Clock;
  for (uint64_t limit_ms = 200;; limit_ms *= 2) {
    ASSERT_LT(limit_ms, kLongMs) << "this thread never gets its turn in time";
    const auto limit = std::chrono::milliseconds(limit_ms);
    GatherFeed feed;
    feed.begin({0});
    const auto begun = Clock::now();
    Clock::time_point ended;
    std::thread gathers([&] {
      EXPECT_EQ(feed.await(0, 1, limit_ms, never_over).code(), StatusCode::kTimeout);
      ended = Clock::now();
    });
    std::this_thread::sleep_for(limit / 2);
    const auto word = Clock::now();
    feed.renew();
    const bool in_time = Clock::now() < begun + limit;
    EXPECT_GE(feed.counts_from(begun), word);
    const auto later = Clock::now();
    EXPECT_EQ(feed.counts_from(later), later) << "a wait that begins later";
    gathers.join();
    if (!in_time) continue;  // the wait may have been over already
    EXPECT_GE(ended, word + limit) << "it took a slow window for a lost one";
    return;
  }
}

// Rank 0 of two spaces, of which the second is its own alone.
struct FedRank {
  FedRank() {
    plan.job_name = "j";
    plan.world_size = 2;
    for (uint32_t s = 0; s < 3; ++s) {
      SpaceSpec space;
      space.name = "s" + std::to_string(s);
      space.members = s == 0   ? std::vector<Rank>{Rank(0), Rank(1)}
                      : s == 1 ? std::vector<Rank>{Rank(1)}
                               : std::vector<Rank>{Rank(0)};
      space.tensors.push_back({"t", {4 * kShardAlignElements}, 0, 0, {}, {}});
      plan.spaces.push_back(space);
    }
    const Status laid_out = lay_out(&plan, kShardAlignElements * 12);
    OPTLEASE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
  }
  SegmentPlan plan;
};

TEST(ShardFeeder, TellsChunksInTheirOrderAndWaitsForTheFirstThatIsNotFinal) {
  const FedRank rank;
  const ArenaSpec arena = arena_of(rank.plan, Rank(0));
  ASSERT_GE(arena.chunks.size(), 4u);
  std::vector<Step> published(arena.chunks.size(), 4);
  const auto of = [&](uint32_t chunk) { return published[chunk]; };
  GatherFeed feed;
  ShardFeeder feeder(rank.plan, Rank(0), arena);
  EXPECT_EQ(feeder.step(), kNoStep);
  feeder.begin(5, &feed);
  feeder.advance(of, &feed);
  const auto is_final = [&](uint32_t chunk) {
    const ChunkSpec& spec = arena.chunks[chunk];
    return feed.await(spec.space, spec.range.end, 0, never_over).is_ok();
  };
  EXPECT_FALSE(is_final(0));
  published[1] = 5;
  feeder.advance(of, &feed);
  EXPECT_FALSE(is_final(1)) << "the one before it is not";
  published[0] = 5;
  feeder.advance(of, &feed);
  EXPECT_TRUE(is_final(0) && is_final(1));
  EXPECT_FALSE(is_final(2));
  EXPECT_FALSE(feeder.through());
  std::fill(published.begin(), published.end(), 5);
  feeder.advance(of, &feed);
  for (uint32_t c = 0; c < arena.chunks.size(); ++c) EXPECT_TRUE(is_final(c)) << c;
  EXPECT_TRUE(feeder.through());
  feeder.begin(5, &feed);  // the next group
  EXPECT_FALSE(is_final(0)) << "told anew";
  feeder.advance(of, &feed);
  EXPECT_TRUE(feeder.through());
}

TEST(ShardFeeder, ShardsBeginWhereTheRankDoes) {
  const FedRank rank;
  const ArenaSpec arena = arena_of(rank.plan, Rank(1));
  GatherFeed feed;
  ShardFeeder feeder(rank.plan, Rank(1), arena);
  feeder.begin(5, &feed);
  const uint64_t begin = shard_range(rank.plan.spaces[0], 1).begin;
  ASSERT_GT(begin, 0u);
  EXPECT_TRUE(feed.await(0, begin, 0, never_over).is_ok()) << "rank 0's elements are not its own";
  EXPECT_EQ(feed.await(0, begin + 1, 0, never_over).code(), StatusCode::kTimeout);
}

}  // namespace
}  // namespace optlease
