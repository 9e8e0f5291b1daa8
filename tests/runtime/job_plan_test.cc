#include "actors/runtime/job_plan.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <cfloat>
#include <fstream>
#include <limits>
#include <random>

#include "tests/support/test_seed.h"
#include "tests/wire/run_environment.h"

namespace optlease {
namespace {

// Valid plans that use every field, drawn from a seed.
class RandomPlan {
 public:
  explicit RandomPlan(uint64_t seed) : random_(seed) {}

  JobPlan make() {
    JobPlan plan;
    plan.segment.job_name = text();
    plan.segment.world_size = 1 + below(5);
    plan.segment.window_chunks = 1 + below(64);
    plan.segment.prefetch_windows = 1 + below(60);
    plan.segment.split.resident_millionths = below(kMillion + 1);
    const uint32_t groups = 1 + below(4);
    plan.optimizer.lr = number();
    for (uint32_t i = 0; i < groups; ++i) plan.optimizer.groups.push_back(group());
    for (uint32_t i = 0, n = 1 + below(3); i < n; ++i) {
      add_space(&plan, "space" + std::to_string(i), below(groups));
    }
    const Status laid_out = lay_out(&plan.segment, 4096u << below(5));
    EXPECT_TRUE(laid_out.is_ok()) << laid_out.text();
    plan.steps = static_cast<int64_t>(random_() % (kStepMax + 1));
    plan.device = text();
    plan.keep_state = coin();
    plan.staging_buffers = 1 + below(9);
    plan.in_flight_bytes = random_();
    for (uint32_t r = coin() ? plan.segment.world_size : 0; r > 0; --r) {
      plan.numa.nodes.push_back(static_cast<int64_t>(below(9)) - 1);
    }
    plan.numa.note = text();
    plan.model.source = text();
    plan.model.seed = random_();
    fill_gradients(&plan.gradients);
    fill_trainer(&plan.trainer);
    fill_restart(&plan.restart);
    plan.telemetry.interval_ms = random_();
    plan.telemetry.step_log = random_() % 2 == 0;
    for (uint32_t i = below(4); i > 0; --i) plan.rehearsals.push_back(rehearsal(plan));
    return plan;
  }

 private:
  void add_space(JobPlan* plan, const std::string& name, uint32_t group) {
    SpaceSpec space;
    space.name = name;
    space.group = group;
    for (uint32_t rank = 0; rank < plan->segment.world_size; ++rank) {
      if (rank == 0 || coin()) space.members.push_back(Rank(rank));
    }
    space.param_dtype = coin() ? DType::kBF16 : DType::kF16;
    space.grad_dtype = coin() ? DType::kF32 : DType::kBF16;
    std::vector<TensorInit> init;
    for (uint32_t i = below(5) + (plan->segment.spaces.empty() ? 1 : 0); i > 0; --i) {
      TensorSpec tensor;
      tensor.name = "tensor " + std::to_string(i);
      for (uint32_t d = below(4); d > 0; --d) tensor.shape.push_back(1 + below(40));
      if (coin()) {  // the second of two halves along every dimension
        tensor.global_offset = tensor.shape;
        for (const uint64_t size : tensor.shape) tensor.global_shape.push_back(2 * size);
      }
      space.tensors.push_back(tensor);
      init.push_back({static_cast<InitKind>(below(3)), number()});
    }
    plan->segment.spaces.push_back(space);
    plan->model.init.push_back(init);
  }
  GroupParams group() {
    GroupParams params{};
    params.lr = fraction();
    params.beta1 = fraction();
    params.beta2 = fraction();
    params.eps = fraction() + 1e-300;
    params.weight_decay = fraction();
    params.rule = static_cast<uint32_t>(coin() ? Rule::kAdam : Rule::kAdamW);
    return params;
  }
  void fill_gradients(GradientPlan* plan) {
    plan->source = static_cast<GradientSource>(below(3));
    plan->replay_path = text();
    plan->synthetic_seed = random_();
    for (uint32_t i = below(3); i > 0; --i) {
      plan->synthetic_nonfinite_steps.push_back(static_cast<int64_t>(random_()));
    }
    plan->average = coin();
    plan->max_norm = number();
    plan->collective_timeout_ms = random_();
    plan->durable = coin();
  }
  void fill_trainer(TrainerPlan* plan) {
    for (uint32_t i = below(3); i > 0; --i) plan->command.push_back(text());
    for (uint32_t i = below(3); i > 0; --i) plan->environment.push_back(text());
    plan->attach_timeout_ms = random_();
  }
  void fill_restart(RestartPlan* plan) {
    plan->intensity = static_cast<uint32_t>(random_());
    plan->period_ms = random_();
    plan->backoff_ms = random_();
    plan->backoff_ms_max = random_();
    plan->start_timeout_ms = random_();
    plan->heartbeat_timeout_ms = random_();
    plan->lease_ms = random_();
    plan->quarantine_grace_ms = random_();
    plan->stop_timeout_ms = random_();
  }
  Rehearsal rehearsal(const JobPlan& plan) {
    return {static_cast<Role>(below(4)), below(plan.segment.world_size),
            static_cast<Step>(random_()), static_cast<RehearsePhase>(below(10)),
            below(plan.segment.world_size)};
  }

  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  bool coin() { return below(2) == 1; }
  double fraction() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  double number() {  // any finite double: every exponent, denormals, both zeros
    for (;;) {
      const auto value = std::bit_cast<double>(random_());
      if (std::isfinite(value)) return value;
    }
  }
  std::string text() {
    static const char* const kPieces[] = {"a",  "\"",     "\\", "\n", "\xc3\xa9",
                                          "\t", "{step}", " ",  "/",  "\x01"};
    std::string out;
    for (uint32_t i = below(8); i > 0; --i) out += kPieces[below(std::size(kPieces))];
    return out;
  }

  std::mt19937_64 random_;
};

JobPlan plan_of(uint64_t seed) { return RandomPlan(seed).make(); }

JobPlan reread(const JobPlan& plan) {
  const Result<JobPlan> read = job_plan_from_json(to_json(plan));
  EXPECT_TRUE(read.is_ok()) << read.status().text();
  return read.is_ok() ? read.value() : JobPlan{};
}

// The document with the first `before` replaced.
std::string edited(const std::string& before, const std::string& after) {
  std::string text = to_json(plan_of(1));
  const size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << before << " in " << text;
  if (at != std::string::npos) text.replace(at, before.size(), after);
  return text;
}

void expect_refused(const std::string& text, const std::string& words) {
  const Result<JobPlan> read = job_plan_from_json(text);
  ASSERT_FALSE(read.is_ok()) << text;
  EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(read.status().message().find(words), std::string::npos) << read.status().text();
}

TEST(JobPlanJson, RandomPlansComeBackAsTheyWere) {
  const uint64_t first = test_seed();
  for (uint64_t seed = first; seed < first + 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const JobPlan plan = plan_of(seed);
    const JobPlan read = reread(plan);
    ASSERT_EQ(to_json(read), to_json(plan));
    ASSERT_EQ(layout_hash(read.segment), layout_hash(plan.segment));
    ASSERT_EQ(read.model.seed, plan.model.seed);
    ASSERT_EQ(read.steps, plan.steps);
    ASSERT_EQ(std::bit_cast<uint64_t>(read.gradients.max_norm),
              std::bit_cast<uint64_t>(plan.gradients.max_norm));
    ASSERT_EQ(read.trainer.command, plan.trainer.command);
  }
}

TEST(JobPlanJson, ExtremeNumbersComeBackBitForBit) {
  JobPlan plan = plan_of(2);
  for (const double value : {0.1, -0.0, DBL_MIN, DBL_MAX, std::numeric_limits<double>::denorm_min(),
                             1.0, 1e22, 9007199254740993.0, 0.3}) {
    plan.gradients.max_norm = value;
    EXPECT_EQ(std::bit_cast<uint64_t>(reread(plan).gradients.max_norm),
              std::bit_cast<uint64_t>(value))
        << value;
  }
  for (const uint64_t value : {uint64_t{0}, (uint64_t{1} << 53) + 1, UINT64_MAX}) {
    plan.model.seed = value;
    EXPECT_EQ(reread(plan).model.seed, value);
  }
  for (const int64_t value : {INT64_MIN, int64_t{-1}, INT64_MAX}) {
    plan.gradients.synthetic_nonfinite_steps = {value};
    EXPECT_EQ(reread(plan).gradients.synthetic_nonfinite_steps.front(), value);
  }
}

TEST(JobPlanJson, KeysNameTheirOwnMembers) {
  JobPlan plan = plan_of(3);
  plan.segment.window_chunks = 41;
  plan.segment.prefetch_windows = 42;
  plan.optimizer.groups[0].beta1 = 0.25;
  plan.optimizer.groups[0].beta2 = 0.75;
  plan.optimizer.groups[0].rule = static_cast<uint32_t>(Rule::kAdam);
  plan.segment.split = {MainForm::kBf16Remainder, 45};
  plan.restart.lease_ms = 43;
  plan.restart.quarantine_grace_ms = 44;
  plan.rehearsals = {{Role::kTrainer, 0, 7, RehearsePhase::kUpdate, 0}};
  const std::string text = to_json(plan);
  for (const char* part :
       {"\"window_chunks\": 41", "\"prefetch_windows\": 42", "\"beta1\": 0.25", "\"beta2\": 0.75",
        "\"rule\": \"adam\"", "\"lease_ms\": 43", "\"quarantine_grace_ms\": 44",
        "\"main\": \"bf16+remainder\"", "\"resident_millionths\": 45", "\"role\": \"trainer\"",
        "\"phase\": \"update\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST(JobPlanJson, UnknownMissingAndRepeatedKeysAreErrors) {
  expect_refused(edited("\"steps\":", "\"stepz\":"), "'steps' is missing");
  expect_refused(edited("\"keep_state\":", "\"extra\": 1, \"keep_state\":"), "'extra' is unknown");
  expect_refused(edited("\"average\":", "\"extra\": 1, \"average\":"),
                 "'gradients.extra' is unknown");
  expect_refused(edited("\"keep_state\":", "\"steps\": 1, \"keep_state\":"),
                 "'steps' is there twice");
  expect_refused(edited("\"beta1\":", "\"beta3\":"), "'optimizer.groups[0].beta1' is missing");
}

TEST(JobPlanJson, WrongTypesAndRangesAreErrorsWithTheirPlace) {
  const std::string world = "\"world_size\": " + std::to_string(plan_of(1).segment.world_size);
  expect_refused(edited(world, "\"world_size\": -1"), "'segment.world_size' is out of range: -1");
  expect_refused(edited(world, "\"world_size\": 4294967296"),
                 "'segment.world_size' is out of range");
  expect_refused(edited(world, "\"world_size\": 1.0"),
                 "'segment.world_size' is not a whole number");
  expect_refused(edited(world, "\"world_size\": true"),
                 "'segment.world_size' is not a whole number");
  expect_refused(edited("\"device\": \"", "\"device\": 1, \"x\": \""), "'device' is not a string");
  expect_refused(edited("\"param_dtype\": \"", "\"param_dtype\": \"x"),
                 "'segment.spaces[0].param_dtype' has the unknown value");
}

TEST(JobPlanJson, TextThatIsNoPlanIsRefusedInWords) {
  expect_refused("", "the job plan is invalid");
  expect_refused("{", "the job plan is invalid");
  expect_refused("[]", "is not an object");
  expect_refused("null", "is not an object");
  expect_refused("{}", "'segment' is missing");
  expect_refused(to_json(plan_of(1)) + "x", "the job plan is invalid");
  expect_refused("{\"a\": 1e999}", "the job plan is invalid");
  expect_refused("{\"\xff\": 1}", "the job plan is invalid");
}

TEST(JobPlanJson, EveryTruncationIsRefused) {
  const std::string text = to_json(plan_of(4));
  for (size_t size = 0; size + 1 < text.size(); size += 1 + size / 40) {
    if (size + 2 >= text.size()) break;  // only the final newline is missing
    EXPECT_FALSE(job_plan_from_json(text.substr(0, size)).is_ok()) << size;
  }
}

TEST(JobPlanJson, PlansThatContradictThemselvesAreRefused) {
  const auto refused = [](auto change, const char* words) {
    JobPlan plan = plan_of(5);
    change(plan);
    expect_refused(to_json(plan), words);
  };
  refused([](JobPlan& p) { p.segment.world_size = 0; }, "world_size");
  refused([](JobPlan& p) { p.segment.spaces[0].group = 7; }, "optimizer group");
  refused([](JobPlan& p) { p.optimizer.groups[0].beta1 = 1.5; }, "beta1");
  refused([](JobPlan& p) { p.model.init.emplace_back(); }, "one entry a space");
  refused([](JobPlan& p) { p.model.init[0].emplace_back(); }, "one entry a tensor");
  refused([](JobPlan& p) { p.staging_buffers = 0; }, "staging_buffers");
  refused([](JobPlan& p) { p.steps = -1; }, "steps");
  refused([](JobPlan& p) { p.steps = kStepMax + 1; }, "steps");
  // Whoever lists the chunks of such a rank is never done, or out of memory.
  refused([](JobPlan& p) { p.segment.spaces[0].chunk_elements = 0; }, "chunk size");
  refused([](JobPlan& p) { p.segment.spaces[0].shard_elements = 0; }, "element counts");
  refused(
      [](JobPlan& p) {
        p.rehearsals = {{Role::kGpuActor, 99, 1, RehearsePhase::kUpdate, 0}};
      },
      "past world_size");
}

TEST(JobPlanJsonDeathTest, NumbersThatJsonHasNotAbort) {
  JobPlan plan = plan_of(6);
  plan.gradients.max_norm = std::nan("");
  EXPECT_DEATH((void)to_json(plan), "which JSON has not");
}

TEST(JobPlan, NamesComeBackAndStrangersDoNot) {
  const auto round_trip = [](auto last) {
    using Enum = decltype(last);
    for (int number = 0; number <= static_cast<int>(last); ++number) {
      Enum out{};
      EXPECT_TRUE(parse(std::string(name_of(static_cast<Enum>(number))), &out));
      EXPECT_EQ(static_cast<int>(out), number);
    }
    Enum out = last;
    EXPECT_FALSE(parse(std::string("?"), &out));
    EXPECT_FALSE(parse(std::string(), &out));
    EXPECT_EQ(out, last);
  };
  round_trip(GradientSource::kSynthetic);
  round_trip(RehearsePhase::kBetweenSteps);
  round_trip(RehearsePhase::kPrepared);
  round_trip(RehearsePhase::kAnswered);
  round_trip(RehearsePhase::kGather);
  round_trip(Role::kTrainer);
  round_trip(InitKind::kOnes);
}

TEST(JobPlan, StagingBudgetIsBuffersTimesWindowTimesSlot) {
  JobPlan plan;
  plan.segment.job_name = "job";
  plan.segment.world_size = 2;
  plan.segment.window_chunks = 4;
  SpaceSpec space;
  space.name = "dense";
  space.members = {Rank(0), Rank(1)};
  TensorSpec tensor;
  tensor.name = "w";
  tensor.shape = {1000000};
  space.tensors = {tensor};
  plan.segment.spaces = {space};
  plan.staging_buffers = 3;
  const Status laid_out = lay_out(&plan.segment, 1 << 20);
  ASSERT_TRUE(laid_out.is_ok()) << laid_out.text();
  const uint64_t slot_bytes = arena_of(plan.segment, Rank(0)).slot_bytes;
  ASSERT_GT(slot_bytes, 0u);
  EXPECT_EQ(plan.staging_budget_bytes(Rank(0)), 12 * slot_bytes);
}

using JobPlanFile = RunEnvironment;

TEST_F(JobPlanFile, IsReadFromTheRunDirectory) {
  const RunDirectory directory = make_run_directory("job");
  const JobPlan plan = plan_of(7);
  EXPECT_EQ(read_job_plan(directory.job_file()).status().code(), StatusCode::kNotFound);
  std::ofstream(directory.job_file()) << to_json(plan);
  const Result<JobPlan> read = read_job_plan(directory.job_file());
  ASSERT_TRUE(read.is_ok()) << read.status().text();
  EXPECT_EQ(to_json(read.value()), to_json(plan));
  std::ofstream(directory.job_file()) << "{";
  EXPECT_NE(read_job_plan(directory.job_file()).status().message().find(directory.job_file()),
            std::string::npos);
}

TEST_F(JobPlanFile, AFifoInItsPlaceIsNotWaitedFor) {
  const RunDirectory directory = make_run_directory("job");
  ASSERT_EQ(::mkfifo(directory.job_file().c_str(), 0600), 0);
  const Status status = read_job_plan(directory.job_file()).status();
  EXPECT_NE(status.message().find("is no regular file"), std::string::npos) << status.text();
}

}  // namespace
}  // namespace optlease
