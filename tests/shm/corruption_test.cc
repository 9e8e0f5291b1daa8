// Damaged segments: every byte of the headers, sampled bytes of the tables, lengths and versions.
// Each is refused in words or harmless; none may lead a reader outside the mapping.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "shm/chunk_store.h"
#include "shm/control_check.h"
#include "shm/digest.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

// A control segment's bytes at the very end of a mapping, with an unreadable page behind them: a
// read past the end ends the test program.
class Fenced {
 public:
  explicit Fenced(uint64_t bytes) {
    const uint64_t whole = (bytes + 4095) / 4096 * 4096 + 4096;
    map_ = static_cast<char*>(
        ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    OPTLEASE_CHECK(map_ != MAP_FAILED, "mmap");
    OPTLEASE_CHECK(::mprotect(map_ + whole - 4096, 4096, PROT_NONE) == 0, "mprotect");
    whole_ = whole;
    data_ = map_ + (whole - 4096 - bytes) / 64 * 64;
  }
  ~Fenced() { ::munmap(map_, whole_); }
  char* data() const { return data_; }

 private:
  char* map_;
  char* data_;
  uint64_t whole_;
};

class CorruptionTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<ChunkStore> store = ChunkStore::create(plan_, segments_);
    ASSERT_TRUE(store.is_ok());
    write_step(&store.value(), segments_, 0);
    store.value().write_sums_digest(Rank(0), make_sums_digest(1, 7));
    store.value().write_step_record(Rank(0), make_record(1));
    store.value().write_blob(Rank(1), 1, "blob");
    Result<Segment> control = Segment::open(segments_.control, Segment::Access::kReadOnly);
    ASSERT_TRUE(control.is_ok());
    good_.assign(static_cast<const char*>(control.value().data()), control.value().bytes());
    arenas_ = open_arenas(segments_, store.value().view());
    tables_end_ = store.value().view().header().blobs_offset;
  }

  // Everything that a reader does with a view that was accepted.
  void read_everything(const ControlView& view) {
    for (uint32_t r = 0; r < view.header().world_size; ++r) {
      (void)view.step_record(Rank(r), 1);
      (void)view.sums_digest(Rank(r), 1);
      (void)view.blob(Rank(r), 1);
    }
    (void)view.step_is_open();
    (void)check_control_at_rest(view);
    (void)digest_state(view, arena_views(arenas_), sum_words);
  }

  // True when the bytes are accepted (and then read in full).
  bool accepts(const char* data, uint64_t bytes) {
    const Result<ControlView> view = ControlView::over(data, bytes);
    if (!view.is_ok()) {
      EXPECT_FALSE(view.status().message().empty());
      return false;
    }
    read_everything(view.value());
    return true;
  }

  Names names_;
  SegmentPlan plan_ = small_plan("job");
  SegmentNames segments_ = names_.all("job", 2);
  std::string good_;
  std::vector<Segment> arenas_;
  uint64_t tables_end_ = 0;
};

TEST_F(CorruptionTest, AcceptsTheUndamagedBytes) {
  const Fenced memory(good_.size());
  std::memcpy(memory.data(), good_.data(), good_.size());
  EXPECT_TRUE(accepts(memory.data(), good_.size()));
}

TEST_F(CorruptionTest, EveryFlippedBitOfTheHeaderIsRefusedOrHarmless) {
  const Fenced memory(good_.size());
  std::memcpy(memory.data(), good_.data(), good_.size());
  for (uint64_t byte = 0; byte < sizeof(SegmentHeader); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      memory.data()[byte] ^= static_cast<char>(1 << bit);
      const bool accepted = accepts(memory.data(), good_.size());
      // Only the words that a store writes while it runs may be accepted with another value.
      const bool running_word = byte >= offsetof(SegmentHeader, kept_on_purpose) &&
                                byte < offsetof(SegmentHeader, reserved_zero);
      EXPECT_TRUE(!accepted || running_word) << "byte " << byte << ", bit " << bit;
      memory.data()[byte] ^= static_cast<char>(1 << bit);
    }
  }
}

TEST_F(CorruptionTest, AChangedStepWordIsRefusedByRecovery) {
  for (uint64_t bit = 0; bit < 64; ++bit) {
    {
      Result<Segment> control = Segment::open(segments_.control, Segment::Access::kReadWrite);
      ASSERT_TRUE(control.is_ok());
      auto* header = static_cast<SegmentHeader*>(control.value().data());
      header->step_committed.store(0 ^ static_cast<int64_t>(1ull << bit));
      EXPECT_EQ(ChunkStore::recover(plan_, segments_).status().code(), StatusCode::kCorrupt)
          << "bit " << bit;
      header->step_committed.store(0);
    }
  }
}

// Everybody counts on from it.
TEST_F(CorruptionTest, AStepWordThatNoJobReachesIsRefusedByEveryReader) {
  const Fenced memory(good_.size());
  std::memcpy(memory.data(), good_.data(), good_.size());
  auto* header = reinterpret_cast<SegmentHeader*>(memory.data());
  for (const Step step : {kNoStep - 1, kStepMax + 1, Step{INT64_MAX}, Step{INT64_MIN}}) {
    header->step_committed.store(step);
    EXPECT_FALSE(accepts(memory.data(), good_.size())) << step;
  }
  header->step_committed.store(kStepMax);
  EXPECT_TRUE(accepts(memory.data(), good_.size()));
}

TEST_F(CorruptionTest, EveryFlippedByteOfTheTablesIsRefusedOrHarmless) {
  const Fenced memory(good_.size());
  std::memcpy(memory.data(), good_.data(), good_.size());
  std::mt19937_64 random(20261129);
  uint64_t refused = 0;
  for (uint64_t byte = sizeof(SegmentHeader); byte < tables_end_; ++byte) {
    const char before = memory.data()[byte];
    for (const int value : {before ^ 1, before ^ 0x80, static_cast<int>(random() & 0xff), 0xff}) {
      memory.data()[byte] = static_cast<char>(value);
      refused += accepts(memory.data(), good_.size()) ? 0 : 1;
    }
    memory.data()[byte] = before;
  }
  EXPECT_GT(refused, 500u) << "the tables' contents are not looked at";
}

TEST_F(CorruptionTest, RandomDamageNeverLeadsAReaderOutside) {
  const Fenced memory(good_.size());
  const uint64_t seed = 42;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE(format("seed %llu, round %d", static_cast<unsigned long long>(seed), round));
    std::memcpy(memory.data(), good_.data(), tables_end_);
    const uint64_t damages = 1 + random() % 8;
    for (uint64_t d = 0; d < damages; ++d) {
      memory.data()[random() % tables_end_] = static_cast<char>(random());
    }
    // Half of them with a checksum that holds, so that the rules behind it are reached.
    auto* header = reinterpret_cast<SegmentHeader*>(memory.data());
    if (round % 2 == 0) header->header_checksum = header_checksum_of(*header);
    (void)accepts(memory.data(), good_.size());
  }
}

TEST_F(CorruptionTest, HeaderFieldsWithAGoodChecksumAreStillChecked) {
  const Fenced memory(good_.size());
  std::mt19937_64 random(7);
  for (uint64_t byte = 0; byte < offsetof(SegmentHeader, header_checksum); ++byte) {
    std::memcpy(memory.data(), good_.data(), good_.size());
    auto* header = reinterpret_cast<SegmentHeader*>(memory.data());
    memory.data()[byte] ^= static_cast<char>(1 + random() % 255);
    header->header_checksum = header_checksum_of(*header);
    const bool free_field =
        (byte >= offsetof(SegmentHeader, job_id) && byte < offsetof(SegmentHeader, world_size));
    EXPECT_TRUE(free_field || !accepts(memory.data(), good_.size())) << "byte " << byte;
  }
}

TEST_F(CorruptionTest, ATruncatedSegmentIsRefusedAtEveryLength) {
  for (const uint64_t bytes :
       {uint64_t{1}, uint64_t{303}, uint64_t{304}, uint64_t{4096}, tables_end_, good_.size() - 1}) {
    const Fenced memory(bytes);
    std::memcpy(memory.data(), good_.data(), bytes);
    EXPECT_FALSE(accepts(memory.data(), bytes)) << bytes;
  }
}

TEST_F(CorruptionTest, TruncatedFilesAreRefusedByEveryOpener) {
  const auto expect_refused = [&](const std::string& name, uint64_t bytes) {
    ASSERT_EQ(::truncate(Segment::path_of(name).c_str(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(ChunkStore::recover(plan_, segments_).status().code(), StatusCode::kCorrupt)
        << name << " of " << bytes;
  };
  expect_refused(segments_.arenas[1], arenas_[1].bytes() - 4096);
  expect_refused(segments_.arenas[1], 100);
  expect_refused(segments_.arenas[1], 0);
  expect_refused(segments_.control, good_.size() - 1);
  expect_refused(segments_.control, 100);
  expect_refused(segments_.control, 0);
}

TEST_F(CorruptionTest, AnotherFormatVersionIsNamedAsSuch) {
  std::string bytes = good_;
  bytes.resize(good_.size());
  reinterpret_cast<SegmentHeader*>(bytes.data())->version = kSegmentVersion + 1;
  EXPECT_EQ(ControlView::over(bytes.data(), bytes.size()).status().code(),
            StatusCode::kWrongVersion);
}

TEST_F(CorruptionTest, EveryFlippedByteOfAnArenaHeaderIsRefused) {
  Result<Segment> arena = Segment::open(segments_.arenas[0], Segment::Access::kReadWrite);
  ASSERT_TRUE(arena.is_ok());
  char* data = static_cast<char*>(arena.value().data());
  for (uint64_t byte = 0; byte < sizeof(ArenaHeader); ++byte) {
    data[byte] ^= 0x10;
    const StatusCode code = ChunkStore::recover(plan_, segments_).status().code();
    EXPECT_TRUE(code == StatusCode::kCorrupt || code == StatusCode::kWrongVersion) << byte;
    data[byte] ^= 0x10;
  }
  EXPECT_TRUE(ChunkStore::recover(plan_, segments_).is_ok());
}

TEST_F(CorruptionTest, ASlotThatIsCommittedTwiceIsRefusedByRecovery) {
  {
    Result<ChunkStore> store = ChunkStore::recover(plan_, segments_);
    ASSERT_TRUE(store.is_ok());
    const SlotEntry taken = store.value().view().entries(Rank(0), ChunkIndex(0)).front();
    store.value().commit(Rank(0), ChunkIndex(1), 1, {&taken, 1});
  }
  const Status status = ChunkStore::recover(plan_, segments_).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("two committed chunks"), std::string::npos) << status.text();
}

}  // namespace
}  // namespace optlease::test
