// States of which a part lies in resident segments, as their readers see them.
#include <signal.h>

#include <cstring>
#include <functional>

#include "shm/contract/remainder.h"
#include "shm/digest.h"
#include "shm/kill_point.h"
#include "shm/resident_segment.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

constexpr Step kStep = 2;

class ResidentTest : public testing::Test {
 protected:
  // A job of two ranks at kStep whose state is split so; always the same values.
  void make(const StateSplit& split) {
    const std::string job = format("job%d", jobs_++);
    SegmentPlan plan = make_plan(job, 2, chunk_bytes(256), {space()});
    plan.split = split;
    segments_ = names_.all(job, 2);
    residents_.clear();
    resident_names_.clear();
    Result<ChunkStore> store = ChunkStore::create(plan, segments_);
    OPTLEASE_CHECK(store.is_ok(), "%s", store.status().text().c_str());
    store_ = std::make_unique<ChunkStore>(std::move(store).value());
    for (uint32_t r = 0; r < 2; ++r) {
      resident_names_.push_back(names_.segment(job, format(".d%u", r)));
      if (split.has_resident()) make_resident(plan, r);
    }
    for (uint32_t r = 0; r < 2; ++r) {
      for (uint32_t c = 0; c < store_->view().chunks(Rank(r)).size(); ++c) write(Rank(r), c);
    }
    store_->set_step_committed(kStep);
    arenas_ = open_arenas(segments_, store_->view());
    readers_ = std::move(open_residents(resident_names_, store_->view())).value();
  }
  static SpaceSpec space() {
    SpaceSpec space = make_space("dense", 2, {700, 0, 1, 299, 1500});
    space.param_dtype = DType::kBF16;
    return space;
  }
  void make_resident(const SegmentPlan& plan, uint32_t rank) {
    const ArenaSpec arena = arena_of(plan, Rank(rank));
    Result<ResidentSegment> made = ResidentSegment::open_or_make(
        resident_names_[rank], ResidentSegment::shape_of(store_->view(), Rank(rank), arena), false,
        true);
    OPTLEASE_CHECK(made.is_ok(), "%s", made.status().text().c_str());
    residents_.push_back(std::move(made).value());
  }
  // One chunk, element by element where the layout puts it.
  void write(Rank rank, uint32_t chunk) {
    const StateSplit split = store_->view().split();
    const ChunkRecord& record = store_->view().chunks(rank)[chunk];
    const ChunkLayout layout = layout_of(split, record.elements);
    Result<Segment> arena =
        Segment::open(segments_.arenas[rank.value], Segment::Access::kReadWrite);
    const uint32_t slot = store_->unreferenced_slots(rank).at(0).value;
    char* host = static_cast<char*>(arena.value().data()) + kArenaSlotsOffset +
                 slot * store_->view().rank(rank).slot_bytes;
    char* resident = residents_.empty() ? nullptr
                                        : residents_[rank.value].slots() +
                                              slot * residents_[rank.value].slot_bytes();
    uint64_t sum = 0;
    for (uint32_t array = 0; array < kAdamArrayCount; ++array) {
      for (uint64_t e = 0; e < record.elements; ++e) {
        const float value = value_of(record.space, array, record.first_element + e, kStep);
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        sum += sum_words(&bits, 1, array * array_stride_bytes(record.elements) / 4 + e);
        const ArrayPlace place = place_of(layout, array, e);
        char* to = (place.on_device ? resident : host) + place.offset;
        if (layout.arrays[array].element_bytes == 4) {
          std::memcpy(to, &bits, 4);
          continue;
        }
        const uint16_t rounded = rounded_half(bits), remainder = remainder_half(bits);
        std::memcpy(resident + layout.rounded.offset + 2 * e, &rounded, 2);
        std::memcpy(to, &remainder, 2);
      }
    }
    const SlotEntry entry{slot, 0, sum};
    store_->commit(rank, ChunkIndex(chunk), kStep, {&entry, 1});
  }
  Result<StateDigest> digest() {
    return digest_state(store_->view(), arena_views(arenas_, readers_), sum_words);
  }

  Names names_;
  SegmentNames segments_;
  std::vector<std::string> resident_names_;
  std::unique_ptr<ChunkStore> store_;
  std::vector<ResidentSegment> residents_, readers_;  // the actors', the readers'
  std::vector<Segment> arenas_;
  int jobs_ = 0;
};

const StateSplit kSplits[] = {{MainForm::kF32, 300'000},
                              {MainForm::kF32, 1'000'000},
                              {MainForm::kF32, 50'000},
                              {MainForm::kBf16Remainder, 0},
                              {MainForm::kBf16Remainder, 150'000},
                              {MainForm::kBf16Remainder, 700'000},
                              {MainForm::kBf16Remainder, 1'000'000}};

TEST_F(ResidentTest, TheDigestIsThatOfTheSameStateWithoutASplit) {
  make({});
  const StateDigest plain = digest().value();
  for (const StateSplit& split : kSplits) {
    make(split);
    const Result<StateDigest> found = digest();
    SCOPED_TRACE(testing::Message() << name_of(split.main) << " " << split.resident_millionths);
    ASSERT_TRUE(found.is_ok()) << found.status().text();
    EXPECT_EQ(found.value().state_digest, plain.state_digest);
    EXPECT_EQ(found.value().ranks, plain.ranks);
  }
}

TEST_F(ResidentTest, AnySingleBitOfAResidentSlotIsNoticed) {
  for (const StateSplit& split : kSplits) {
    make(split);
    const ChunkRecord& record = store_->view().chunks(Rank(0))[1];
    const uint32_t slot = store_->view().entries(Rank(0), ChunkIndex(1)).front().slot;
    const ChunkLayout layout = layout_of(split, record.elements);
    if (layout.resident_bytes == 0) continue;  // too little for a chunk of this size
    char* bytes = residents_[0].slots() + slot * residents_[0].slot_bytes();
    const uint64_t used =
        layout.rounded.count * 2 + layout.arrays[0].resident.count * layout.arrays[0].element_bytes;
    for (const uint64_t at : {uint64_t{0}, used / 2}) {
      bytes[at] ^= 16;
      EXPECT_EQ(digest().status().code(), StatusCode::kCorrupt);
      bytes[at] ^= 16;
      EXPECT_TRUE(digest().is_ok());
    }
  }
}

TEST_F(ResidentTest, OneThatItsActorMadeAnewIsToldFromAnothers) {
  make({MainForm::kF32, 300'000});
  const SegmentPlan plan = store_->view().plan();
  auto shape = ResidentSegment::shape_of(store_->view(), Rank(0), arena_of(plan, Rank(0)));
  const std::string& name = resident_names_[0];
  const auto open = [&] {
    Segment opened = std::move(Segment::open(name, Segment::Access::kReadOnly)).value();
    opened.unmap();
    return opened;
  };
  const auto make_anew = [&](bool whole) {
    Segment::unlink(name);
    ASSERT_TRUE(ResidentSegment::open_or_make(name, shape, false, whole).is_ok());
  };
  const Segment was = open();
  make_anew(false);
  EXPECT_FALSE(was.name_still_ours());
  EXPECT_TRUE(is_made_anew(was, open())) << "whether it is whole is no matter";
  shape.job_id[3] ^= 1;
  make_anew(true);
  EXPECT_FALSE(is_made_anew(was, open())) << "another job's";
  shape.job_id[3] ^= 1;
  shape.rank = Rank(1);
  make_anew(true);
  EXPECT_FALSE(is_made_anew(was, open())) << "another rank's";
  Segment::unlink(name);
  ASSERT_TRUE(Segment::create(name, was.bytes()).is_ok());
  EXPECT_FALSE(is_made_anew(was, open())) << "its header is not written";
}

TEST_F(ResidentTest, ASegmentThatIsNotWholeIsSaidInWordsAndNotAsAChecksum) {
  make({MainForm::kF32, 300'000});
  residents_[1].set_void();
  const Status never = digest().status();
  EXPECT_EQ(never.code(), StatusCode::kCorrupt);
  EXPECT_NE(never.message().find("was never saved"), std::string::npos) << never.text();
  residents_[1].set_whole(kStep);
  EXPECT_TRUE(digest().is_ok());
  residents_[1].set_void();
  const Status stale = digest().status();
  EXPECT_NE(stale.message().find("of step 2, and the state has moved on"), std::string::npos)
      << stale.text();
  EXPECT_EQ(stale.message().find("checksum"), std::string::npos);
}

TEST_F(ResidentTest, ReadingWithoutTheSegmentsIsRefused) {
  make({MainForm::kBf16Remainder, 0});
  const Status status = digest_state(store_->view(), arena_views(arenas_), sum_words).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.text();
}

TEST_F(ResidentTest, ATornOrForeignSegmentIsNotOpened) {
  make({MainForm::kF32, 300'000});
  const auto shape =
      ResidentSegment::shape_of(store_->view(), Rank(0), arena_of(store_->view().plan(), Rank(0)));
  const auto open = [&](const ResidentSegment::Shape& wanted) {
    return ResidentSegment::open(resident_names_[0], wanted, Segment::Access::kReadOnly).status();
  };
  EXPECT_TRUE(open(shape).is_ok());
  ResidentSegment::Shape other = shape;
  other.rank = Rank(1);
  EXPECT_EQ(open(other).code(), StatusCode::kCorrupt);
  other = shape;
  other.job_id[5] ^= 1;
  EXPECT_EQ(open(other).code(), StatusCode::kCorrupt);
  other = shape;
  other.slot_bytes += kPageBytes;
  EXPECT_EQ(open(other).code(), StatusCode::kCorrupt);
  auto* header = reinterpret_cast<ResidentHeader*>(residents_[0].slots() - kResidentSlotsOffset);
  header->checksum ^= 1;
  EXPECT_EQ(open(shape).code(), StatusCode::kCorrupt);
}

TEST_F(ResidentTest, AnActorKilledWhileItMakesOneLeavesATornOneOrAWholeOne) {
  make({MainForm::kF32, 300'000});
  const auto shape =
      ResidentSegment::shape_of(store_->view(), Rank(0), arena_of(store_->view().plan(), Rank(0)));
  const std::string& name = resident_names_[0];
  for (const bool written : {false, true}) {
    Segment::unlink(name);
    EXPECT_EQ(run_in_child([&] {
                arm_kill_point(written ? "resident.written" : "resident.made");
                return ResidentSegment::open_or_make(name, shape, false, true).is_ok() ? 0 : 1;
              }),
              -SIGKILL);
    const auto found = ResidentSegment::open(name, shape, Segment::Access::kReadOnly);
    EXPECT_EQ(found.is_ok(), written) << found.status().text();
    EXPECT_EQ(ResidentSegment::open_or_make(name, shape, true, false).is_ok(), written)
        << "a state that needs it";
    const auto next = ResidentSegment::open_or_make(name, shape, false, false);
    ASSERT_TRUE(next.is_ok()) << next.status().text();
    EXPECT_EQ(next.value().is_whole(), written) << "made again, it holds nothing";
  }
}

TEST_F(ResidentTest, ASavingThatIsKilledHalfWayIsNone) {
  make({MainForm::kF32, 300'000});
  residents_[0].set_whole(kStep);
  const auto die_at = [&](const char* point, const std::function<void()>& body) {
    EXPECT_EQ(run_in_child([&] {
                arm_kill_point(point);
                body();
                return 0;
              }),
              -SIGKILL)
        << point;
  };
  die_at("resident.void", [&] { residents_[0].set_void(); });
  EXPECT_FALSE(residents_[0].is_whole());
  EXPECT_EQ(digest().status().code(), StatusCode::kCorrupt);
  die_at("resident.whole", [&] { residents_[0].set_whole(kStep); });
  EXPECT_TRUE(residents_[0].is_whole());
  EXPECT_TRUE(digest().is_ok());
}

TEST_F(ResidentTest, AControlSegmentSaysHowItsStateIsSplit) {
  for (const StateSplit& split : kSplits) {
    make(split);
    EXPECT_EQ(store_->view().split(), split);
    EXPECT_EQ(store_->view().plan().split, split);
    SegmentPlan plan = store_->view().plan();
    plan.split = {};
    store_.reset();
    EXPECT_EQ(ChunkStore::recover(plan, segments_).status().code(), StatusCode::kInvalidArgument)
        << "a state is resumed under another split";
  }
}

}  // namespace
}  // namespace optlease::test
