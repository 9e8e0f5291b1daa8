// The pipeline over the real store, lease table and CPU device, against the resident oracle: the
// same updates on plain arrays.
#include "actors/gpu_actor/window_pipeline.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/gpu_actor/resident_oracle.h"
#include "tests/support/in_process_job.h"

namespace optlease {
namespace {

constexpr uint64_t kElements = 50'003;  // uneven: the last chunk is short

void expect_same_bits(const std::vector<float>& found, const std::vector<float>& expected,
                      const char* name) {
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0) << name;
}

void expect_resident(const InProcessJob& job, const Resident& oracle) {
  expect_same_bits(job.array(0), oracle.main, "main");
  expect_same_bits(job.array(1), oracle.exp_avg, "exp_avg");
  expect_same_bits(job.array(2), oracle.exp_avg_sq, "exp_avg_sq");
}

Status step_once(InProcessJob& job, Step step, const std::function<bool()>& stop = {}) {
  const AdamFactors factors = make_adam_factors(adamw(), step, 0.5f);
  const std::vector<float> grads = gradients(step, job.shape().elements);
  const Status status = job.run(RunKind::kUpdate, step, factors, grads.data(), {}, stop);
  if (!status.is_ok()) job.restart_actor();  // ends the streams before the gradients go away
  return status;
}

void initialise(InProcessJob& job) {
  ASSERT_TRUE(job.run(RunKind::kInitialise, 0, {}, nullptr, fill_initial).is_ok());
}

// An actor that ends after a few turns, and its successor. 1 where the first did end early.
int stop_then_finish(InProcessJob& job, Step step, std::mt19937& random) {
  int turns_left = static_cast<int>(random() % 40);
  const Status first = step_once(job, step, [&] { return turns_left-- == 0; });
  EXPECT_TRUE(first.is_ok() || first.code() == StatusCode::kCancelled) << first.text();
  const Status second = step_once(job, step);
  EXPECT_TRUE(second.is_ok()) << second.text();
  return first.is_ok() ? 0 : 1;
}

void expect_no_slot_lost(InProcessJob& job) {
  const auto slots = job.leases().free_slots(InProcessJob::kRank);
  EXPECT_EQ(slots + job.arena().chunks.size(), job.arena().slot_count) << "a slot was lost";
}

class PipelineShapes : public testing::TestWithParam<InProcessShape> {};

TEST_P(PipelineShapes, GivesTheResidentBits) {
  InProcessJob job(GetParam());
  initialise(job);
  for (Step step = 1; step <= 4; ++step) ASSERT_TRUE(step_once(job, step).is_ok());
  expect_resident(job, resident_run(4, kElements));
  // FP32 parameters are the main weights.
  EXPECT_EQ(std::memcmp(job.params().data(), job.array(0).data(), job.params().size()), 0);
  expect_no_slot_lost(job);
}

TEST_P(PipelineShapes, AnActorThatEndsAnywhereLosesNothing) {
  const Resident oracle = resident_run(3, kElements);
  std::mt19937 random(20261129);
  int stops = 0;
  for (int attempt = 0; attempt < 12; ++attempt) {
    InProcessJob job(GetParam());
    initialise(job);
    for (Step step = 1; step <= 3; ++step) stops += stop_then_finish(job, step, random);
    expect_resident(job, oracle);
    expect_no_slot_lost(job);
  }
  EXPECT_GT(stops, 0) << "every step was over before its actor was to end";
}

// Every part of the state on either side, in every shape: the same bits.
class SplitShapes : public testing::TestWithParam<StateSplit> {};

constexpr uint64_t kSplitElements = 20'003;

InProcessShape split_shape(const StateSplit& split, int shape) {
  InProcessShape job = shape == 0   ? InProcessShape{kSplitElements, 64 << 10, 1, 2, 3}
                       : shape == 1 ? InProcessShape{kSplitElements, 20 << 10, 4, 3, 4}
                       : shape == 2 ? InProcessShape{kSplitElements, 768, 16, 2, 3}
                                    : InProcessShape{kSplitElements, 0, 1, 1, 1};
  job.param_dtype = DType::kBF16;
  job.split = split;
  return job;
}

TEST_P(SplitShapes, GivesTheResidentBits) {
  const Resident oracle = resident_run(4, kSplitElements);
  for (int shape = 0; shape < 4; ++shape) {
    InProcessJob job(split_shape(GetParam(), shape));
    initialise(job);
    for (Step step = 1; step <= 4; ++step) ASSERT_TRUE(step_once(job, step).is_ok());
    expect_resident(job, oracle);
  }
}

TEST_P(SplitShapes, AnActorThatEndsAnywhereLosesNothing) {
  const Resident oracle = resident_run(3, kSplitElements);
  std::mt19937 random(20261130);
  int stops = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {
    InProcessJob job(split_shape(GetParam(), attempt % 3));
    initialise(job);
    for (Step step = 1; step <= 3; ++step) stops += stop_then_finish(job, step, random);
    expect_resident(job, oracle);
    expect_no_slot_lost(job);
  }
  EXPECT_GT(stops, 0) << "every step was over before its actor was to end";
}

TEST_P(SplitShapes, MovesTheTravellingBytesAndNoOthers) {
  InProcessJob job(split_shape(GetParam(), 0));
  initialise(job);
  uint64_t travelling = 0;
  for (const ChunkSpec& chunk : job.arena().chunks) {
    travelling += layout_of(GetParam(), chunk.range.size()).host_bytes;
  }
  const DeviceCounters before = job.device().counters();
  ASSERT_TRUE(step_once(job, 1).is_ok());
  const DeviceCounters after = job.device().counters();
  EXPECT_EQ(after.bytes_in - before.bytes_in, travelling);
  EXPECT_EQ(after.bytes_out - before.bytes_out, travelling);
}

TEST_P(SplitShapes, PublishesTheSameParametersAgain) {
  InProcessJob job(split_shape(GetParam(), 1));
  initialise(job);
  ASSERT_TRUE(step_once(job, 1).is_ok());
  const std::vector<char> written = job.params();
  std::memset(const_cast<char*>(job.params().data()), 0xee, job.params().size());
  ASSERT_TRUE(job.run(RunKind::kRepublish, 1, {}, nullptr).is_ok());
  EXPECT_EQ(job.params(), written);
}

TEST_P(SplitShapes, StopsAtAFlippedBitOfAResidentSlot) {
  InProcessJob job(split_shape(GetParam(), 0));
  initialise(job);
  ASSERT_TRUE(step_once(job, 1).is_ok());
  job.committed_resident_slot(1)[64] ^= 8;
  EXPECT_EQ(step_once(job, 2).code(), StatusCode::kCorrupt);
  ASSERT_EQ(job.corrupt.size(), 1u);
  EXPECT_EQ(job.corrupt[0].chunk, 1u);
}

INSTANTIATE_TEST_SUITE_P(Splits, SplitShapes,
                         testing::Values(StateSplit{MainForm::kBf16Remainder, 0},
                                         StateSplit{MainForm::kBf16Remainder, 150'000},
                                         StateSplit{MainForm::kBf16Remainder, 1'000'000},
                                         StateSplit{MainForm::kF32, 200'000},
                                         StateSplit{MainForm::kF32, 333'333},
                                         StateSplit{MainForm::kF32, 900'000},
                                         StateSplit{MainForm::kF32, 1'000'000}));

// In halves the parameter is the upper one, in FP32 it is rounded to even: they differ at ties.
TEST(WindowPipeline, PublishesTheRoundedHalvesOfMainWeights) {
  InProcessJob job(split_shape({MainForm::kBf16Remainder, 0}, 0));
  initialise(job);
  ASSERT_TRUE(step_once(job, 1).is_ok());
  const std::vector<float> main = job.array(0);
  for (uint64_t i = 0; i < main.size(); ++i) {
    uint16_t param = 0;
    std::memcpy(&param, job.params().data() + 2 * i, sizeof param);
    ASSERT_EQ(param, rounded_half(bits_of(main[i]))) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PipelineShapes,
                         testing::Values(InProcessShape{kElements, 0, 1, 1, 1},
                                         InProcessShape{kElements, 64 << 10, 1, 2, 3},
                                         InProcessShape{kElements, 64 << 10, 3, 1, 2},
                                         InProcessShape{kElements, 20 << 10, 4, 3, 4},
                                         InProcessShape{kElements, 768, 16, 2, 3},
                                         InProcessShape{kElements, 100 << 10, 2, 5, 1}));

// What is gathered while the run goes on: never the step before, and nothing that changes again.
TEST(WindowPipeline, SaysOfEachChunkWhenItsParametersAreFinal) {
  InProcessJob job({kElements, 64 << 10, 1, 2, 3});
  initialise(job);
  const auto chunks = static_cast<uint32_t>(job.arena().chunks.size());
  const auto params_of = [&](uint32_t chunk) {
    const ElementRange range = job.arena().chunks[chunk].range;
    const uint64_t bytes = bytes_of(job.shape().param_dtype);
    return std::string(job.params().data() + range.begin * bytes, range.size() * bytes);
  };
  std::vector<std::string> seen(chunks);
  uint32_t early = 0;
  for (uint32_t c = 0; c < chunks; ++c) EXPECT_EQ(job.pipeline().published(c), 0);
  const auto look = [&] {
    for (uint32_t c = 0; c < chunks; ++c) {
      const Step published = job.pipeline().published(c);
      EXPECT_TRUE(published == kNoStep || published == 1) << published;
      if (published != 1 || !seen[c].empty()) continue;
      seen[c] = params_of(c);
      early += job.pipeline().computed() ? 0 : 1;
    }
    return false;
  };
  ASSERT_TRUE(step_once(job, 1, look).is_ok());
  EXPECT_GT(early, 0u) << "nothing was final before the last window";
  for (uint32_t c = 0; c < chunks; ++c) EXPECT_EQ(seen[c], params_of(c)) << c;
  EXPECT_GT(job.pipeline().times().computed_us, job.pipeline().times().first_window_us);
}

TEST(WindowPipeline, RepublishesTheCommittedMainWeights) {
  InProcessJob job({kElements, 64 << 10, 2, 2, 3, DType::kBF16});
  initialise(job);
  ASSERT_TRUE(step_once(job, 1).is_ok());
  const std::vector<char> written = job.params();
  std::memset(const_cast<char*>(job.params().data()), 0xee, job.params().size());
  ASSERT_TRUE(job.run(RunKind::kRepublish, 1, {}, nullptr).is_ok());
  EXPECT_EQ(job.params(), written);
}

TEST(WindowPipeline, StopsAtAFlippedBitAndNamesTheChunk) {
  InProcessJob job({kElements, 64 << 10, 1, 2, 3});
  initialise(job);
  job.committed_slot(2)[1000] ^= 4;
  const Status status = step_once(job, 1);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("chunk 2 "), std::string::npos) << status.message();
  ASSERT_EQ(job.corrupt.size(), 1u);
  EXPECT_EQ(job.corrupt[0].chunk, 2u);
  EXPECT_EQ(job.store().view().version(InProcessJob::kRank, ChunkIndex(2)), 0)
      << "corrupt bytes were committed";
}

// A bit of a chunk's summed gradients that changed after they were summed, wherever it is.
TEST_P(SplitShapes, StopsAtAFlippedBitOfTheSummedGradientsAndCommitsNothingOfTheirChunk) {
  InProcessJob job(split_shape(GetParam(), 0));
  initialise(job);
  std::vector<float> grads = gradients(1, job.shape().elements);
  job.grad_sums = job.sums_of(grads.data());
  const AdamFactors factors = make_adam_factors(adamw(), 1, 0.5f);
  const std::vector<ChunkSpec>& chunks = job.arena().chunks;
  ASSERT_GT(chunks.size(), 2u);
  const auto flip = [&](uint64_t element) {
    reinterpret_cast<unsigned char*>(&grads[element])[element % 4] ^=
        static_cast<unsigned char>(1u << element % 8);
  };
  for (uint32_t chunk = 0; chunk < chunks.size(); ++chunk) {
    const ElementRange range = chunks[chunk].range;
    for (const uint64_t element : {range.begin, range.begin + range.size() / 2, range.end - 1}) {
      flip(element);
      const Status status = job.run(RunKind::kUpdate, 1, factors, grads.data());
      job.restart_actor();
      EXPECT_EQ(status.code(), StatusCode::kCorrupt) << "element " << element;
      for (const std::string& words :
           {format("rank 0, chunk %u (space 0, ", chunk), std::string("memory of the test"),
            std::string("step 1"), std::string("--fresh"),
            format("%016llx", static_cast<unsigned long long>(job.grad_sums[chunk]))}) {
        EXPECT_NE(status.message().find(words), std::string::npos)
            << words << ": " << status.text();
      }
      EXPECT_EQ(job.store().view().version(InProcessJob::kRank, ChunkIndex(chunk)), 0);
      flip(element);
    }
  }
  EXPECT_TRUE(job.corrupt.empty()) << "the state is sound";
  ASSERT_TRUE(job.run(RunKind::kUpdate, 1, factors, grads.data()).is_ok());
  expect_resident(job, resident_run(1, job.shape().elements));
}

TEST(WindowPipeline, NoticesAFlippedBitOfTheGradientsThatCameAfterItsWindowWasReadAhead) {
  // Outlives the job, whose windows in flight go on reading it when the run has failed.
  std::vector<float> grads = gradients(1, kElements);
  InProcessJob job({kElements, 64 << 10, 1, 2, 3});
  initialise(job);
  job.prefetch(1, 20);
  job.grad_sums = job.sums_of(grads.data());
  grads[0] += 1;
  const AdamFactors factors = make_adam_factors(adamw(), 1, 0.5f);
  EXPECT_EQ(job.run(RunKind::kUpdate, 1, factors, grads.data()).code(), StatusCode::kCorrupt);
  EXPECT_FALSE(job.pipeline().computed()) << "its parameters are not final";
  EXPECT_EQ(job.store().view().version(InProcessJob::kRank, ChunkIndex(0)), 0);
}

TEST(WindowPipeline, NoticesAFlippedBitWhenItRepublishes) {
  InProcessJob job({kElements, 64 << 10, 1, 2, 3});
  initialise(job);
  job.committed_slot(1)[300'0 % 512] ^= 1;
  EXPECT_EQ(job.run(RunKind::kRepublish, 0, {}, nullptr).code(), StatusCode::kCorrupt);
}

TEST(WindowPipeline, StagingIsMadeOnceAndKeepsItsSize) {
  InProcessJob job({kElements, 64 << 10, 2, 2, 3});
  const uint64_t before = job.device().staging_bytes();
  initialise(job);
  for (Step step = 1; step <= 3; ++step) ASSERT_TRUE(step_once(job, step).is_ok());
  EXPECT_EQ(job.device().staging_bytes(), before);
  EXPECT_EQ(before, 3u * 2u * job.arena().slot_bytes);
}

TEST(WindowPipeline, PassesEveryRehearsalPhaseOfAStepOnceInOrder) {
  InProcessJob job({kElements, 64 << 10, 1, 2, 3});
  initialise(job);
  job.phases.clear();
  ASSERT_TRUE(step_once(job, 1).is_ok());
  const std::vector<std::pair<RehearsePhase, Step>> expected = {
      {RehearsePhase::kPrepared, 1},   {RehearsePhase::kBeforeLease, 1},
      {RehearsePhase::kCopyIn, 1},     {RehearsePhase::kUpdate, 1},
      {RehearsePhase::kCopyOut, 1},    {RehearsePhase::kBeforeCommit, 1},
      {RehearsePhase::kAfterCommit, 1}};
  EXPECT_EQ(job.phases, expected);
}

TEST(WindowPipeline, AFailingInitialStateIsReportedAndNotCommitted) {
  InProcessJob job({kElements, 64 << 10, 1, 2, 3});
  const auto fail = [](uint32_t, ElementRange range, float* main) -> Status {
    main[0] = 1;
    return range.begin == 0 ? Status::ok() : Status(StatusCode::kNotFound, "no such tensor");
  };
  EXPECT_EQ(job.run(RunKind::kInitialise, 0, {}, nullptr, fail).code(), StatusCode::kNotFound);
  EXPECT_EQ(job.store().view().version(InProcessJob::kRank, ChunkIndex(1)), kNoStep);
}

TEST(WindowPipeline, CountsTheBytesOfEachDirection) {
  InProcessJob job({64 * 100, 64 * 12 * 10, 1, 2, 3});
  initialise(job);
  const DeviceCounters before = job.device().counters();
  ASSERT_TRUE(step_once(job, 1).is_ok());
  const DeviceCounters after = job.device().counters();
  EXPECT_EQ(after.bytes_in - before.bytes_in, 64u * 100u * 12u);
  EXPECT_EQ(after.bytes_out - before.bytes_out, 64u * 100u * 12u);
}

}  // namespace
}  // namespace optlease
