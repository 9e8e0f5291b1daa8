#include "launcher/bench/bench.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "launcher/bench/bench_floor.h"
#include "shm/contract/limits.h"
#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

// A step that moves a million bytes each way in `ms`, begun at `begun_ms` of the node's clock.
StepFigures step_of(Step step, double ms, double begun_ms = 0) {
  StepFigures f;
  f.step = step;
  f.step_seconds = ms * 1.5e-3;
  f.stream_begun_us = static_cast<uint64_t>(begun_ms * 1000);
  f.stream_ended_us = static_cast<uint64_t>((begun_ms + ms) * 1000);
  f.stream_seconds = ms * 1e-3;
  f.first_window_seconds = ms * 1e-4;
  f.bytes_in = f.bytes_out = 1'000'000;
  f.read_ahead_bytes = 100'000;
  f.in_busy_seconds_after_first = ms * 0.8e-3;
  f.out_busy_seconds = ms * 0.9e-3;
  f.stall_seconds = 0.001;
  f.lease_wait_seconds = 0.002;
  f.gather_exposed_seconds = ms * 0.2e-3;
  f.cpu_seconds = 0.01;
  f.staging_bytes = 100;
  f.device_bytes_before = 1000;
  f.device_bytes_peak = 1600;
  f.device_bytes = 1500;
  f.device_buffer_bytes = 300;
  return f;
}

RankFloor floor_of(double both) { return {both * 1.1, both * 1.05, both, 0, 0.5}; }

BenchInput one_rank(const std::vector<double>& step_ms) {
  BenchInput input;
  input.parameters = 1000;
  input.warm_up = 1;
  input.steps.resize(1);
  Step step = 1;
  for (const double ms : step_ms) {
    input.steps[0].push_back(step_of(step, ms, 100.0 * static_cast<double>(step)));
    ++step;
  }
  input.before = {floor_of(2e8)};
  input.after = {floor_of(3e8)};
  return input;
}

TEST(BenchFigures, AreMediansOfTheStepsAfterTheWarmUp) {
  const auto figures = bench_figures(one_rank({900, 10, 30, 20}));
  ASSERT_TRUE(figures.is_ok()) << figures.status().text();
  EXPECT_EQ(figures.value().steps_left_out, 1u);
  EXPECT_EQ(figures.value().steps_measured, 3u);
  EXPECT_DOUBLE_EQ(figures.value().stream_seconds, 0.02);
  EXPECT_DOUBLE_EQ(figures.value().step_seconds, 0.03);
  EXPECT_DOUBLE_EQ(figures.value().ns_per_parameter, 0.02 * 1e9 / 1000);
  EXPECT_DOUBLE_EQ(figures.value().finish_spread, 0);
  const RankBench& rank = figures.value().ranks.at(0);
  EXPECT_DOUBLE_EQ(rank.best_stream_seconds, 0.01);
  EXPECT_DOUBLE_EQ(rank.in_bytes_per_second, 4.5e7) << "what was read ahead took none of it";
  EXPECT_DOUBLE_EQ(rank.floor_bytes_per_second, 2.5e8) << "the mean of before and after";
  EXPECT_DOUBLE_EQ(rank.of_floor, 0.2);
  EXPECT_DOUBLE_EQ(figures.value().of_floors, 0.2);
  EXPECT_NEAR(rank.in_busy, 0.8 / 0.9, 1e-12);
  EXPECT_NEAR(rank.out_busy, 1.0, 1e-12);
  EXPECT_NEAR(rank.slower_direction_busy(), 1.0, 1e-12);
  EXPECT_DOUBLE_EQ(rank.exposed_seconds(), 0.003);
  EXPECT_DOUBLE_EQ(rank.gather_exposed_seconds, 0.004);
  EXPECT_EQ(rank.device_bytes_beyond, 1600 - 1000 - 300 - 100);
}

TEST(BenchFigures, AnEvenNumberOfStepsHasTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median_of({4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(median_of({}), 0);
}

TEST(BenchFigures, StepsInWhichCopiesStillBouncedAreLeftOutToo) {
  BenchInput input = one_rank({10, 50, 50, 20, 20});
  input.steps[0][1].bounced_bytes = 7;
  input.steps[0][2].bounced_bytes = 7;
  const auto figures = bench_figures(input);
  ASSERT_TRUE(figures.is_ok());
  EXPECT_EQ(figures.value().steps_left_out, 3u);
  EXPECT_DOUBLE_EQ(figures.value().stream_seconds, 0.02);
  EXPECT_EQ(figures.value().ranks[0].bounced_bytes, 0u);
}

TEST(BenchFigures, WhereEveryCopyBouncesTheFiguresSaySo) {
  BenchInput input = one_rank({10, 20, 30});
  for (StepFigures& f : input.steps[0]) f.bounced_bytes = 7;
  const auto figures = bench_figures(input);
  ASSERT_TRUE(figures.is_ok());
  EXPECT_EQ(figures.value().steps_left_out, 1u);
  EXPECT_EQ(figures.value().ranks[0].bounced_bytes, 14u);
}

TEST(BenchFigures, RanksAreComparedOnTheNodesClock) {
  BenchInput input = one_rank({10, 10});
  input.steps.push_back({step_of(1, 10, 100), step_of(2, 12, 199)});
  input.before = input.after = {floor_of(1e8), floor_of(1e8)};
  const auto figures = bench_figures(input);
  ASSERT_TRUE(figures.is_ok());
  // Rank 0: 200 to 210 ms; rank 1: 199 to 211.
  EXPECT_DOUBLE_EQ(figures.value().stream_seconds, 0.012);
  EXPECT_NEAR(figures.value().finish_spread, 1.0 / 12, 1e-12);
  EXPECT_NEAR(figures.value().of_floors, (1e8 + 1e6 / 0.012) / 2e8, 1e-9);
}

TEST(BenchFigures, AStepThatARankDidNotStreamIsNobodys) {
  BenchInput input = one_rank({10, 10, 10});
  input.steps.push_back({step_of(1, 10), step_of(3, 10)});
  EXPECT_EQ(bench_figures(input).value().steps_measured, 1u);
  input.steps[1][1].stream_ended_us = 0;  // skipped
  EXPECT_EQ(bench_figures(input).status().code(), StatusCode::kNotFound);
}

TEST(BenchFigures, ARankWithoutStateIsNotWaitedFor) {
  BenchInput input = one_rank({10, 10});
  input.steps.emplace_back();
  input.before.emplace_back();
  input.after.emplace_back();
  const auto figures = bench_figures(input);
  ASSERT_TRUE(figures.is_ok()) << figures.status().text();
  EXPECT_EQ(figures.value().ranks.at(1).stream_seconds, 0);
  EXPECT_DOUBLE_EQ(figures.value().of_floors, figures.value().ranks[0].of_floor);
}

TEST(BenchFigures, WithoutAStepThereAreNone) {
  EXPECT_EQ(bench_figures(one_rank({10})).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(bench_figures(one_rank({})).status().code(), StatusCode::kNotFound);
}

TEST(BenchPlan, CountsHaveBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_count("1Ki"), 1024u);
  EXPECT_EQ(parse_count("512Mi"), 512ull << 20);
  EXPECT_EQ(parse_count("4Gi"), 4ull << 30);
  EXPECT_EQ(parse_count("3M"), 3'000'000u);
  EXPECT_EQ(parse_count("17"), 17u);
  for (const char* wrong : {"", "0", "-1", "1.5Mi", "Mi", "1mi", "1Ki ", " 1",
                            "99999999999999999999", "18014398509481984Ki"}) {
    EXPECT_FALSE(parse_count(wrong)) << wrong;
  }
}

TEST(BenchPlan, TheBuiltInJobIsOneRankWithSeededGradients) {
  BenchOptions options;
  options.parameters = 5000;
  options.steps = 4;
  options.warm_up = 3;
  const auto plan = bench_plan(options, false);
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  EXPECT_EQ(plan.value().segment.job_name, "optlease-bench");
  EXPECT_EQ(plan.value().device, "cpu");
  EXPECT_EQ(plan.value().segment.world_size, 1u);
  EXPECT_EQ(plan.value().segment.spaces.at(0).elements, 5000u);
  EXPECT_EQ(plan.value().steps, 7);
  EXPECT_EQ(plan.value().gradients.source, GradientSource::kSynthetic);
  EXPECT_TRUE(plan.value().telemetry.step_log);
  EXPECT_LE(plan.value().staging_budget_bytes(Rank(0)), 64ull << 20);
}

TEST(BenchPlan, FlagsComeBeforeOverrides) {
  BenchOptions options;
  options.parameters = 5000;
  options.world_size = 2;
  options.device = "cpu";
  options.overrides = {"model.elements=6000", "offload.chunk_size_mb=0.0625", "job.name=mine"};
  const auto plan = bench_plan(options, true);
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  EXPECT_EQ(plan.value().segment.world_size, 2u);
  EXPECT_EQ(plan.value().segment.spaces.at(0).elements, 6000u);
  EXPECT_EQ(plan.value().segment.job_name, "mine-bench");
}

TEST(BenchPlan, AFilesTrainerKillsAndNameAreNotTheBenchs) {
  const testing_support::TempDirectory directory;
  const std::string path = directory.path() + "/job.toml";
  std::ofstream(path) << "[job]\nname = \"" << std::string(kJobNameBytesMax, 'n')
                      << "\"\nsteps = 3\nkeep_state = true\n[ranks]\nworld_size = 1\n"
                         "[model]\nelements = 4000\n[trainer]\ncommand = [\"optlease-trainer\"]\n"
                         "[[rehearse]]\nrole = \"gpu_actor\"\nstep = 1\n";
  BenchOptions options;
  options.config_path = path;
  const auto plan = bench_plan(options, true);
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  EXPECT_EQ(plan.value().segment.job_name, std::string(kJobNameBytesMax - 6, 'n') + "-bench");
  EXPECT_TRUE(plan.value().trainer.command.empty());
  EXPECT_TRUE(plan.value().rehearsals.empty());
  EXPECT_FALSE(plan.value().keep_state);
  EXPECT_EQ(plan.value().gradients.source, GradientSource::kSynthetic);
  EXPECT_EQ(plan.value().device, "cpu") << "the file's, whatever the machine has";
}

TEST(BenchPlan, WrongKeysAreRefusedWithTheirPlace) {
  BenchOptions options;
  options.overrides = {"offload.chunk_size=3"};
  const auto plan = bench_plan(options, false);
  ASSERT_FALSE(plan.is_ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(plan.status().message().find("offload.chunk_size"), std::string::npos);
}

TEST(BenchFloor, CopiesAreTheJobsChunksAndAtMostAGibibyteOfThem) {
  BenchOptions options;
  options.device = "cpu";
  options.parameters = 1ull << 30;
  const auto large = bench_plan(options, false);
  ASSERT_TRUE(large.is_ok());
  const FloorSetup setup = floor_setups(large.value()).at(0);
  EXPECT_EQ(why_invalid(setup), "");
  EXPECT_LE(setup.copy_bytes, 16ull << 20);
  EXPECT_GT(setup.copy_bytes, 15ull << 20);
  EXPECT_LE(setup.round_bytes(), 1ull << 30);
  EXPECT_GT(setup.round_bytes(), 1000ull << 20);
  options.parameters = 1024;
  const auto small = bench_plan(options, false);
  ASSERT_TRUE(small.is_ok());
  EXPECT_EQ(floor_setups(small.value()).at(0).copies, 1u);
}

// A ratio to copies of another size than the job's would say nothing.
TEST(BenchFloor, CopiesOnlyWhatTravels) {
  const auto setup_with = [](const std::vector<std::string>& overrides) {
    BenchOptions options;
    options.device = "cpu";
    options.parameters = 1ull << 26;
    options.overrides = overrides;
    options.overrides.push_back("offload.chunk_size_mb=12");
    const auto plan = bench_plan(options, false);
    EXPECT_TRUE(plan.is_ok()) << plan.status().text();
    return floor_setups(plan.value()).at(0);
  };
  const uint64_t whole = setup_with({}).copy_bytes;
  const uint64_t remainder = setup_with({"optimizer.main=bf16+remainder"}).copy_bytes;
  const uint64_t half = setup_with({"offload.fraction=0.5"}).copy_bytes;
  EXPECT_EQ(setup_with({"offload.fraction=0"}).copies, 0u);
  // Chunks may hold more elements where each takes less: bytes an element are what counts.
  EXPECT_LE(whole, 12ull << 20);
  EXPECT_LE(remainder, 12ull << 20);
  EXPECT_LT(half, whole * 6 / 10);
}

TEST(BenchFloor, WaitsForWhatIsCopiedAndNotForMinutes) {
  FloorSetup setup;
  setup.copy_bytes = setup.slot_bytes = 1u << 20;
  setup.copies = 1;
  const FloorPatience small = floor_patience({setup}, 500);
  EXPECT_GE(small.setup_ms, 20'000);
  EXPECT_LE(small.setup_ms, 21'000);
  EXPECT_GE(small.order_ms, 20'500);
  EXPECT_LE(small.order_ms, 21'500);
  // 1 GiB each way, each byte twice, at 0.5 GB/s.
  setup.copies = 1024;
  EXPECT_NEAR(floor_patience({setup}, 0).order_ms, 20'000 + 8'590, 10);
  EXPECT_NEAR(floor_patience({setup, setup}, 0).order_ms, 20'000 + 2 * 8'590, 10);
  setup.device = "cuda";
  EXPECT_EQ(floor_patience({setup, setup}, 0).setup_ms,
            floor_patience({setup, setup}, 0).order_ms + 10'000);
}

TEST(BenchText, JsonAndWordsHaveTheSameFigures) {
  BenchOptions options;
  options.parameters = 5000;
  options.device = "cpu";
  BenchResult result;
  result.plan = bench_plan(options, false).value();
  result.parameters = 5000;
  const BenchInput input = one_rank({10, 20});
  result.before = input.before;
  result.after = input.after;
  result.figures = bench_figures(input).value();
  const auto json = nlohmann::json::parse(bench_json(result));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["ranks"].at(0)["of_floor"], 0.2);
  EXPECT_EQ(json["ranks"][0]["floor_before"]["both_bytes_per_second"], 2e8);
  EXPECT_EQ(json["ranks"][0]["device_bytes_beyond"], 200);
  EXPECT_NE(bench_text(result).find("0.2000 of the floor"), std::string::npos)
      << bench_text(result);
}

}  // namespace
}  // namespace optlease
