#include "shm/contract/geometry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "shm/contract/limits.h"

namespace optlease::test {
namespace {

SpaceSpec make_space(const std::string& name, const std::vector<uint32_t>& ranks,
                     const std::vector<uint64_t>& tensors) {
  SpaceSpec space;
  space.name = name;
  for (const uint32_t rank : ranks) space.members.push_back(Rank(rank));
  for (size_t t = 0; t < tensors.size(); ++t) {
    TensorSpec tensor;
    tensor.name = name + ".t" + std::to_string(t);
    tensor.shape = {tensors[t]};
    space.tensors.push_back(tensor);
  }
  return space;
}

std::vector<uint32_t> first_ranks(uint32_t count) {
  std::vector<uint32_t> ranks(count);
  for (uint32_t r = 0; r < count; ++r) ranks[r] = r;
  return ranks;
}

// Every element of every space is in exactly one chunk, in order, of the rank that owns it; every
// chunk fits its slot and starts on an alignment unit.
void expect_exact_coverage(const SegmentPlan& plan) {
  std::map<uint32_t, uint64_t> next;  // per space: elements covered by the members before
  for (uint32_t s = 0; s < plan.spaces.size(); ++s) {
    const SpaceSpec& space = plan.spaces[s];
    for (const Rank rank : space.members) {
      const ArenaSpec arena = arena_of(plan, rank);
      for (const ChunkSpec& chunk : arena.chunks) {
        if (chunk.space != s) continue;
        ASSERT_EQ(chunk.range.begin, next[s]) << space.name;
        ASSERT_GT(chunk.range.size(), 0u);
        ASSERT_LE(chunk.range.size(), space.chunk_elements);
        ASSERT_EQ(chunk.range.begin % kShardAlignElements, 0u);
        ASSERT_LE(chunk_bytes(chunk.range.size()), arena.slot_bytes);
        next[s] = chunk.range.end;
      }
    }
    ASSERT_EQ(next[s], space.elements) << space.name;
  }
}

void expect_sound_arenas(const SegmentPlan& plan) {
  for (uint32_t r = 0; r < plan.world_size; ++r) {
    const ArenaSpec arena = arena_of(plan, Rank(r));
    const auto chunks = static_cast<uint32_t>(arena.chunks.size());
    const uint32_t shadow = (plan.prefetch_windows + 2) * plan.window_chunks;
    EXPECT_EQ(arena.slot_count, chunks + std::min(chunks, shadow));
    EXPECT_EQ(arena.slot_bytes % kPageBytes, 0u);
    uint64_t state = 0;
    uint32_t last_space = 0;
    for (const ChunkSpec& chunk : arena.chunks) {
      state += chunk.range.size() * 12;
      EXPECT_GE(chunk.space, last_space) << "spaces are not in order";
      last_space = chunk.space;
    }
    EXPECT_EQ(arena.state_bytes, state);
  }
}

// Design rule: state * 1.05 and the shadow windows, and the header page besides.
void expect_bounded_arenas(const SegmentPlan& plan) {
  for (uint32_t r = 0; r < plan.world_size; ++r) {
    const ArenaSpec arena = arena_of(plan, Rank(r));
    const double bytes = static_cast<double>(arena.slot_bytes) * arena.slot_count;
    const double shadow = static_cast<double>(plan.prefetch_windows + 2) * plan.window_chunks *
                          static_cast<double>(arena.slot_bytes);
    EXPECT_LE(bytes, static_cast<double>(arena.state_bytes) * 1.05 + shadow)
        << "rank " << r << ": " << arena.chunks.size() << " chunks, " << arena.state_bytes
        << " bytes of state in slots of " << arena.slot_bytes;
  }
}

TEST(Geometry, AlignsArraysAndBoundsChunks) {
  EXPECT_EQ(array_stride_bytes(64), 256u);
  EXPECT_EQ(array_stride_bytes(65), 512u);
  EXPECT_EQ(chunk_bytes(64), 768u);
  EXPECT_EQ(chunk_elements_for(768), 64u);
  EXPECT_EQ(chunk_elements_for(768 * 2 - 1), 64u);
  EXPECT_EQ(chunk_elements_for(1), kShardAlignElements);
  for (const uint64_t bytes : {1000u, 65536u, 1u << 20, 64u << 20}) {
    EXPECT_LE(chunk_bytes(chunk_elements_for(bytes)), std::max<uint64_t>(bytes, 768));
  }
}

TEST(Geometry, CutsShardsOnAlignmentUnits) {
  SpaceSpec space = make_space("a", first_ranks(3), {1000});
  SegmentPlan plan{"job", 3, 1, 2, {}, {space}};
  ASSERT_TRUE(lay_out(&plan, 4096).is_ok());
  EXPECT_EQ(plan.spaces[0].shard_elements, 384u);
  EXPECT_EQ(shard_range(plan.spaces[0], 2).begin, 768u);
  EXPECT_EQ(shard_range(plan.spaces[0], 2).end, 1000u);
  EXPECT_EQ(member_index(plan.spaces[0], Rank(2)), 2);
  EXPECT_EQ(member_index(plan.spaces[0], Rank(3)), -1);
}

TEST(Geometry, LeavesLateMembersOfATinySpaceEmpty) {
  SegmentPlan plan{"job", 8, 1, 2, {}, {make_space("a", first_ranks(8), {100})}};
  ASSERT_TRUE(lay_out(&plan, 1 << 20).is_ok());
  EXPECT_EQ(arena_of(plan, Rank(1)).chunks.size(), 1u);
  EXPECT_TRUE(arena_of(plan, Rank(2)).chunks.empty());
  EXPECT_EQ(arena_of(plan, Rank(2)).slot_count, 0u);
  expect_exact_coverage(plan);
  expect_sound_arenas(plan);
}

TEST(Geometry, HasNoMoreShadowSlotsThanChunks) {
  SegmentPlan plan{"job", 1, 8, 4, {}, {make_space("a", {0}, {64 * 3})}};
  ASSERT_TRUE(lay_out(&plan, 768).is_ok());
  EXPECT_EQ(arena_of(plan, Rank(0)).chunks.size(), 3u);
  EXPECT_EQ(arena_of(plan, Rank(0)).slot_count, 6u);
}

TEST(Geometry, MakesOneChunkAShardWhenAskedTo) {
  SegmentPlan plan{"job", 2,  1,
                   2,     {}, {make_space("a", {0, 1}, {100000}), make_space("b", {1}, {777})}};
  ASSERT_TRUE(lay_out(&plan, 0).is_ok());
  EXPECT_EQ(arena_of(plan, Rank(0)).chunks.size(), 1u);
  EXPECT_EQ(arena_of(plan, Rank(1)).chunks.size(), 2u);
}

TEST(Geometry, RefusesEmptyAndOverflowingModels) {
  SegmentPlan empty{"job", 1, 1, 2, {}, {make_space("a", {0}, {})}};
  EXPECT_EQ(lay_out(&empty, 4096).code(), StatusCode::kInvalidArgument);
  SegmentPlan tensor{"job", 1, 1, 2, {}, {make_space("a", {0}, {1})}};
  tensor.spaces[0].tensors[0].shape = {1ull << 40, 1ull << 40};
  EXPECT_EQ(lay_out(&tensor, 4096).code(), StatusCode::kInvalidArgument);
  SegmentPlan sum{"job", 1, 1, 2, {}, {make_space("a", {0}, {1ull << 46, 1})}};
  EXPECT_EQ(lay_out(&sum, 1 << 30).code(), StatusCode::kInvalidArgument);
}

TEST(Geometry, NeverPassesTheChunkSizeThatWasAskedFor) {
  const uint64_t seed = 5;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    const uint64_t bytes = 768 + random() % (1 << 20);
    SegmentPlan plan{"job", 4,  1,
                     2,     {}, {make_space("a", first_ranks(4), {1 + random() % 10000000})}};
    ASSERT_TRUE(lay_out(&plan, bytes).is_ok());
    ASSERT_LE(chunk_bytes(plan.spaces[0].chunk_elements), bytes) << "seed " << seed;
    ASSERT_EQ(plan.spaces[0].chunk_elements % kShardAlignElements, 0u);
  }
}

TEST(Geometry, CoversRandomPlansExactly) {
  const uint64_t seed = 20261129;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", round " << round);
    SegmentPlan plan;
    plan.job_name = "job";
    plan.world_size = 1 + static_cast<uint32_t>(random() % 9);
    plan.window_chunks = 1 + static_cast<uint32_t>(random() % 4);
    plan.prefetch_windows = 1 + static_cast<uint32_t>(random() % 4);
    const uint64_t spaces = 1 + random() % 5;
    for (uint64_t s = 0; s < spaces; ++s) {
      std::vector<uint32_t> ranks;
      for (uint32_t r = 0; r < plan.world_size; ++r) {
        if (random() % 3 != 0) ranks.push_back(r);
      }
      if (ranks.empty()) ranks.push_back(0);
      std::vector<uint64_t> tensors;
      for (uint64_t t = random() % 6; t > 0; --t) tensors.push_back(random() % 20000);
      if (s == 0) tensors.push_back(1);
      plan.spaces.push_back(make_space("s" + std::to_string(s), ranks, tensors));
    }
    ASSERT_TRUE(lay_out(&plan, random() % 100000).is_ok());
    ASSERT_EQ(why_invalid(plan), "");
    expect_exact_coverage(plan);
    expect_sound_arenas(plan);
    if (HasFatalFailure()) return;
  }
}

TEST(Geometry, BoundsTheArenasOfRandomPlansWithSeveralSpaces) {
  const uint64_t seed = 77;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", round " << round);
    SegmentPlan plan;
    plan.job_name = "job";
    plan.world_size = 1 + static_cast<uint32_t>(random() % 16);
    plan.window_chunks = 1 + static_cast<uint32_t>(random() % 3);
    plan.prefetch_windows = 1 + static_cast<uint32_t>(random() % 3);
    const uint64_t chunk = (1ull << 20) << random() % 7;  // 1 MiB .. 64 MiB
    const uint64_t window_elements = chunk_elements_for(chunk) * plan.window_chunks;
    const uint64_t spaces = 1 + random() % 4;
    for (uint64_t s = 0; s < spaces; ++s) {
      std::vector<uint32_t> ranks = first_ranks(plan.world_size);
      if (s > 0) ranks = {static_cast<uint32_t>(random() % plan.world_size)};
      // Each shard is some windows long: 2 to 40, with nothing round about it.
      const uint64_t shard = window_elements * 2 + random() % (window_elements * 38);
      plan.spaces.push_back(
          make_space("s" + std::to_string(s), ranks, {shard * ranks.size() - random() % 64}));
    }
    ASSERT_TRUE(lay_out(&plan, chunk).is_ok());
    expect_bounded_arenas(plan);
    // A chunk is not made smaller than that needs: never below a sixteenth of what was asked for.
    EXPECT_GE(plan.spaces[0].chunk_elements * 16 + 16 * 1024, chunk_elements_for(chunk));
    if (HasFailure()) return;
  }
}

TEST(Geometry, BoundsAMixtureOfExperts) {
  SegmentPlan plan{"moe", 8, 1, 2, {}, {make_space("dense", first_ranks(8), {1300000007})}};
  for (uint32_t r = 0; r < 8; ++r) {
    plan.spaces.push_back(make_space("expert" + std::to_string(r), {r}, {176160768 + r * 4099}));
  }
  ASSERT_TRUE(lay_out(&plan, 64 << 20).is_ok());
  expect_bounded_arenas(plan);
  expect_exact_coverage(plan);
}

TEST(Geometry, HashesEverythingThatDecidesTheBytes) {
  const auto hash = [](const std::function<void(SegmentPlan*)>& change) {
    SegmentPlan plan{"job", 2, 1, 2, {}, {make_space("a", {0, 1}, {1000, 200})}};
    EXPECT_TRUE(lay_out(&plan, 4096).is_ok());
    change(&plan);
    return layout_hash(plan);
  };
  const uint64_t same = hash([](auto*) {});
  EXPECT_EQ(hash([](auto* p) { p->job_name = "other"; }), same);
  const std::vector<std::function<void(SegmentPlan*)>> changes = {
      [](auto* p) { p->world_size = 3; },
      [](auto* p) { p->window_chunks = 2; },
      [](auto* p) { p->prefetch_windows = 3; },
      [](auto* p) { p->spaces[0].name = "b"; },
      [](auto* p) { p->spaces[0].members = {Rank(0)}; },
      [](auto* p) { p->spaces[0].param_dtype = DType::kBF16; },
      [](auto* p) { p->spaces[0].grad_dtype = DType::kBF16; },
      [](auto* p) { p->spaces[0].group = 1; },
      [](auto* p) { p->spaces[0].shard_elements += 64; },
      [](auto* p) { p->spaces[0].chunk_elements += 64; },
      [](auto* p) { p->spaces[0].tensors[0].name = "c"; },
      [](auto* p) {
        p->spaces[0].tensors[0].shape = {10, 100};
      },
      [](auto* p) { p->spaces[0].tensors[0].global_shape = {2000}; },
  };
  std::set<uint64_t> hashes{same};
  for (const auto& change : changes) hashes.insert(hash(change));
  EXPECT_EQ(hashes.size(), changes.size() + 1);
}

TEST(Geometry, NamesEveryBrokenRuleOfAPlan) {
  const auto broken = [](const std::function<void(SegmentPlan*)>& change) {
    SegmentPlan plan{"job", 2, 1, 2, {}, {make_space("a", {0, 1}, {1000, 200})}};
    EXPECT_TRUE(lay_out(&plan, 4096).is_ok());
    change(&plan);
    return !why_invalid(plan).empty();
  };
  EXPECT_FALSE(broken([](auto*) {}));
  EXPECT_TRUE(broken([](auto* p) { p->world_size = 0; }));
  EXPECT_TRUE(broken([](auto* p) { p->world_size = kRankCountMax + 1; }));
  EXPECT_TRUE(broken([](auto* p) { p->window_chunks = 65; }));
  EXPECT_TRUE(broken([](auto* p) { p->prefetch_windows = 0; }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces.clear(); }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces.push_back(p->spaces[0]); }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].name = std::string(64, 'n'); }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].members.clear(); }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].members = {Rank(1), Rank(0)}; }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].members = {Rank(2)}; }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].group = kGroupCountMax; }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].param_dtype = static_cast<DType>(9); }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].tensors[1].name = "a.t0"; }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].tensors[1].name = std::string(192, 't'); }));
  // The segment's names end there: it would spell another plan than its own.
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].name = std::string("a\0b", 3); }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].tensors[1].name = std::string("a\0b", 3); }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].tensors[1].shape.assign(9, 1); }));
  EXPECT_TRUE(broken([](auto* p) { p->spaces[0].tensors[1].global_shape = {1}; }));
}

TEST(Geometry, TellsAPlanThatIsLaidOutFromOneThatIsNot) {
  const auto why = [](const std::function<void(SpaceSpec*)>& change) {
    SegmentPlan plan{"job", 2, 1, 2, {}, {make_space("a", {0, 1}, {1000, 200})}};
    EXPECT_TRUE(lay_out(&plan, 4096).is_ok());
    change(&plan.spaces[0]);
    EXPECT_EQ(why_invalid(plan), "");
    return why_not_laid_out(plan);
  };
  EXPECT_EQ(why([](auto*) {}), "");
  EXPECT_NE(why([](auto* s) { s->chunk_elements = 0; }), "");
  EXPECT_NE(why([](auto* s) { s->chunk_elements += 1; }), "");
  EXPECT_NE(why([](auto* s) { s->shard_elements += 64; }), "");
  EXPECT_NE(why([](auto* s) { s->elements -= 1; }), "");
  EXPECT_NE(why([](auto* s) { s->tensors[1].flat_offset += 1; }), "");
  EXPECT_NE(why([](auto* s) { s->tensors[0].elements = 7; }), "");
  EXPECT_NE(why([](auto* s) { s->tensors[0].shape.assign(3, 1u << 16); }), "");
  EXPECT_NE(why([](auto* s) {
              s->tensors = {s->tensors[0]};
              s->tensors[0].shape = {1ull << 40};
              s->tensors[0].elements = s->elements = 1ull << 40;
              s->shard_elements = 1ull << 39;
              s->chunk_elements = 64;
            }),
            "")
      << "2^33 chunks a rank";
}

}  // namespace
}  // namespace optlease::test
