// The window pipeline over the CUDA device, against the same pipeline over the CPU device: the same
// committed bytes and parameters, whatever the shape, killed or not.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "tests/gpu/gpu_support.h"
#include "tests/support/in_process_job.h"

namespace optlease {
namespace {

constexpr uint64_t kElements = 50'003;  // uneven: the last chunk is short

std::vector<float> gradients(Step step) {
  std::mt19937_64 random(static_cast<uint64_t>(step) * 7919);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (float& value : values) {
    value = normal(random) * std::pow(10.0f, static_cast<float>(step % 4) - 2);
  }
  values[0] = 0;
  values[1] = 1e-39f;
  return values;
}

Status fill_initial(uint32_t, ElementRange range, float* main) {
  for (uint64_t i = range.begin; i < range.end; ++i) {
    main[i - range.begin] = static_cast<float>(i % 1013) * 1e-3f - 0.5f;
  }
  return Status::ok();
}

AdamFactors factors_of(Step step) {
  const GroupParams params{1e-3, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
  return make_adam_factors(params, step, 0.5f);
}

// A job on the GPU with buffers there.
struct GpuJob {
  explicit GpuJob(InProcessShape shape)
      : params(shape.elements * bytes_of(shape.param_dtype)), grads(shape.elements * 4) {
    shape.device = "cuda";
    shape.device_params = params.data();
    if (shape.split.has_resident()) {
      resident.emplace(resident_bytes_of(shape));
      shape.device_resident = resident->data();
      shape.take_resident = [this] { return resident->take(); };
    }
    job.emplace(shape);
  }
  Status initialise() { return job->run(RunKind::kInitialise, 0, {}, nullptr, fill_initial); }
  // `at_end` comes between a step that was cut off and the end of its actor.
  Status step(Step step, const std::function<bool()>& stop = {},
              const std::function<void()>& at_end = {}) {
    const std::vector<float> values = gradients(step);
    grads.put(values.data(), values.size() * 4);
    const Status status = job->run(RunKind::kUpdate, step, factors_of(step),
                                   reinterpret_cast<const float*>(grads.data()), {}, stop);
    if (at_end) at_end();
    if (!status.is_ok()) job->restart_actor();  // the streams end before the gradients change
    return status;
  }
  // Given to the streams of copies by this life of the actor.
  uint64_t copies() {
    const DeviceCounters counters = job->device().counters();
    return counters.bytes_in + counters.bytes_out;
  }
  static uint64_t resident_bytes_of(InProcessShape shape) {
    shape.device = "cpu";
    const InProcessJob probe(shape);
    return probe.arena().resident_slot_bytes * probe.arena().slot_count;
  }
  GpuBytes params, grads;
  std::optional<GpuBytes> resident;
  std::optional<InProcessJob> job;
};

// Holds a stream up from some turn of a run on, and has the actor end once the pipeline has given
// copies to the device since then: those on this stream, or that wait for it, cannot have run.
class CutOff {
 public:
  CutOff(GpuJob* gpu, StreamKind held, int turns) : gpu_(gpu), held_(held), turns_left_(turns) {}
  bool now() {
    if (turns_left_-- > 0) return false;
    if (!holds_) {
      const Deadline deadline = Deadline::after_ms(30'000);
      gpu_->job->device().run_on_host(held_, [go = go_, deadline] {
        while (!*go && !deadline.passed()) std::this_thread::yield();
      });
      holds_ = true;
      copies_then_ = gpu_->copies();
      return false;
    }
    in_flight_ = gpu_->copies() > copies_then_;
    return in_flight_ || --patience_ == 0;
  }
  void let_go() { *go_ = true; }
  bool in_flight() const { return in_flight_; }

 private:
  GpuJob* gpu_;
  StreamKind held_;
  int turns_left_;
  int patience_ = 40;  // turns in which nothing more is given to the device
  bool holds_ = false, in_flight_ = false;
  uint64_t copies_then_ = 0;
  std::shared_ptr<std::atomic<bool>> go_ = std::make_shared<std::atomic<bool>>(false);
};

// What the CPU device makes of the same steps.
struct Expected {
  std::vector<float> arrays[3];
  std::vector<char> params;
};

Expected cpu_run(InProcessShape shape, Step steps) {
  InProcessJob job(shape);
  OPTLEASE_CHECK(job.run(RunKind::kInitialise, 0, {}, nullptr, fill_initial).is_ok(), "initialise");
  for (Step step = 1; step <= steps; ++step) {
    const std::vector<float> values = gradients(step);
    const Status status = job.run(RunKind::kUpdate, step, factors_of(step), values.data());
    OPTLEASE_CHECK(status.is_ok(), "%s", status.text().c_str());
  }
  return {{job.array(0), job.array(1), job.array(2)}, job.params()};
}

void expect_same(const GpuJob& gpu, const Expected& expected) {
  for (uint32_t a = 0; a < 3; ++a) {
    const std::vector<float> found = gpu.job->array(a);
    ASSERT_EQ(found.size(), expected.arrays[a].size());
    EXPECT_EQ(std::memcmp(found.data(), expected.arrays[a].data(), found.size() * 4), 0)
        << kAdamArrayNames[a];
  }
  EXPECT_EQ(gpu.params.take(), expected.params) << "parameters";
}

class GpuPipelineShapes : public testing::TestWithParam<InProcessShape> {};

TEST_P(GpuPipelineShapes, CommitsTheBytesThatTheCpuDeviceCommits) {
  GpuJob gpu(GetParam());
  ASSERT_TRUE(gpu.initialise().is_ok());
  for (Step step = 1; step <= 4; ++step) {
    const Status status = gpu.step(step);
    ASSERT_TRUE(status.is_ok()) << status.text();
  }
  expect_same(gpu, cpu_run(GetParam(), 4));
}

// Read ahead of its step, by no turn or by many; every third time the step does not come at once.
TEST_P(GpuPipelineShapes, CommitsTheSameBytesWhereItReadAhead) {
  GpuJob gpu(GetParam());
  ASSERT_TRUE(gpu.initialise().is_ok());
  for (Step step = 1; step <= 6; ++step) {
    gpu.job->prefetch(step, static_cast<int>(step * step) - 1);
    if (step % 3 == 0) {
      gpu.job->pipeline().release_prefetch();
      gpu.job->settle();
      gpu.job->prefetch(step, 20);
    }
    const Status status = gpu.step(step);
    ASSERT_TRUE(status.is_ok()) << status.text();
  }
  expect_same(gpu, cpu_run(GetParam(), 6));
}

TEST_P(GpuPipelineShapes, AnActorThatEndsAnywhereLosesNothing) {
  const uint32_t seed = 20261129;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const Expected expected = cpu_run(GetParam(), 3);
  for (int attempt = 0; attempt < 4; ++attempt) {
    GpuJob gpu(GetParam());
    ASSERT_TRUE(gpu.initialise().is_ok());
    for (Step step = 1; step <= 3; ++step) {
      int turns_left = static_cast<int>(random() % 40);
      (void)gpu.step(step, [&] { return turns_left-- == 0; });
      const Status status = gpu.step(step);
      ASSERT_TRUE(status.is_ok()) << status.text();
    }
    // Chunks that an ended life had committed are published again, as the actor does.
    ASSERT_TRUE(gpu.job->run(RunKind::kRepublish, 3, {}, nullptr).is_ok());
    expect_same(gpu, expected);
  }
}

TEST_P(GpuPipelineShapes, AnActorThatEndsWithCopiesInFlightLosesNothing) {
  const uint32_t seed = 20261130;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const Expected expected = cpu_run(GetParam(), 3);
  int cut_off = 0;
  bool anything_travels = false;
  for (const StreamKind held : {StreamKind::kCopyIn, StreamKind::kCompute, StreamKind::kCopyOut}) {
    GpuJob gpu(GetParam());
    ASSERT_TRUE(gpu.initialise().is_ok());
    for (Step step = 1; step <= 3; ++step) {
      CutOff cut(&gpu, held, step == 1 ? 0 : static_cast<int>(random() % 6));
      (void)gpu.step(
          step, [&] { return cut.now(); }, [&] { cut.let_go(); });
      cut_off += cut.in_flight() ? 1 : 0;
      const Status status = gpu.step(step);
      ASSERT_TRUE(status.is_ok()) << status.text();
      anything_travels = anything_travels || gpu.copies() > 0;
    }
    ASSERT_TRUE(gpu.job->run(RunKind::kRepublish, 3, {}, nullptr).is_ok());
    expect_same(gpu, expected);
  }
  if (anything_travels) {
    EXPECT_GE(cut_off, 3) << "of nine steps, the first under each hold at the least";
  }
}

InProcessShape with_split(InProcessShape shape, const StateSplit& split) {
  shape.split = split;
  return shape;
}

INSTANTIATE_TEST_SUITE_P(
    Splits, GpuPipelineShapes,
    testing::Values(
        with_split({kElements, 64 << 10, 1, 2, 3, DType::kBF16}, {MainForm::kBf16Remainder, 0}),
        with_split({kElements, 20 << 10, 4, 3, 4, DType::kBF16},
                   {MainForm::kBf16Remainder, 150'000}),
        with_split({kElements, 0, 1, 1, 1, DType::kBF16}, {MainForm::kBf16Remainder, 1'000'000}),
        with_split({kElements, 64 << 10, 2, 2, 3}, {MainForm::kF32, 200'000}),
        with_split({kElements, 768, 16, 2, 3, DType::kF16}, {MainForm::kF32, 700'000}),
        with_split({kElements, 64 << 10, 3, 1, 2, DType::kBF16}, {MainForm::kF32, 1'000'000})));

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuPipelineShapes,
    testing::Values(InProcessShape{kElements, 0, 1, 1, 1},
                    InProcessShape{kElements, 64 << 10, 1, 2, 3, DType::kBF16},
                    InProcessShape{kElements, 64 << 10, 3, 1, 2, DType::kF16},
                    InProcessShape{kElements, 20 << 10, 4, 3, 4},
                    InProcessShape{kElements, 768, 16, 2, 3, DType::kBF16},
                    InProcessShape{kElements, 64 << 10, 2, 2, 3, DType::kBF16, "cpu", nullptr,
                                   false}));  // everything through the bounce buffers

TEST(GpuPipeline, RepublishesTheCommittedMainWeights) {
  GpuJob gpu({kElements, 64 << 10, 2, 2, 3, DType::kBF16});
  ASSERT_TRUE(gpu.initialise().is_ok());
  ASSERT_TRUE(gpu.step(1).is_ok());
  const std::vector<char> written = gpu.params.take();
  must(cudaMemset(gpu.params.data(), 0xee, written.size()), "cudaMemset");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  ASSERT_TRUE(gpu.job->run(RunKind::kRepublish, 1, {}, nullptr).is_ok());
  EXPECT_EQ(gpu.params.take(), written);
}

TEST(GpuPipeline, StopsAtAFlippedBitAndNamesTheChunk) {
  GpuJob gpu({kElements, 64 << 10, 1, 2, 3});
  ASSERT_TRUE(gpu.initialise().is_ok());
  gpu.job->committed_slot(2)[1000] ^= 4;
  const Status status = gpu.step(1);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.text();
  EXPECT_NE(status.message().find("chunk 2 "), std::string::npos) << status.message();
  EXPECT_EQ(gpu.job->store().view().version(InProcessJob::kRank, ChunkIndex(2)), 0)
      << "corrupt bytes were committed";
}

TEST(GpuPipeline, TakesNoMoreMemoryStepByStep) {
  GpuJob gpu({kElements, 64 << 10, 2, 2, 3, DType::kBF16});
  ASSERT_TRUE(gpu.initialise().is_ok());
  ASSERT_TRUE(gpu.step(1).is_ok());
  size_t before = 0, after = 0, total = 0;
  must(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
  for (Step step = 2; step <= 12; ++step) ASSERT_TRUE(gpu.step(step).is_ok());
  must(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
  EXPECT_GE(after, before);
}

TEST(GpuPipeline, CountsTheBytesOfEachDirection) {
  GpuJob gpu({kElements, 64 << 10, 1, 2, 3});
  ASSERT_TRUE(gpu.initialise().is_ok());
  uint64_t bytes = 0;
  for (const ChunkSpec& chunk : gpu.job->arena().chunks) bytes += chunk_bytes(chunk.range.size());
  const DeviceCounters before = gpu.job->device().counters();
  ASSERT_TRUE(gpu.step(1).is_ok());
  const DeviceCounters after = gpu.job->device().counters();
  EXPECT_EQ(after.bytes_in - before.bytes_in, bytes);
  EXPECT_EQ(after.bytes_out - before.bytes_out, bytes);
}

}  // namespace
}  // namespace optlease
