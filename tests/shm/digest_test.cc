#include "shm/digest.h"

#include <cstring>

#include "shm/chunk_store.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

class DigestTest : public testing::Test {
 protected:
  // A job of `world` ranks with chunks of `chunk` elements, at step `step`; always the same spaces.
  void make(uint32_t world, uint64_t chunk, Step step) {
    SpaceSpec expert = make_space("expert", 1, {777});
    expert.members = {Rank(world - 1)};
    const std::string job = format("job%d", jobs_++);
    const SegmentPlan plan =
        make_plan(job, world, chunk_bytes(chunk),
                  {make_space("dense", world, {700, 0, 1, 299, 1500}), expert});
    segments_ = names_.all(job, world);
    Result<ChunkStore> store = ChunkStore::create(plan, segments_);
    OPTLEASE_CHECK(store.is_ok(), "%s", store.status().text().c_str());
    store_ = std::make_unique<ChunkStore>(std::move(store).value());
    for (Step s = 0; s <= step; ++s) write_step(store_.get(), segments_, s);
    arenas_ = open_arenas(segments_, store_->view());
  }
  Result<StateDigest> try_digest(ChecksumWords checksum = sum_words) {
    return digest_state(store_->view(), arena_views(arenas_), checksum);
  }
  StateDigest digest() {
    Result<StateDigest> found = try_digest();
    OPTLEASE_CHECK(found.is_ok(), "%s", found.status().text().c_str());
    return std::move(found).value();
  }
  // Flips the lowest bit of one element of the committed state; a second call flips it back.
  void change(uint32_t rank, uint32_t chunk, uint32_t array, uint64_t index) {
    const ChunkRecord& record = store_->view().chunks(Rank(rank))[chunk];
    const SlotEntry entry = store_->view().entries(Rank(rank), ChunkIndex(chunk)).front();
    Result<Segment> arena = Segment::open(segments_.arenas[rank], Segment::Access::kReadWrite);
    char* slot = static_cast<char*>(arena.value().data()) + kArenaSlotsOffset +
                 entry.slot * store_->view().rank(Rank(rank)).slot_bytes;
    auto* data = reinterpret_cast<uint32_t*>(slot + array * array_stride_bytes(record.elements));
    data[index] ^= 1;
  }

  Names names_;
  SegmentNames segments_;
  std::unique_ptr<ChunkStore> store_;
  std::vector<Segment> arenas_;
  int jobs_ = 0;
};

TEST_F(DigestTest, IsTheSameForEveryChunkSizeAndWorldSize) {
  make(1, 4096, 3);
  const StateDigest first = digest();
  EXPECT_EQ(first.state_digest.size(), 32u);
  EXPECT_EQ(first.step_committed, 3);
  for (const uint32_t world : {1u, 2u, 3u, 5u}) {
    for (const uint64_t chunk : {64u, 128u, 192u, 1024u}) {
      make(world, chunk, 3);
      const StateDigest other = digest();
      SCOPED_TRACE(format("world %u, chunk %llu", world, static_cast<unsigned long long>(chunk)));
      EXPECT_EQ(other.state_digest, first.state_digest);
      ASSERT_EQ(other.spaces.size(), 2u);
      for (size_t t = 0; t < first.spaces[0].tensors.size(); ++t) {
        EXPECT_EQ(other.spaces[0].tensors[t].digest, first.spaces[0].tensors[t].digest);
        EXPECT_EQ(other.spaces[0].tensors[t].arrays[2], first.spaces[0].tensors[t].arrays[2]);
      }
    }
  }
}

TEST_F(DigestTest, RankDigestsDoNotDependOnTheChunkSize) {
  make(2, 64, 1);
  const StateDigest small = digest();
  make(2, 1024, 1);
  const StateDigest large = digest();
  EXPECT_EQ(small.ranks, large.ranks);
  EXPECT_NE(small.ranks[0], small.ranks[1]);
}

TEST_F(DigestTest, ChangesWithAnyElementOfAnyArray) {
  make(2, 128, 0);
  const StateDigest before = digest();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (uint32_t chunk = 0; chunk < store_->view().chunks(Rank(rank)).size(); ++chunk) {
      const uint64_t elements = store_->view().chunks(Rank(rank))[chunk].elements;
      for (uint32_t array = 0; array < kAdamArrayCount; ++array) {
        for (const uint64_t index : {uint64_t{0}, elements / 2, elements - 1}) {
          change(rank, chunk, array, index);
          const StateDigest after = std::move(try_digest(nullptr)).value();
          EXPECT_NE(after.state_digest, before.state_digest)
              << rank << " " << chunk << " " << array << " " << index;
          EXPECT_NE(after.ranks[rank], before.ranks[rank]);
          EXPECT_EQ(after.ranks[1 - rank], before.ranks[1 - rank]);
          change(rank, chunk, array, index);
        }
      }
    }
  }
}

TEST_F(DigestTest, NamesTheTensorThatDiffers) {
  make(1, 4096, 0);
  const StateDigest before = digest();
  const uint64_t chunk = store_->view().spaces()[0].chunk_elements;
  change(0, static_cast<uint32_t>(700 / chunk), 1, 700 % chunk);  // the third tensor's one element
  const StateDigest after = std::move(try_digest(nullptr)).value();
  for (size_t t = 0; t < before.spaces[0].tensors.size(); ++t) {
    EXPECT_EQ(after.spaces[0].tensors[t].digest == before.spaces[0].tensors[t].digest, t != 2) << t;
  }
  EXPECT_EQ(after.spaces[0].tensors[2].arrays[0], before.spaces[0].tensors[2].arrays[0]);
  EXPECT_NE(after.spaces[0].tensors[2].arrays[1], before.spaces[0].tensors[2].arrays[1]);
  EXPECT_EQ(after.spaces[1].digest, before.spaces[1].digest);
}

TEST_F(DigestTest, ChangesWithAVersionWhereNoValueChanges) {
  make(2, 128, 0);
  const StateDigest before = digest();
  store_->commit_unchanged(Rank(1), ChunkIndex(0), 1);
  const StateDigest after = digest();
  EXPECT_NE(after.state_digest, before.state_digest);
  EXPECT_EQ(after.ranks[0], before.ranks[0]);
  EXPECT_NE(after.ranks[1], before.ranks[1]);
}

TEST_F(DigestTest, ADamagedSlotIsNamedWithBothChecksums) {
  make(2, 128, 1);
  change(1, 2, 0, 5);
  const Status status = try_digest().status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  for (const char* part : {"space 'dense'", "rank 1", "chunk 2", "slot", "expected"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status.text();
  }
}

TEST_F(DigestTest, AnUnwrittenChunkIsNotFound) {
  make(1, 128, -1);
  EXPECT_EQ(try_digest().status().code(), StatusCode::kNotFound);
}

TEST_F(DigestTest, ReadsAnyRangeOnceInOrder) {
  make(3, 128, 2);
  for (const ElementRange range :
       {ElementRange{0, 2500}, {0, 0}, {1, 2}, {63, 65}, {800, 1700}, {2499, 2500}, {2500, 2500}}) {
    uint64_t next = range.begin;
    const Status read = read_elements(
        store_->view(), arena_views(arenas_), 0, 1, range, [&](const ElementRun& run) {
          EXPECT_EQ(run.first_element, next);
          EXPECT_EQ(run.version, 2);
          EXPECT_GT(run.count, 0u);
          for (uint64_t i = 0; i < run.count; ++i) {
            EXPECT_EQ(run.data[i], value_of(0, 1, run.first_element + i, 2));
          }
          next += run.count;
          return Status::ok();
        });
    EXPECT_TRUE(read.is_ok()) << read.text();
    EXPECT_EQ(next, range.end);
  }
  const auto ignore = [](const ElementRun&) { return Status::ok(); };
  const auto views = arena_views(arenas_);
  EXPECT_EQ(read_elements(store_->view(), views, 0, 0, {0, 2501}, ignore).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(read_elements(store_->view(), views, 2, 0, {0, 1}, ignore).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(read_elements(store_->view(), views, 0, 3, {0, 1}, ignore).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(read_elements(store_->view(), {}, 0, 0, {0, 1}, ignore).code(),
            StatusCode::kInvalidArgument)
      << "no arena is mapped";
}

TEST_F(DigestTest, StopsAtTheFirstErrorOfTheCallback) {
  make(1, 64, 0);
  int calls = 0;
  const Status status =
      read_elements(store_->view(), arena_views(arenas_), 0, 0, {0, 2500}, [&](const ElementRun&) {
        ++calls;
        return Status{StatusCode::kCancelled, "enough"};
      });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace optlease::test
