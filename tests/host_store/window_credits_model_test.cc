// WindowCredits under random loads, and ranks that share a memory by it until they are done.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>

#include "actors/host_store/window_credits.h"

namespace optlease {
namespace {

uint64_t seed_of_this_run() {
  const char* given = std::getenv("OPTLEASE_TEST_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "OPTLEASE_TEST_SEED=" << seed << "\n";
  return seed;
}

constexpr uint64_t kWindow = 64;

// The ranks of a node in one step after another: each asks for up to `ahead` windows, and commits
// them in order. What the store would do is done here with the least of words.
struct Model {
  struct RankModel {
    uint64_t windows = 0;    // of its shard
    uint64_t committed = 0;  // in this step
    uint64_t in_flight = 0, asked = 0;
    bool attached = true;
    uint64_t done_at = 0;  // when its last window was committed
    uint64_t left() const { return windows - committed; }
  };

  Model(uint64_t ceiling, uint32_t ahead, const std::vector<uint64_t>& windows)
      : ceiling_(ceiling),
        ahead_(ahead),
        credits_({.ceiling_bytes = ceiling, .windows_ahead = ahead},
                 std::vector<uint64_t>(windows.size(), kWindow)) {
    for (const uint64_t count : windows) ranks.push_back({.windows = count});
    begin_step();
  }
  void begin_step() {
    most_ = 0;
    for (RankModel& rank : ranks) {
      rank.committed = 0;
      rank.done_at = 0;
      most_ += std::min<uint64_t>(rank.windows, 1) * kWindow;
    }
    most_ = std::max(most_, ceiling_);
  }
  void load() {
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      credits_.set_load(Rank{r}, {.remaining_bytes = ranks[r].left() * kWindow,
                                  .in_flight_bytes = ranks[r].in_flight * kWindow,
                                  .attached = ranks[r].attached});
    }
  }
  // The rank asks for all that its pipeline has room for; then whatever may be granted is.
  void ask(uint32_t r) {
    RankModel& rank = ranks[r];
    while (rank.attached && rank.in_flight + rank.asked < std::min<uint64_t>(rank.left(), ahead_)) {
      WaitingLease lease;
      lease.header.rank = r;
      lease.body.first_chunk =
          static_cast<uint32_t>(rank.committed + rank.in_flight + rank.asked++);
      lease.bytes = kWindow;
      ASSERT_TRUE(credits_.wait(Rank{r}, lease));
    }
    grant();
  }
  void grant() {
    load();
    while (const auto lease = credits_.next()) {
      --ranks[lease->header.rank].asked;
      ++ranks[lease->header.rank].in_flight;
      load();
    }
    check();
  }
  void commit(uint32_t r) {
    --ranks[r].in_flight;
    ++ranks[r].committed;
  }
  void lose(uint32_t r) {
    ranks[r].in_flight = ranks[r].asked = 0;
    ranks[r].attached = false;
    credits_.forget(Rank{r});
  }
  bool done() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.left() == 0; });
  }
  uint64_t total() const {
    uint64_t bytes = 0;
    for (const RankModel& rank : ranks) bytes += rank.in_flight * kWindow;
    return bytes;
  }
  void check() {
    if (ceiling_ > 0) {
      ASSERT_LE(total(), most_);
    }
    uint64_t others = 0;
    for (const RankModel& rank : ranks) others += rank.attached && rank.left() > 0 ? 1 : 0;
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      const RankModel& rank = ranks[r];
      ASSERT_EQ(credits_.waiting(Rank{r}), rank.asked);
      if (rank.asked == 0) continue;
      ASSERT_GT(rank.in_flight, 0u) << "rank " << r << " starves";
      // With nobody else at work everything is its own, but for what is kept for the others.
      if (others == 1 && ceiling_ == 0) FAIL() << "rank " << r << " waits for nobody";
      if (others == 1) {
        ASSERT_GT(total() + kWindow + kept_for_others(r), ceiling_);
      }
    }
  }
  uint64_t kept_for_others(uint32_t self) const {
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      const bool idle = r != self && ranks[r].left() > 0 && ranks[r].in_flight == 0;
      bytes += idle ? kWindow : 0;
    }
    return bytes;
  }

  std::vector<RankModel> ranks;
  uint64_t ceiling_, ahead_, most_ = 0;
  WindowCredits credits_;
};

TEST(WindowCreditsModel, NobodyStarvesAndTheCeilingHoldsWhateverHappens) {
  std::mt19937_64 random(seed_of_this_run());
  const auto below = [&](uint64_t bound) { return random() % bound; };
  for (int job = 0; job < 200; ++job) {
    std::vector<uint64_t> windows(1 + below(6));
    for (uint64_t& count : windows) count = below(30);
    Model model(below(3) == 0 ? 0 : below(20 * kWindow), static_cast<uint32_t>(1 + below(6)),
                windows);
    uint64_t events = 0;
    for (int step = 0; step < 4; ++step) {
      model.begin_step();
      while (!model.done()) {
        ASSERT_LT(++events, 100000u);
        const auto r = static_cast<uint32_t>(below(windows.size()));
        const uint64_t event = below(20);
        if (event == 0) {
          model.lose(r);
        } else if (event < 4) {
          model.ranks[r].attached = true;
        } else if (event < 12 && model.ranks[r].in_flight > 0) {
          model.commit(r);
        }
        model.ask(r);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Ticks of a memory that gives every window in flight the same bandwidth, at most two of a rank at
// once (one in, one out): ranks with many windows in flight get more of it. Returns, by rank, what
// it had left in windows when the first one was done.
std::vector<uint64_t> left_when_the_first_is_done(Model* model) {
  const size_t ranks = model->ranks.size();
  std::vector<double> moved(ranks, 0);
  for (uint32_t r = 0; r < ranks; ++r) model->ask(r);
  while (true) {
    double moving = 0;
    for (const auto& rank : model->ranks) moving += std::min<double>(2, rank.in_flight);
    for (uint32_t r = 0; r < ranks; ++r) {
      moved[r] += 0.25 * std::min<double>(2, model->ranks[r].in_flight) / moving;
      if (moved[r] < 1 || model->ranks[r].in_flight == 0) continue;
      moved[r] -= 1;
      model->commit(r);
      model->ask(r);
    }
    const bool over = std::any_of(model->ranks.begin(), model->ranks.end(),
                                  [](const auto& rank) { return rank.left() == 0; });
    if (!over) continue;
    std::vector<uint64_t> left;
    for (const auto& rank : model->ranks) left.push_back(rank.left());
    return left;
  }
}

TEST(WindowCreditsModel, UnevenShardsEndWithinAWindowOfEachOther) {
  const std::vector<std::vector<uint64_t>> shapes = {
      {300, 300}, {300, 200}, {300, 155}, {200, 300, 250}, {300, 299, 298, 160}};
  for (const auto& shape : shapes) {
    const uint64_t most = *std::max_element(shape.begin(), shape.end());
    for (const uint64_t ceiling : {uint64_t{0}, shape.size() * 3 * kWindow}) {
      Model model(ceiling, 3, shape);
      for (const uint64_t left : left_when_the_first_is_done(&model)) {
        EXPECT_LE(left, 1u) << "of " << most << ", ceiling " << ceiling;
      }
    }
  }
}

TEST(WindowCreditsModel, WithoutCreditsTheSameShardsEndFarApart) {
  // A pipeline that nobody's remaining bytes can shorten is no credit at all.
  Model model(0, 1, {300, 155});
  const std::vector<uint64_t> left = left_when_the_first_is_done(&model);
  EXPECT_GE(left[0], 140u);
  EXPECT_EQ(left[1], 0u);
}

TEST(WindowCreditsModel, ARankThatComesBackLateIsWaitedForAndAllEndTogether) {
  Model model(0, 3, {300, 300, 300});
  model.lose(2);
  for (int i = 0; i < 60; ++i) {
    for (uint32_t r = 0; r < 2; ++r) {
      model.ask(r);
      EXPECT_EQ(model.ranks[r].in_flight, 3u) << "an idle rank holds nobody up";
      model.commit(r);
    }
  }
  model.ranks[2].attached = true;
  for (const uint64_t left : left_when_the_first_is_done(&model)) EXPECT_LE(left, 1u);
}

}  // namespace
}  // namespace optlease
