// The floor's copies and the step log, on the CPU device.
#include "actors/gpu_actor/dma_floor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "actors/gpu_actor/step_log.h"
#include "actors/runtime/clock.h"
#include "tests/support/in_process_job.h"
#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

const FloorSetup kSetup{"cpu", 0, 100'000, 102'400, 5};

TEST(DmaFloor, EveryDirectionTakesTimeAndBouncesNothing) {
  const auto floor = DmaFloor::open(kSetup, 1000);
  ASSERT_TRUE(floor.is_ok()) << floor.status().text();
  for (const auto direction : {FloorDirection::kIn, FloorDirection::kOut, FloorDirection::kBoth}) {
    const auto reply = floor.value()->measure({direction, 5});
    ASSERT_TRUE(reply.is_ok()) << reply.status().text();
    EXPECT_GE(reply.value().rounds, 1u);
    EXPECT_GT(reply.value().best_round_seconds, 0);
    EXPECT_GE(reply.value().round_seconds, reply.value().best_round_seconds);
    EXPECT_EQ(reply.value().bounced_bytes, 0u);
  }
}

TEST(DmaFloor, AnOrderWithoutTimeIsOneRound) {
  const auto floor = DmaFloor::open(kSetup, 0);
  ASSERT_TRUE(floor.is_ok());
  EXPECT_EQ(floor.value()->measure({FloorDirection::kBoth, 0}).value().rounds, 1u);
}

TEST(DmaFloor, MemoryThatIsNotThereIsAnErrorWithNumbers) {
  FloorSetup huge = kSetup;
  huge.copies = 1u << 24;
  huge.slot_bytes = 1ull << 30;
  huge.copy_bytes = 1000;
  const auto floor = DmaFloor::open(huge, 0);
  ASSERT_FALSE(floor.is_ok());
  EXPECT_EQ(floor.status().code(), StatusCode::kNoSpace) << floor.status().text();
}

TEST(DmaFloor, ADeviceThatIsNotThereIsSaidSo) {
  FloorSetup setup = kSetup;
  setup.device = "abacus";
  EXPECT_EQ(DmaFloor::open(setup, 0).status().code(), StatusCode::kUnsupported);
}

class LoggedSteps : public testing::Test {
 protected:
  LoggedSteps() : job_(InProcessShape{50'000, 120'000}), grads_(50'000, 0.5f) {
    auto log = StepLog::open(path_, 3, job_.device());
    OPTLEASE_CHECK(log.is_ok(), "%s", log.status().text().c_str());
    log_.emplace(std::move(log).value());
    const auto fill = [](uint32_t, ElementRange range, float* main) {
      std::fill(main, main + range.size(), 0.02f);
      return Status::ok();
    };
    OPTLEASE_CHECK(job_.run(RunKind::kInitialise, 0, {}, nullptr, fill).is_ok(), "no state");
  }
  void step(Step number) {
    const GroupParams params{1e-3, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
    log_->run_begins(number, job_.device(), job_.pipeline());
    ASSERT_TRUE(
        job_.run(RunKind::kUpdate, number, make_adam_factors(params, number, 1), grads_.data())
            .is_ok());
    job_.pipeline().advance(static_cast<uint64_t>(now_us()));  // as the actor's turn does
    log_->run_over(job_.device(), job_.pipeline());
    log_->step_over(number, 1.5);
  }
  std::vector<StepFigures> logged() {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return step_figures_of(text.str(), 100);
  }
  const testing_support::TempDirectory directory_;
  const std::string path_ = directory_.path() + "/steps.0.jsonl";
  InProcessJob job_;
  std::vector<float> grads_;
  std::optional<StepLog> log_;
};

TEST_F(LoggedSteps, EachLineIsOfItsOwnStep) {
  step(1);
  step(2);
  const auto lines = logged();
  ASSERT_EQ(lines.size(), 2u);
  uint64_t bytes = 0;
  for (const ChunkSpec& chunk : job_.arena().chunks) bytes += chunk_bytes(chunk.range.size());
  for (const StepFigures& f : lines) {
    EXPECT_EQ(f.incarnation, 3u);
    EXPECT_EQ(f.step_seconds, 1.5);
    EXPECT_EQ(f.bytes_in, bytes);
    EXPECT_EQ(f.bytes_out, bytes);
    EXPECT_EQ(f.bounced_bytes, 0u);
    EXPECT_GT(f.stream_seconds, 0);
    EXPECT_GE(f.stream_ended_us, f.stream_begun_us);
    EXPECT_GT(f.first_window_seconds, 0);
    EXPECT_LE(f.first_window_seconds, f.stream_seconds);
    EXPECT_LE(f.in_busy_seconds, f.stream_seconds);
    EXPECT_LE(f.in_busy_seconds_after_first, f.in_busy_seconds);
    EXPECT_LE(f.out_busy_seconds, f.stream_seconds - f.first_window_seconds + 1e-6);
    EXPECT_GT(f.kernel_seconds, 0);
    EXPECT_GE(f.cpu_seconds, 0);
    EXPECT_EQ(f.staging_bytes, job_.device().staging_bytes());
    EXPECT_EQ(f.device_bytes_peak, job_.device().memory_use().used_bytes);
  }
  EXPECT_GE(lines[1].stream_begun_us, lines[0].stream_ended_us);
}

// What is read ahead is the step's, and what a prefetch that came to nothing has read is nobody's.
TEST_F(LoggedSteps, BytesThatWereReadAheadAreOfTheStepThatGoesOnWithThem) {
  log_->read_ahead_begins(job_.device());
  job_.prefetch(1, 20);
  job_.pipeline().release_prefetch();
  job_.settle();
  const auto copied = job_.device().signal(StreamKind::kCopyIn);
  while (!job_.device().reached(copied)) std::this_thread::yield();
  log_->read_ahead_begins(job_.device());
  job_.prefetch(1, 20);
  step(1);
  step(2);
  const auto lines = logged();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].bytes_in, lines[0].bytes_out);
  EXPECT_EQ(lines[1].bytes_in, lines[1].bytes_out);
  EXPECT_GT(lines[0].stream_ended_us, lines[0].stream_begun_us);
}

TEST_F(LoggedSteps, AStepWithoutARunHasItsLineAndNoBytes) {
  step(1);
  log_->step_over(2, 0.25);
  const auto lines = logged();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].step, 2);
  EXPECT_EQ(lines[1].bytes_in, 0u);
  EXPECT_EQ(lines[1].stream_seconds, 0);
  EXPECT_EQ(lines[1].step_seconds, 0.25);
  EXPECT_EQ(lines[1].staging_bytes, lines[0].staging_bytes);
}

TEST(StepLog, AFolderThatIsNotThereIsAnErrorInWords) {
  const auto device = make_device("cpu", Rank(0));
  const auto log = StepLog::open("/nonexistent/steps.0.jsonl", 1, *device.value());
  ASSERT_FALSE(log.is_ok());
  EXPECT_NE(log.status().message().find("/nonexistent"), std::string::npos);
}

}  // namespace
}  // namespace optlease
