#include "shm/chunk_store.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cstdio>
#include <cstring>

#include "shm/chunk_window.h"
#include "shm/control_check.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

class ChunkStoreTest : public testing::Test {
 protected:
  ChunkStore create() {
    Result<ChunkStore> made = ChunkStore::create(plan_, segments_);
    OPTLEASE_CHECK(made.is_ok(), "%s", made.status().text().c_str());
    return std::move(made).value();
  }
  ChunkStore recover() {
    Result<ChunkStore> found = ChunkStore::recover(plan_, segments_);
    OPTLEASE_CHECK(found.is_ok(), "%s", found.status().text().c_str());
    return std::move(found).value();
  }
  StatusCode recover_code() { return ChunkStore::recover(plan_, segments_).status().code(); }

  Names names_;
  SegmentPlan plan_ = small_plan("job");
  SegmentNames segments_ = names_.all("job", 2);
};

TEST_F(ChunkStoreTest, DescribesThePlanThatMadeIt) {
  plan_.spaces[0].tensors[1].global_shape = {600};
  plan_.spaces[0].tensors[1].global_offset = {300};
  const ChunkStore store = create();
  const ControlView& view = store.view();
  const SegmentPlan found = view.plan();
  EXPECT_EQ(layout_hash(found), layout_hash(plan_));
  EXPECT_EQ(found.job_name, "job");
  EXPECT_EQ(found.spaces[0].tensors[1].global_offset, std::vector<uint64_t>{300});
  EXPECT_EQ(view.step_committed(), kNoStep);
  EXPECT_EQ(store.epoch(), StoreEpoch(1));
  uint64_t next = 0;
  for (uint32_t r = 0; r < 2; ++r) {
    const ArenaSpec arena = arena_of(plan_, Rank(r));
    EXPECT_EQ(view.rank(Rank(r)).slot_count, arena.slot_count);
    EXPECT_EQ(store.unreferenced_slots(Rank(r)).size(), arena.slot_count);
    for (const ChunkRecord& chunk : view.chunks(Rank(r))) {
      EXPECT_EQ(chunk.first_element, next);
      next += chunk.elements;
      EXPECT_EQ(version_of(chunk.commit_word.load()), kNoStep);
    }
  }
  EXPECT_EQ(next, 1000u);
}

TEST_F(ChunkStoreTest, CommitsNewVersionsAndFreesTheOldSlots) {
  ChunkStore store = create();
  for (Step step = 0; step < 4; ++step) {
    write_step(&store, segments_, step);
    for (uint32_t r = 0; r < 2; ++r) {
      const auto& rank = store.view().rank(Rank(r));
      EXPECT_EQ(store.unreferenced_slots(Rank(r)).size(), rank.slot_count - rank.chunk_count);
      for (uint32_t c = 0; c < rank.chunk_count; ++c) {
        EXPECT_EQ(store.view().version(Rank(r), ChunkIndex(c)), step);
      }
    }
  }
  EXPECT_EQ(store.view().step_committed(), 3);
}

TEST_F(ChunkStoreTest, MovesAVersionUnchangedWithItsSlotsAndSums) {
  ChunkStore store = create();
  write_step(&store, segments_, 0);
  const SlotEntry before = store.view().entries(Rank(0), ChunkIndex(1)).front();
  store.commit_unchanged(Rank(0), ChunkIndex(1), 1);
  store.commit_unchanged(Rank(0), ChunkIndex(1), 1);  // again, as after the store's own restart
  const SlotEntry after = store.view().entries(Rank(0), ChunkIndex(1)).front();
  EXPECT_EQ(store.view().version(Rank(0), ChunkIndex(1)), 1);
  EXPECT_EQ(before.slot, after.slot);
  EXPECT_EQ(before.checksum, after.checksum);
}

TEST_F(ChunkStoreTest, RecoversWhatACleanOrDeadStoreLeft) {
  {
    ChunkStore store = create();
    write_step(&store, segments_, 0);
    store.write_step_record(Rank(0), make_record(1));
    store.set_incarnation(Rank(1), Incarnation(7));
    store.set_kept_on_purpose(true);
    store.count_skipped_step();
  }
  const ChunkStore store = recover();
  EXPECT_EQ(store.epoch(), StoreEpoch(2));
  EXPECT_EQ(store.view().step_committed(), 0);
  EXPECT_TRUE(store.view().step_record(Rank(0), 1));
  EXPECT_FALSE(store.view().step_is_open()) << "rank 1 has no record";
  EXPECT_EQ(store.view().rank(Rank(1)).incarnation.load(), 7u);
  EXPECT_EQ(store.view().header().kept_on_purpose.load(), 1u);
  EXPECT_EQ(store.view().header().steps_skipped.load(), 1u);
  EXPECT_EQ(recover().epoch(), StoreEpoch(3));
}

TEST_F(ChunkStoreTest, AStepIsOpenWhenEveryRankHasItsRecord) {
  ChunkStore store = create();
  write_step(&store, segments_, 0);
  store.write_step_record(Rank(0), make_record(1));
  store.write_step_record(Rank(1), make_record(1));
  EXPECT_TRUE(store.view().step_is_open());
  EXPECT_FALSE(store.view().step_record(Rank(0), 3)) << "the bank holds another step";
  store.set_step_committed(1);
  EXPECT_FALSE(store.view().step_is_open());
}

TEST_F(ChunkStoreTest, KeepsBlobsOfTwoStepsAndCarriesThemForward) {
  ChunkStore store = create();
  const std::string large(kUserBlobBytesMax, 'z');
  store.write_blob(Rank(1), 1, large);
  store.write_blob(Rank(1), 2, "");
  EXPECT_EQ(store.view().blob(Rank(1), 1), large);
  EXPECT_EQ(store.view().blob(Rank(1), 2), "") << "an empty blob is a blob";
  store.write_blob(Rank(1), 3, "three");
  store.keep_blob(Rank(1), 4);
  EXPECT_EQ(store.view().blob(Rank(1), 4), "three");
  EXPECT_EQ(store.view().blob(Rank(1), 3), "three");
  EXPECT_FALSE(store.view().blob(Rank(1), 2)) << "its bank holds step 4";
  store.keep_blob(Rank(0), 1);
  EXPECT_FALSE(store.view().blob(Rank(0), 1)) << "there was none to keep";
}

TEST_F(ChunkStoreTest, ALesseeSeesItsArenaAndOnlyReadsTheControlSegment) {
  ChunkStore store = create();
  Result<ChunkWindow> window = ChunkWindow::open(segments_.control, segments_.arenas[1], Rank(1));
  ASSERT_TRUE(window.is_ok()) << window.status().text();
  EXPECT_EQ(window.value().slot_count(), store.view().rank(Rank(1)).slot_count);
  std::memset(window.value().slot(SlotIndex(window.value().slot_count() - 1)), 1,
              window.value().slot_bytes());
  write_step(&store, segments_, 0);
  EXPECT_EQ(window.value().view().version(Rank(1), ChunkIndex(0)), 0);
  EXPECT_EQ(ChunkWindow::open(segments_.control, segments_.arenas[0], Rank(1)).status().code(),
            StatusCode::kCorrupt)
      << "that is rank 0's arena";
  EXPECT_EQ(ChunkWindow::open(segments_.control, segments_.arenas[1], Rank(2)).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(ChunkStoreTest, RefusesAnotherPlanJobOrArena) {
  { const ChunkStore store = create(); }
  const SegmentPlan ours = plan_;
  plan_.spaces[0].tensors[0].shape = {701};
  ASSERT_TRUE(lay_out(&plan_, chunk_bytes(128)).is_ok());
  EXPECT_EQ(recover_code(), StatusCode::kInvalidArgument);
  plan_ = ours;
  plan_.job_name = "other";
  EXPECT_EQ(recover_code(), StatusCode::kInvalidArgument);
  plan_ = ours;
  std::swap(segments_.arenas[0], segments_.arenas[1]);
  EXPECT_EQ(recover_code(), StatusCode::kCorrupt);
  std::swap(segments_.arenas[0], segments_.arenas[1]);
  const SegmentNames other_names = names_.all("other", 2);
  { ASSERT_TRUE(ChunkStore::create(plan_, other_names).is_ok()); }
  segments_.arenas[1] = other_names.arenas[1];
  EXPECT_EQ(recover_code(), StatusCode::kCorrupt) << "an arena of another job";
  segments_ = names_.all("job", 2);
  EXPECT_EQ(recover().epoch(), StoreEpoch(2)) << "no refusal raised the epoch";
}

TEST_F(ChunkStoreTest, ATakenNameLeavesItsOwnerAloneAndNothingElseBehind) {
  ASSERT_TRUE(Segment::create(segments_.arenas[1], 4096).is_ok());
  EXPECT_EQ(ChunkStore::create(plan_, segments_).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(names_.left_in_shm(), std::vector<std::string>{segments_.arenas[1].substr(1)});
}

TEST_F(ChunkStoreTest, NoSpaceNamesTheNumbersAndLeavesNothing) {
  SpaceSpec huge = make_space("huge", 2, {1ull << 45});
  plan_ = make_plan("job", 2, 1u << 30, {huge});
  const Status status = ChunkStore::create(plan_, segments_).status();
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  unsigned long long needed = 0, free = 0;
  const char* numbers = std::strstr(status.message().c_str(), "needs ");
  ASSERT_NE(numbers, nullptr) << status.text();
  ASSERT_EQ(std::sscanf(numbers, "needs %llu bytes of shared memory and /dev/shm has %llu free",
                        &needed, &free),
            2)
      << status.text();
  uint64_t arenas = 0;
  for (uint32_t r = 0; r < 2; ++r) {
    const ArenaSpec arena = arena_of(plan_, Rank(r));
    arenas += kArenaSlotsOffset + arena.slot_bytes * arena.slot_count;
  }
  EXPECT_GT(needed, arenas) << "with the control segment";
  EXPECT_LT(needed, arenas + arenas / 10);
  struct statvfs shm {};
  ASSERT_EQ(::statvfs("/dev/shm", &shm), 0);
  EXPECT_LE(free, uint64_t{shm.f_blocks} * shm.f_frsize);
  EXPECT_GT(free, 0u);
  EXPECT_TRUE(names_.left_in_shm().empty());
}

TEST_F(ChunkStoreTest, RefusesAPlanThatWasNotLaidOut) {
  plan_.spaces[0].chunk_elements = 0;
  EXPECT_EQ(ChunkStore::create(plan_, segments_).status().code(), StatusCode::kInvalidArgument);
  plan_ = small_plan("job");
  segments_.arenas.pop_back();
  EXPECT_EQ(ChunkStore::create(plan_, segments_).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ChunkStoreTest, HoldsSpacesThatSomeRanksHaveNoPartOf) {
  SpaceSpec expert = make_space("expert", 1, {5000});
  expert.members = {Rank(1)};
  SpaceSpec empty = make_space("empty", 2, {});
  plan_ = make_plan("job", 3, chunk_bytes(256), {make_space("dense", 2, {900}), empty, expert});
  segments_ = names_.all("job", 3);
  ChunkStore store = create();
  EXPECT_TRUE(store.view().chunks(Rank(2)).empty());
  EXPECT_TRUE(store.unreferenced_slots(Rank(2)).empty());
  write_step(&store, segments_, 0);
  EXPECT_EQ(recover_code(), StatusCode::kOk);
}

TEST_F(ChunkStoreTest, UnlinkRemovesEveryName) {
  { const ChunkStore store = create(); }
  ChunkStore::unlink(segments_);
  EXPECT_TRUE(names_.left_in_shm().empty());
  ChunkStore::unlink(segments_);  // absent is fine
}

using ChunkStoreDeathTest = ChunkStoreTest;

TEST_F(ChunkStoreDeathTest, ACommitOfAnOldVersionOrAStraySlotAborts) {
  ChunkStore store = create();
  write_step(&store, segments_, 0);
  const SlotEntry stray{1u << 20, 0, 0};
  const SlotEntry fine{0, 0, 0};
  EXPECT_DEATH(store.commit(Rank(0), ChunkIndex(0), 0, {&fine, 1}), "commit of version");
  EXPECT_DEATH(store.commit(Rank(0), ChunkIndex(0), 1, {&stray, 1}), "slot");
  EXPECT_DEATH(store.commit(Rank(0), ChunkIndex(99), 1, {&fine, 1}), "chunk 99");
  EXPECT_DEATH(store.view().rank(Rank(2)), "rank 2 of 2");
}

}  // namespace
}  // namespace optlease::test
