// A small job of two ranks with a run directory of its own, and states of it as a dead job leaves
// them, for the tests of claims.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "kernels/checksum.h"
#include "launcher/job_claim.h"
#include "launcher/job_state.h"
#include "shm/chunk_store.h"
#include "tests/support/temp_directory.h"

namespace optlease {

class JobClaimTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("XDG_RUNTIME_DIR", directory_.path().c_str(), 1), 0);
    plan_.segment.job_name = "claim-" + std::to_string(getpid());
    plan_.segment.world_size = 2;
    SpaceSpec space;
    space.name = "dense";
    space.members = {Rank(0), Rank(1)};
    for (const char* name : {"a", "b"}) {
      TensorSpec tensor;
      tensor.name = name;
      tensor.shape = {100, 10};
      space.tensors.push_back(tensor);
    }
    plan_.segment.spaces = {space};
    plan_.steps = 30;
    plan_.optimizer.groups = {GroupParams{1e-3, 0.9, 0.99, 1e-8, 0, 1, 0}};
    plan_.model.init = {{TensorInit{}, TensorInit{}}};
    ASSERT_TRUE(lay_out(&plan_.segment, 4096).is_ok());
    auto run = RunDirectory::of(plan_.segment.job_name);
    ASSERT_TRUE(run.is_ok());
    run_.emplace(run.value());
  }
  void TearDown() override {
    for (const std::string& name : segments_of_job(*run_)) Segment::unlink(name);
    unsetenv("XDG_RUNTIME_DIR");
  }

  SegmentNames names() const {
    return {run_->control_segment(), {run_->arena_segment(Rank(0)), run_->arena_segment(Rank(1))}};
  }
  // A whole state at `step`: main[i] = i, the moments zero. kNoStep: nothing was committed.
  void make_state(Step step) {
    auto made = ChunkStore::create(plan_.segment, names());
    ASSERT_TRUE(made.is_ok()) << made.status().text();
    if (step == kNoStep) return;
    ChunkStore& store = made.value();
    for (uint32_t r = 0; r < 2; ++r) write_rank(store, Rank(r), step);
    store.set_step_committed(step);
    store.set_incarnation(Rank(1), Incarnation(5));
  }
  void write_rank(ChunkStore& store, Rank rank, Step step) {
    auto arena = Segment::open(run_->arena_segment(rank), Segment::Access::kReadWrite);
    ASSERT_TRUE(arena.is_ok());
    const auto chunks = store.view().chunks(rank);
    for (uint32_t c = 0; c < chunks.size(); ++c) {
      char* slot = static_cast<char*>(arena.value().data()) + kArenaSlotsOffset +
                   c * store.view().rank(rank).slot_bytes;
      for (uint64_t i = 0; i < chunks[c].elements; ++i) {
        reinterpret_cast<float*>(slot)[i] = static_cast<float>(chunks[c].first_element + i);
      }
      const SlotEntry entry{c, 0, checksum_chunk(slot, chunks[c].elements)};
      store.commit(rank, ChunkIndex(c), step, {&entry, 1});
    }
  }

  const testing_support::TempDirectory directory_;
  JobPlan plan_;
  std::optional<RunDirectory> run_;
};

}  // namespace optlease
