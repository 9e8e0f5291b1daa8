// Windows that are read ahead of their step: the run that follows gives the same bits, and one that
// does not follow leaves nothing behind.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "actors/runtime/clock.h"
#include "kernels/adam_math.h"
#include "tests/support/in_process_job.h"

namespace optlease {
namespace {

constexpr uint64_t kElements = 30'011;
constexpr Rank kRank = InProcessJob::kRank;

std::vector<float> gradients(Step step) {
  std::mt19937_64 random(static_cast<uint64_t>(step) * 6151);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (float& value : values) value = normal(random);
  return values;
}

Status fill_initial(uint32_t, ElementRange range, float* main) {
  for (uint64_t i = range.begin; i < range.end; ++i) {
    main[i - range.begin] = static_cast<float>(i % 701) * 1e-3f;
  }
  return Status::ok();
}

class Prefetch : public testing::TestWithParam<InProcessShape> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job.run(RunKind::kInitialise, 0, {}, nullptr, fill_initial).is_ok());
    ASSERT_TRUE(plain.run(RunKind::kInitialise, 0, {}, nullptr, fill_initial).is_ok());
  }
  static Status step(InProcessJob& which, Step number, const std::function<bool()>& stop = {}) {
    const GroupParams adamw{1e-3, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
    const std::vector<float> grads = gradients(number);
    const Status status = which.run(RunKind::kUpdate, number, make_adam_factors(adamw, number, 1),
                                    grads.data(), {}, stop);
    if (!status.is_ok()) which.restart_actor();  // its streams end before the gradients do
    return status;
  }
  void expect_same() {
    for (uint32_t index = 0; index < kAdamArrayCount; ++index) {
      const std::vector<float> found = job.array(index), expected = plain.array(index);
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), kElements * sizeof(float)), 0) << index;
    }
    EXPECT_EQ(job.params(), plain.params());
    expect_no_slot_lost();
  }
  void expect_no_slot_lost() {
    EXPECT_EQ(job.leases().lease_count(kRank), 0u);
    EXPECT_EQ(job.leases().free_slots(kRank) + job.arena().chunks.size(), job.arena().slot_count);
  }
  uint32_t windows_ahead() const {
    const uint32_t chunks = static_cast<uint32_t>(job.arena().chunks.size());
    const uint32_t windows = (chunks + GetParam().window_chunks - 1) / GetParam().window_chunks;
    return std::min({GetParam().staging_buffers, GetParam().prefetch_windows + 1, windows});
  }

  InProcessJob job{GetParam()};
  InProcessJob plain{GetParam()};  // never prefetches
};

TEST_P(Prefetch, LeasesAndCopiesInWhatStagingHoldsAndChangesNothing) {
  const std::vector<float> before = job.array(0);
  const std::vector<char> params = job.params();
  const DeviceCounters counters = job.device().counters();
  job.prefetch(1, 20);
  EXPECT_EQ(job.leases().lease_count(kRank), windows_ahead());
  const bool travels = layout_of(job.shape().split, kElements).host_bytes > 0;
  EXPECT_EQ(job.device().counters().bytes_in > counters.bytes_in, travels);
  EXPECT_EQ(job.device().counters().bytes_out, counters.bytes_out);
  EXPECT_TRUE(job.pipeline().idle()) << "no run is under way";
  EXPECT_FALSE(job.pipeline().computed());
  EXPECT_EQ(job.pipeline().prefetching(), 1);
  EXPECT_EQ(job.array(0), before);
  EXPECT_EQ(job.params(), params);
  EXPECT_EQ(job.store().view().version(kRank, ChunkIndex(0)), 0);
  EXPECT_EQ(job.phases.back(), (std::pair{RehearsePhase::kPrepared, Step{1}}));
}

TEST_P(Prefetch, TheRunGoesOnFromWhereItIsAndGivesTheSameBits) {
  // From a prefetch that has not even asked for a lease to one that is complete.
  for (Step number = 1; number <= 8; ++number) {
    job.prefetch(number, static_cast<int>(number) - 1);
    ASSERT_TRUE(step(job, number).is_ok());
    ASSERT_TRUE(step(plain, number).is_ok());
  }
  expect_same();
}

TEST_P(Prefetch, ReadsNothingTwice) {
  job.prefetch(1, 20);
  ASSERT_TRUE(step(job, 1).is_ok());
  ASSERT_TRUE(step(plain, 1).is_ok());
  EXPECT_EQ(job.device().counters().bytes_in, plain.device().counters().bytes_in);
}

TEST_P(Prefetch, PassesEveryRehearsalPhaseOnceInOrder) {
  job.phases.clear();
  job.prefetch(1, 20);
  ASSERT_TRUE(step(job, 1).is_ok());
  const std::vector<std::pair<RehearsePhase, Step>> expected = {
      {RehearsePhase::kPrepared, 1},   {RehearsePhase::kBeforeLease, 1},
      {RehearsePhase::kCopyIn, 1},     {RehearsePhase::kUpdate, 1},
      {RehearsePhase::kCopyOut, 1},    {RehearsePhase::kBeforeCommit, 1},
      {RehearsePhase::kAfterCommit, 1}};
  EXPECT_EQ(job.phases, expected);
}

TEST_P(Prefetch, GivesEverythingBackAtAnyMoment) {
  for (int turns = 0; turns < 12; ++turns) {
    job.prefetch(1, turns);
    job.pipeline().release_prefetch();
    EXPECT_EQ(job.pipeline().prefetching(), kNoStep);
    job.settle();  // grants that were on their way are returned, too
    expect_no_slot_lost();
  }
  ASSERT_TRUE(step(job, 1).is_ok());
  ASSERT_TRUE(step(plain, 1).is_ok());
  expect_same();
}

// A request was repeated and crossed its grant; the second copy is read after the lease's return.
TEST_P(Prefetch, TakesNoSecondCopyOfAGrantWhoseLeaseWasReturned) {
  const std::string asks = "window of chunk 0 is requested";
  for (const bool another_run : {false, true}) {
    job.grants.clear();
    job.prefetch(1, 20);
    job.pipeline().release_prefetch();
    job.settle();
    if (another_run) {
      ASSERT_TRUE(job.run(RunKind::kRepublish, 0, {}, nullptr).is_ok());
    }
    job.prefetch(1, 0);
    job.pipeline().advance(static_cast<uint64_t>(now_us()));
    job.repeat_first_grant();
    ASSERT_NE(job.pipeline().describe().find(asks), std::string::npos) << job.pipeline().describe();
    job.settle();
    job.pipeline().release_prefetch();
    job.settle();
  }
  ASSERT_TRUE(step(job, 1).is_ok());
  ASSERT_TRUE(step(plain, 1).is_ok());
  expect_same();
}

TEST_P(Prefetch, TakesNoSecondCopyOfAGrantThatCameTooLate) {
  job.grants.clear();
  job.prefetch(1, 0);
  job.pipeline().advance(static_cast<uint64_t>(now_us()));
  job.pipeline().release_prefetch();
  job.settle();  // it was granted after that, and is returned
  job.prefetch(1, 0);
  job.pipeline().advance(static_cast<uint64_t>(now_us()));
  job.repeat_first_grant();
  ASSERT_NE(job.pipeline().describe().find("window of chunk 0 is requested"), std::string::npos)
      << job.pipeline().describe();
  ASSERT_TRUE(step(job, 1).is_ok());
  ASSERT_TRUE(step(plain, 1).is_ok());
  expect_same();
}

// Another life of the store counts its leases from 1 again.
TEST_P(Prefetch, AfterADrainEveryLeaseIdIsANewOne) {
  job.grants.clear();
  job.prefetch(1, 20);
  job.pipeline().release_prefetch();
  job.settle();
  job.pipeline().abandon();
  while (!job.pipeline().drained()) job.settle();
  job.prefetch(1, 0);
  job.pipeline().advance(static_cast<uint64_t>(now_us()));
  job.repeat_first_grant();
  EXPECT_NE(job.pipeline().describe().find("window of chunk 0 is granted"), std::string::npos)
      << job.pipeline().describe();
  job.restart_actor();
}

TEST_P(Prefetch, IsGivenBackWhenAnotherRunStarts) {
  job.prefetch(1, 20);
  ASSERT_TRUE(job.run(RunKind::kRepublish, 0, {}, nullptr).is_ok());
  job.settle();
  expect_no_slot_lost();
  job.prefetch(1, 20);
  ASSERT_TRUE(step(job, 1).is_ok());
  ASSERT_TRUE(step(plain, 1).is_ok());
  expect_same();
}

TEST_P(Prefetch, AnActorThatEndsOrDrainsAfterItLosesNothing) {
  std::mt19937 random(20261129);
  for (Step number = 1; number <= 6; ++number) {
    job.prefetch(number, static_cast<int>(random() % 6));
    if (number % 2 == 0) {
      job.pipeline().abandon();
      while (!job.pipeline().drained()) job.settle();
    }
    job.restart_actor();
    job.prefetch(number, static_cast<int>(random() % 6));
    int turns_left = static_cast<int>(random() % 10);
    (void)step(job, number, [&] { return turns_left-- == 0; });
    ASSERT_TRUE(step(job, number).is_ok());
    ASSERT_TRUE(step(plain, number).is_ok());
  }
  expect_same();
}

// The order in which parameters become final and state is committed.
TEST_P(Prefetch, ParametersAreFinalBeforeTheLastCommit) {
  job.keep_last_commit = true;
  bool computed = false;
  const Status stopped = step(job, 1, [&] { return computed = job.pipeline().computed(); });
  EXPECT_EQ(stopped.code(), StatusCode::kCancelled);
  ASSERT_TRUE(computed);
  ASSERT_TRUE(step(plain, 1).is_ok());
  EXPECT_EQ(job.params(), plain.params());
  const auto last = static_cast<uint32_t>(job.arena().chunks.size()) - 1;
  EXPECT_EQ(job.store().view().version(kRank, ChunkIndex(last)), 0);
  // Whoever finishes the step writes the same parameters again.
  job.keep_last_commit = false;
  ASSERT_TRUE(step(job, 1).is_ok());
  expect_same();
}

TEST(PrefetchOfCorruptState, IsNoticedWhenItIsUpdatedAndNeverFinal) {
  InProcessJob job({kElements, 64 << 10, 1, 2, 3});
  ASSERT_TRUE(job.run(RunKind::kInitialise, 0, {}, nullptr, fill_initial).is_ok());
  job.committed_slot(0)[1000] ^= 4;
  job.prefetch(1, 20);
  EXPECT_TRUE(job.pipeline().failure().is_ok());
  const std::vector<float> grads = gradients(1);
  const GroupParams adam{1e-3, 0.9, 0.95, 1e-8, 0, static_cast<uint32_t>(Rule::kAdam), 0};
  const Status status =
      job.run(RunKind::kUpdate, 1, make_adam_factors(adam, 1, 1), grads.data(), {}, [&] {
        EXPECT_FALSE(job.pipeline().computed());
        return false;
      });
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(job.store().view().version(kRank, ChunkIndex(0)), 0);
  job.restart_actor();
}

Status first_step(InProcessJob& job) {
  const std::vector<float> grads = gradients(1);
  const GroupParams adam{1e-3, 0.9, 0.95, 1e-8, 0, static_cast<uint32_t>(Rule::kAdam), 0};
  const Status status = job.run(RunKind::kUpdate, 1, make_adam_factors(adam, 1, 1), grads.data());
  if (!status.is_ok()) job.restart_actor();  // its streams end before the gradients do
  return status;
}

// What is altered once its bytes are taken is used by nobody: the step makes the version after it
// from the sound ones, or the next life of the actor reads it and names it.
TEST(PrefetchOfCorruptState, WhatIsAlteredAfterItWasReadIsNeverUsed) {
  for (const bool dies : {false, true}) {
    SCOPED_TRACE(dies ? "the actor dies" : "the step goes on");
    InProcessJob job({kElements, 64 << 10, 1, 2, 3}), plain({kElements, 64 << 10, 1, 2, 3});
    ASSERT_TRUE(job.run(RunKind::kInitialise, 0, {}, nullptr, fill_initial).is_ok());
    ASSERT_TRUE(plain.run(RunKind::kInitialise, 0, {}, nullptr, fill_initial).is_ok());
    job.prefetch(1, 20);
    // Behind the last copy in.
    const Ticket taken = job.device().signal(StreamKind::kCopyIn);
    while (!job.device().reached(taken)) std::this_thread::yield();
    job.committed_slot(0)[1000] ^= 4;
    if (dies) {
      job.restart_actor();
      EXPECT_EQ(first_step(job).code(), StatusCode::kCorrupt);
      ASSERT_EQ(job.corrupt.size(), 1u);
      EXPECT_EQ(job.corrupt[0].chunk, 0u);
      EXPECT_EQ(job.store().view().version(kRank, ChunkIndex(0)), 0);
      continue;
    }
    ASSERT_TRUE(first_step(job).is_ok());
    ASSERT_TRUE(first_step(plain).is_ok());
    EXPECT_EQ(job.params(), plain.params());
    for (uint32_t index = 0; index < kAdamArrayCount; ++index) {
      EXPECT_EQ(job.array(index), plain.array(index)) << index;
    }
  }
}

// The part that stays on the device is not read ahead: whatever is altered there is noticed.
TEST(PrefetchOfCorruptState, AResidentSlotIsReadByTheUpdateAndNotAhead) {
  InProcessShape shape{kElements, 64 << 10, 1, 2, 3};
  shape.split.resident_millionths = 500'000;
  InProcessJob job(shape);
  ASSERT_TRUE(job.run(RunKind::kInitialise, 0, {}, nullptr, fill_initial).is_ok());
  job.prefetch(1, 20);
  job.committed_resident_slot(0)[1000] ^= 4;
  EXPECT_TRUE(job.pipeline().writes_nothing());
  EXPECT_EQ(first_step(job).code(), StatusCode::kCorrupt);
  ASSERT_EQ(job.corrupt.size(), 1u);
  EXPECT_EQ(job.corrupt[0].chunk, 0u);
  EXPECT_EQ(job.store().view().version(kRank, ChunkIndex(0)), 0);
}

InProcessShape split_shape(MainForm main, uint32_t resident_millionths) {
  InProcessShape shape{kElements, 20 << 10, 2, 1, 3};
  shape.param_dtype = DType::kBF16;
  shape.split = {main, resident_millionths};
  return shape;
}

INSTANTIATE_TEST_SUITE_P(Shapes, Prefetch,
                         testing::Values(InProcessShape{kElements, 0, 1, 1, 1},
                                         InProcessShape{kElements, 64 << 10, 1, 2, 3},
                                         InProcessShape{kElements, 20 << 10, 2, 1, 3},
                                         InProcessShape{kElements, 20 << 10, 3, 3, 2},
                                         split_shape(MainForm::kF32, 400'000),
                                         split_shape(MainForm::kF32, kMillion),
                                         split_shape(MainForm::kBf16Remainder, 0),
                                         split_shape(MainForm::kBf16Remainder, 700'000)));

}  // namespace
}  // namespace optlease
