// The store killed at every instant of everything that it writes: what the next life finds.
#include <signal.h>

#include <cstring>

#include "shm/chunk_store.h"
#include "shm/kill_point.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

class CrashTest : public testing::Test {
 protected:
  // Runs `body` in a child that dies at `point`.
  void die_at(const std::string& point, const std::function<void()>& body) {
    EXPECT_EQ(run_in_child([&] {
                arm_kill_point(point.c_str());
                body();
                return 0;
              }),
              -SIGKILL)
        << point << " was never reached";
  }
  void create_with_step_0() {
    Result<ChunkStore> store = ChunkStore::create(plan_, segments_);
    ASSERT_TRUE(store.is_ok()) << store.status().text();
    write_step(&store.value(), segments_, 0);
  }
  // In a child: recovers and does `work` until it dies at `point`.
  void work_until(const std::string& point, const std::function<void(ChunkStore*)>& work) {
    die_at(point, [&] {
      Result<ChunkStore> store = ChunkStore::recover(plan_, segments_);
      if (store.is_ok()) work(&store.value());
    });
  }
  ChunkStore recover() {
    Result<ChunkStore> store = ChunkStore::recover(plan_, segments_);
    OPTLEASE_CHECK(store.is_ok(), "%s", store.status().text().c_str());
    return std::move(store).value();
  }
  // Every committed chunk sums to its entry and holds exactly the values of its version.
  void expect_whole(const ChunkStore& store) {
    const std::vector<Segment> arenas = open_arenas(segments_, store.view());
    const std::vector<ArenaView> views = arena_views(arenas);
    for (uint32_t r = 0; r < plan_.world_size; ++r) {
      for (uint32_t c = 0; c < store.view().chunks(Rank(r)).size(); ++c) {
        const Status sums = verify_chunk(store.view(), views, Rank(r), ChunkIndex(c), sum_words);
        EXPECT_TRUE(sums.is_ok()) << sums.text();
      }
    }
    for (uint32_t array = 0; array < kAdamArrayCount; ++array) {
      const Status read = read_elements(
          store.view(), views, 0, array, {0, plan_.spaces[0].elements}, [&](const ElementRun& run) {
            for (uint64_t i = 0; i < run.count; ++i) {
              if (run.data[i] != value_of(0, array, run.first_element + i, run.version)) {
                return Status{
                    StatusCode::kCorrupt,
                    format("element %llu", static_cast<unsigned long long>(run.first_element + i))};
              }
            }
            return Status::ok();
          });
      EXPECT_TRUE(read.is_ok()) << read.text();
    }
  }

  Names names_;
  SegmentPlan plan_ = small_plan("job");
  SegmentNames segments_ = names_.all("job", 2);
};

TEST_F(CrashTest, ACreatorKilledBeforeReadyLeavesNothingThatIsTrusted) {
  // Three segments are made in turn: control, two arenas.
  const char* points[] = {"segment.created:1",     "segment.reserved:1",   "segment.mapped:1",
                          "store.control_made",    "store.spaces_written", "store.ranks_written",
                          "store.header_written",  "segment.created:2",    "segment.reserved:2",
                          "segment.mapped:2",      "store.arena_made:1",   "store.arena_written:1",
                          "segment.created:3",     "segment.reserved:3",   "store.arena_made:2",
                          "store.arena_written:2", "store.before_ready"};
  for (const char* point : points) {
    SCOPED_TRACE(point);
    die_at(point, [&] { (void)ChunkStore::create(plan_, segments_); });
    EXPECT_EQ(ChunkStore::recover(plan_, segments_).status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(ChunkStore::create(plan_, segments_).status().code(), StatusCode::kAlreadyExists);
    ChunkStore::unlink(segments_);
    EXPECT_TRUE(names_.left_in_shm().empty());
    EXPECT_TRUE(ChunkStore::create(plan_, segments_).is_ok()) << "the name is usable again";
    ChunkStore::unlink(segments_);
  }
}

TEST_F(CrashTest, ACreatorKilledAfterReadyLeavesAWholeSet) {
  die_at("store.ready", [&] { (void)ChunkStore::create(plan_, segments_); });
  EXPECT_EQ(recover().view().step_committed(), kNoStep);
}

TEST_F(CrashTest, ACommitKilledBeforeItsFlipLeavesTheOldVersionAndAfterItTheNew) {
  const struct {
    const char* point;
    Step version;
  } cases[] = {{"commit.entry_written", 0}, {"commit.before_flip", 0}, {"commit.flipped", 1}};
  for (const auto& [point, version] : cases) {
    SCOPED_TRACE(point);
    create_with_step_0();
    work_until(point, [&](ChunkStore* store) {
      write_version(store, segments_, Rank(1), ChunkIndex(0), 1);
    });
    const ChunkStore store = recover();
    EXPECT_EQ(store.view().version(Rank(1), ChunkIndex(0)), version);
    expect_whole(store);
    ChunkStore::unlink(segments_);
  }
}

TEST_F(CrashTest, ARunOfStepsKilledAtEveryCommitGoesOnFromWholeChunks) {
  create_with_step_0();
  Step step = 1;
  for (int occurrence = 1; occurrence <= 12; ++occurrence) {
    for (const char* point : {"commit.entry_written", "commit.flipped", "step_word.before"}) {
      // A step word is written once a step: later occurrences of it are never reached.
      if (std::strcmp(point, "step_word.before") == 0 && occurrence > 2) continue;
      SCOPED_TRACE(format("%s:%d", point, occurrence));
      const int end = run_in_child([&] {
        arm_kill_point(format("%s:%d", point, occurrence).c_str());
        Result<ChunkStore> store = ChunkStore::recover(plan_, segments_);
        if (!store.is_ok()) return 1;
        for (Step s = store.value().view().step_committed() + 1; s < step + 3; ++s) {
          for (uint32_t r = 0; r < 2; ++r) {
            for (uint32_t c = 0; c < store.value().view().chunks(Rank(r)).size(); ++c) {
              if (store.value().view().version(Rank(r), ChunkIndex(c)) == s) continue;
              write_version(&store.value(), segments_, Rank(r), ChunkIndex(c), s);
            }
          }
          store.value().set_step_committed(s);
        }
        return 0;
      });
      EXPECT_TRUE(end == -SIGKILL || end == 0) << end;
      const ChunkStore store = recover();
      expect_whole(store);
      step = store.view().step_committed() + 1;
    }
  }
  EXPECT_GT(step, 5);
}

TEST_F(CrashTest, AStepRecordKilledHalfwayIsNoneAndAWrittenOneStays) {
  create_with_step_0();
  for (const char* point : {"record.emptied", "record.body_written"}) {
    work_until(point,
               [&](ChunkStore* store) { store->write_step_record(Rank(0), make_record(1)); });
    EXPECT_FALSE(recover().view().step_record(Rank(0), 1)) << point;
  }
  work_until("record.written",
             [&](ChunkStore* store) { store->write_step_record(Rank(0), make_record(1)); });
  EXPECT_TRUE(recover().view().step_record(Rank(0), 1));
  // The same record again writes nothing, so that no kill can lose it.
  EXPECT_EQ(run_in_child([&] {
              arm_kill_point("record.emptied");
              Result<ChunkStore> store = ChunkStore::recover(plan_, segments_);
              store.value().write_step_record(Rank(0), make_record(1));
              return 0;
            }),
            0);
}

TEST_F(CrashTest, ADigestOfSumsKilledHalfwayIsNoneAndAWrittenOneStays) {
  create_with_step_0();
  { recover().write_sums_digest(Rank(0), make_sums_digest(1, 11)); }
  const auto write = [](ChunkStore* store) {
    store->write_sums_digest(Rank(0), make_sums_digest(2, 22));
  };
  for (const char* point : {"sums.emptied", "sums.body_written"}) {
    work_until(point, write);
    EXPECT_FALSE(recover().view().sums_digest(Rank(0), 2)) << point;
  }
  work_until("sums.written", write);
  // The same again writes nothing, so that no kill can lose it.
  EXPECT_EQ(run_in_child([&] {
              arm_kill_point("sums.emptied");
              Result<ChunkStore> store = ChunkStore::recover(plan_, segments_);
              write(&store.value());
              return 0;
            }),
            0);
  const ChunkStore store = recover();
  ASSERT_TRUE(store.view().sums_digest(Rank(0), 2));
  EXPECT_EQ(store.view().sums_digest(Rank(0), 2)->digest, 22u);
  ASSERT_TRUE(store.view().sums_digest(Rank(0), 1)) << "the other bank's";
  EXPECT_EQ(store.view().sums_digest(Rank(0), 1)->digest, 11u);
  EXPECT_FALSE(store.view().sums_digest(Rank(1), 1)) << "another rank's";
  EXPECT_FALSE(store.view().sums_digest(Rank(0), 4)) << "the bank holds another step";
}

TEST_F(CrashTest, AHalfWrittenRecordLeavesTheOtherBankAlone) {
  create_with_step_0();
  { recover().write_step_record(Rank(0), make_record(1)); }
  work_until("record.body_written",
             [&](ChunkStore* store) { store->write_step_record(Rank(0), make_record(2)); });
  EXPECT_TRUE(recover().view().step_record(Rank(0), 1));
  EXPECT_FALSE(recover().view().step_record(Rank(0), 2));
}

TEST_F(CrashTest, ABlobKilledHalfwayIsNoneAndTheLastStepsBlobStays) {
  create_with_step_0();
  { recover().write_blob(Rank(1), 1, "one"); }
  for (const char* point : {"blob.emptied", "blob.bytes_written"}) {
    work_until(point, [&](ChunkStore* store) { store->write_blob(Rank(1), 2, "two"); });
    const ChunkStore store = recover();
    EXPECT_FALSE(store.view().blob(Rank(1), 2)) << point;
    EXPECT_EQ(store.view().blob(Rank(1), 1), "one");
  }
  work_until("blob.written", [&](ChunkStore* store) { store->keep_blob(Rank(1), 2); });
  EXPECT_EQ(recover().view().blob(Rank(1), 2), "one");
}

TEST_F(CrashTest, WhatIsMadeVoidStaysSo) {
  create_with_step_0();
  { recover().write_step_record(Rank(0), make_record(1)); }
  work_until("record.voided", [](ChunkStore* store) { store->void_step_record(Rank(0), 1); });
  EXPECT_FALSE(recover().view().step_record(Rank(0), 1));
  // No blob to carry to step 3: its bank must not go on offering step 1's.
  { recover().write_blob(Rank(1), 1, "one"); }
  work_until("blob.none", [](ChunkStore* store) { store->keep_blob(Rank(1), 3); });
  EXPECT_FALSE(recover().view().blob(Rank(1), 1));
  EXPECT_FALSE(recover().view().blob(Rank(1), 3));
}

TEST_F(CrashTest, TheStepWordIsOldOrNew) {
  create_with_step_0();
  const auto step_1 = [&](ChunkStore* store) {
    for (uint32_t r = 0; r < 2; ++r) {
      for (uint32_t c = 0; c < store->view().chunks(Rank(r)).size(); ++c) {
        store->commit_unchanged(Rank(r), ChunkIndex(c), 1);
      }
    }
    store->set_step_committed(1);
  };
  for (const char* point :
       {"commit_unchanged.before_flip", "commit_unchanged.flipped:2", "step_word.before"}) {
    work_until(point, step_1);
    EXPECT_EQ(recover().view().step_committed(), 0) << point;
  }
  work_until("step_word.written", step_1);
  EXPECT_EQ(recover().view().step_committed(), 1);
}

TEST_F(CrashTest, ARecoveryKilledAfterTheEpochRaisesItAgain) {
  create_with_step_0();
  work_until("store.epoch_raised", [](ChunkStore*) {});
  EXPECT_EQ(recover().epoch(), StoreEpoch(3));
}

TEST_F(CrashTest, AnUnlinkKilledHalfwayLeavesNothingThatIsTrusted) {
  for (const char* point : {"removal.begun", "unlink.arena:1", "unlink.arena:2"}) {
    SCOPED_TRACE(point);
    create_with_step_0();
    die_at(point, [&] { ChunkStore::unlink(segments_); });
    const Status refused = ChunkStore::recover(plan_, segments_).status();
    EXPECT_EQ(refused.code(), StatusCode::kCorrupt);
    EXPECT_NE(refused.message().find("removal was begun"), std::string::npos) << refused.text();
    ChunkStore::unlink(segments_);
    EXPECT_TRUE(names_.left_in_shm().empty());
  }
}

}  // namespace
}  // namespace optlease::test
