// Gradient sources and initial state: against values computed element by element here, and against
// files made byte by byte.
#include <cmath>
#include <cstring>
#include <random>

#include "actors/gpu_actor/gradient_source.h"
#include "actors/gpu_actor/initial_state.h"
#include "kernels/formats.h"
#include "kernels/random.h"
#include "tests/gpu_actor/far_math.h"
#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

SpaceSpec space_of(const std::string& name, std::vector<Rank> members,
                   std::vector<TensorSpec> tensors, DType grad_dtype) {
  SpaceSpec space;
  space.name = name;
  space.members = std::move(members);
  space.tensors = std::move(tensors);
  space.grad_dtype = grad_dtype;
  return space;
}

TensorSpec tensor_of(const std::string& name, std::vector<uint64_t> shape) {
  TensorSpec tensor;
  tensor.name = name;
  tensor.shape = std::move(shape);
  return tensor;
}

// Space 0: rank 1 alone; space 1: both ranks; tensors of odd sizes, a scalar among them.
JobPlan plan_of(DType grad_dtype = DType::kF32) {
  JobPlan plan;
  plan.segment.job_name = "j";
  plan.segment.world_size = 2;
  plan.segment.spaces = {space_of("own", {Rank(1)}, {tensor_of("own.w", {3, 5})}, grad_dtype),
                         space_of("all", {Rank(0), Rank(1)},
                                  {tensor_of("embed", {101, 13}), tensor_of("norm", {7}),
                                   tensor_of("scale", {}), tensor_of("bias", {300})},
                                  grad_dtype)};
  EXPECT_TRUE(lay_out(&plan.segment, 0).is_ok());
  plan.model.init = {{{InitKind::kNormal, 0.02}},
                     {{InitKind::kNormal, 0.5},
                      {InitKind::kOnes, 0},
                      {InitKind::kZeros, 0},
                      {InitKind::kNormal, 0.1}}};
  plan.model.seed = 99;
  return plan;
}

std::string bytes_of_floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  size_t begin, size_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::vector<float> ramp(uint64_t count, float first) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = first + 0.25f * static_cast<float>(i);
  return values;
}

// The tensors of plan_of() in one file: F32, but for a BF16 "norm".
std::string model_file() {
  std::string norm;
  for (const float value : ramp(7, 2.0f)) {
    const uint16_t half = bf16_from_f32(value);
    norm.append(reinterpret_cast<const char*>(&half), 2);
  }
  const std::string data = bytes_of_floats(ramp(15, -3)) + bytes_of_floats(ramp(1313, 100)) + norm +
                           bytes_of_floats(ramp(1, 9)) + bytes_of_floats(ramp(300, -50));
  return craft("{" + entry("own.w", "F32", "[3,5]", 0, 60) + "," +
                   entry("embed", "F32", "[101,13]", 60, 5312) + "," +
                   entry("norm", "BF16", "[7]", 5312, 5326) + "," +
                   entry("scale", "F32", "[]", 5326, 5330) + "," +
                   entry("bias", "F32", "[300]", 5330, 6530) + "}",
               data);
}

std::vector<float> whole_space(const InitialState& state, const JobPlan& plan, uint32_t space) {
  const uint64_t elements = plan.segment.spaces[space].elements;
  std::vector<float> main(elements, NAN);
  EXPECT_TRUE(state.fill_main(space, {0, elements}, main.data()).is_ok());
  return main;
}

void expect_same_at_any_cut(const InitialState& state, const JobPlan& plan) {
  constexpr uint32_t kSeed = 5;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  for (uint32_t space = 0; space < plan.segment.spaces.size(); ++space) {
    const std::vector<float> whole = whole_space(state, plan, space);
    for (uint32_t round = 0; round < 200; ++round) {
      const uint64_t begin = random() % (whole.size() + 1);
      const uint64_t end = begin + random() % (whole.size() - begin + 1);
      std::vector<float> cut(end - begin + 2, 55.0f);
      ASSERT_TRUE(state.fill_main(space, {begin, end}, cut.data() + 1).is_ok());
      ASSERT_EQ(std::memcmp(cut.data() + 1, whole.data() + begin, (end - begin) * 4), 0)
          << begin << " " << end;
      ASSERT_EQ(cut.front(), 55.0f);
      ASSERT_EQ(cut.back(), 55.0f);
    }
  }
}

TEST(InitialState, SeededValuesAreThoseOfTheGeneratorAtAnyCut) {
  const JobPlan plan = plan_of();
  const Result<InitialState> state = InitialState::open(plan);
  ASSERT_TRUE(state.is_ok()) << state.status().text();
  const std::vector<float> main = whole_space(state.value(), plan, 1);
  for (const uint64_t i : {0u, 1u, 1312u}) EXPECT_EQ(main[i], normal_value(99, 1, i) * 0.5f) << i;
  for (uint64_t i = 1313; i < 1320; ++i) EXPECT_EQ(main[i], 1.0f);
  EXPECT_EQ(main[1320], 0.0f);
  EXPECT_EQ(main[1321], normal_value(99, 1, 1321) * 0.1f);
  expect_same_at_any_cut(state.value(), plan);
}

TEST(InitialState, ModelValuesAreThoseOfTheFileAtAnyCut) {
  const TempFolder folder;
  JobPlan plan = plan_of();
  plan.model.source = put(folder / "m.safetensors", model_file());
  const Result<InitialState> state = InitialState::open(plan);
  ASSERT_TRUE(state.is_ok()) << state.status().text();
  EXPECT_EQ(whole_space(state.value(), plan, 0), ramp(15, -3));
  const std::vector<float> main = whole_space(state.value(), plan, 1);
  const std::vector<float> embed = ramp(1313, 100), norm = ramp(7, 2), bias = ramp(300, -50);
  EXPECT_TRUE(std::equal(embed.begin(), embed.end(), main.begin()));
  EXPECT_TRUE(std::equal(norm.begin(), norm.end(), main.begin() + 1313));
  EXPECT_EQ(main[1320], 9.0f);
  EXPECT_TRUE(std::equal(bias.begin(), bias.end(), main.begin() + 1321));
  expect_same_at_any_cut(state.value(), plan);
}

TEST(InitialState, MomentsAreZero) {
  const JobPlan plan = plan_of();
  const Result<InitialState> state = InitialState::open(plan);
  ASSERT_TRUE(state.is_ok());
  std::vector<float> main(100, 5), exp_avg(100, 5), exp_avg_sq(100, 5);
  ASSERT_TRUE(
      state.value().fill(1, {10, 110}, main.data(), exp_avg.data(), exp_avg_sq.data()).is_ok());
  EXPECT_EQ(main[0], normal_value(99, 1, 10) * 0.5f);
  EXPECT_EQ(exp_avg, std::vector<float>(100, 0.0f));
  EXPECT_EQ(exp_avg_sq, std::vector<float>(100, 0.0f));
}

TEST(InitialState, TakesAShardOutOfALargerTensor) {
  const TempFolder folder;
  // 4 x 6 x 5 in the file; the job trains [1..3) x [2..5) x [0..5) and a slice along the last
  // dimension.
  TensorSpec middle = tensor_of("w", {2, 3, 5});
  middle.global_shape = {4, 6, 5};
  middle.global_offset = {1, 2, 0};
  TensorSpec last = tensor_of("v", {4, 6, 2});
  last.global_shape = {4, 6, 5};
  last.global_offset = {0, 0, 3};
  JobPlan plan;
  plan.segment.job_name = "j";
  plan.segment.world_size = 1;
  plan.segment.spaces = {space_of("s", {Rank(0)}, {middle, last}, DType::kF32)};
  ASSERT_TRUE(lay_out(&plan.segment, 0).is_ok());
  const std::vector<float> w = ramp(120, 0), v = ramp(120, 1000);
  plan.model.source =
      put(folder / "m.safetensors", craft("{" + entry("w", "F32", "[4,6,5]", 0, 480) + "," +
                                              entry("v", "F32", "[4,6,5]", 480, 960) + "}",
                                          bytes_of_floats(w) + bytes_of_floats(v)));
  const Result<InitialState> state = InitialState::open(plan);
  ASSERT_TRUE(state.is_ok()) << state.status().text();
  std::vector<float> expected;
  for (int i = 1; i < 3; ++i)
    for (int j = 2; j < 5; ++j)
      for (int k = 0; k < 5; ++k) expected.push_back(w[(i * 6 + j) * 5 + k]);
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 6; ++j)
      for (int k = 3; k < 5; ++k) expected.push_back(v[(i * 6 + j) * 5 + k]);
  EXPECT_EQ(whole_space(state.value(), plan, 0), expected);
  expect_same_at_any_cut(state.value(), plan);
}

// Where the file does not hold what the job needs, the refusal names the file and the tensor.
TEST(InitialState, RefusesModelsThatDoNotFitBeforeAnythingStarts) {
  const TempFolder folder;
  struct Case {
    std::string from, to, words;
    StatusCode code;
  };
  const Case cases[] = {
      {"[101,13]", "[13,101]", "[13, 101]; the job's is [101, 13]", StatusCode::kInvalidArgument},
      {"\"norm\"", "\"gone\"", "no tensor 'norm'", StatusCode::kNotFound},
      {"\"BF16\"", "\"I16\"", "I16", StatusCode::kInvalidArgument},
  };
  for (const Case& one : cases) {
    std::string file = model_file();
    std::string header = file.substr(8, file.size() - 8 - 6530);
    header.replace(header.find(one.from), one.from.size(), one.to);
    JobPlan plan = plan_of();
    plan.model.source =
        put(folder / "m.safetensors", craft(header, file.substr(file.size() - 6530)));
    const Status status = InitialState::open(plan).status();
    EXPECT_EQ(status.code(), one.code) << status.text();
    EXPECT_NE(status.message().find("m.safetensors"), std::string::npos) << status.text();
    EXPECT_NE(status.message().find(one.words), std::string::npos) << status.text();
  }
  JobPlan plan = plan_of();
  plan.model.source = folder / "gone.safetensors";
  EXPECT_EQ(InitialState::open(plan).status().code(), StatusCode::kNotFound);
}

TEST(InitialState, RefusesSeedsThatDoNotFitTheTensors) {
  JobPlan plan = plan_of();
  EXPECT_TRUE(InitialState::open(plan).status().is_ok());
  plan.model.init[1].pop_back();
  EXPECT_EQ(InitialState::open(plan).status().code(), StatusCode::kInvalidArgument);
  plan = plan_of();
  plan.model.init[0][0].std_dev = NAN;
  EXPECT_EQ(InitialState::open(plan).status().code(), StatusCode::kInvalidArgument);
}

std::vector<std::byte> filled(GradientFiller* filler, const JobPlan& plan, Step step,
                              uint32_t space) {
  const SpaceSpec& spec = plan.segment.spaces[space];
  std::vector<std::byte> out(spec.elements * bytes_of(spec.grad_dtype));
  const Status status = filler->fill(step, space, out.data());
  EXPECT_TRUE(status.is_ok()) << status.text();
  return out;
}

TEST(SyntheticGradients, AreThoseOfTheGeneratorInTheGradientsDtype) {
  JobPlan plan = plan_of(DType::kBF16);
  plan.gradients.source = GradientSource::kSynthetic;
  plan.gradients.synthetic_seed = 4;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    GradientFiller filler(plan, Rank(rank), cpu_math());
    const std::vector<std::byte> out = filled(&filler, plan, 3, 1);
    for (uint64_t i = 0; i < plan.segment.spaces[1].elements; ++i) {
      uint16_t value;
      std::memcpy(&value, &out[i * 2], 2);
      ASSERT_EQ(value, bf16_from_f32(synthetic_gradient(4, 3, rank, 1, i))) << i;
    }
  }
}

TEST(SyntheticGradients, HaveOneNaNOfRank0InNonfiniteSteps) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    JobPlan plan = plan_of(dtype);
    plan.gradients.source = GradientSource::kSynthetic;
    plan.gradients.synthetic_nonfinite_steps = {2};
    GradientFiller bad(plan, Rank(0), cpu_math());
    GradientFiller other(plan, Rank(1), cpu_math());
    JobPlan calm = plan;
    calm.gradients.synthetic_nonfinite_steps.clear();
    GradientFiller good(calm, Rank(0), cpu_math());
    EXPECT_EQ(filled(&bad, plan, 1, 1), filled(&good, calm, 1, 1));
    std::vector<std::byte> with = filled(&bad, plan, 2, 1);
    const std::vector<std::byte> without = filled(&good, calm, 2, 1);
    float first = 0;
    uint16_t half = 0;
    std::memcpy(&half, with.data(), 2);
    std::memcpy(&first, with.data(), 4);
    EXPECT_TRUE(std::isnan(dtype == DType::kF32 ? first : f32_from_f16(half)));
    std::memcpy(with.data(), without.data(), bytes_of(dtype));
    EXPECT_EQ(with, without) << "only the first element differs";
    GradientFiller calm_other(calm, Rank(1), cpu_math());
    EXPECT_EQ(filled(&other, plan, 2, 0), filled(&calm_other, calm, 2, 0));
    EXPECT_EQ(filled(&other, plan, 2, 1), filled(&calm_other, calm, 2, 1));
  }
}

TEST(ReplayedGradients, ComeFromTheFileOfTheStepAndRankInTheGradientsDtype) {
  const TempFolder folder;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    JobPlan plan = plan_of(dtype);
    plan.gradients.source = GradientSource::kReplay;
    plan.gradients.replay_path = folder / "g{step}/rank{rank}.{step}";
    std::filesystem::create_directory(folder / "g12");
    put(folder / "g12/rank1.12", model_file());
    GradientFiller filler(plan, Rank(1), cpu_math());
    const std::vector<std::byte> out = filled(&filler, plan, 12, 1);
    std::vector<float> expected = ramp(1313, 100);
    for (const float value : ramp(7, 2)) expected.push_back(value);
    expected.push_back(9);
    for (const float value : ramp(300, -50)) expected.push_back(value);
    for (uint64_t i = 0; i < expected.size(); ++i) {
      uint16_t half = 0;
      float single = 0;
      std::memcpy(&half, &out[i * bytes_of(dtype)], 2);
      if (dtype == DType::kF32) {
        std::memcpy(&single, &out[i * 4], 4);
        ASSERT_EQ(single, expected[i]) << i;
      } else {
        ASSERT_EQ(half,
                  dtype == DType::kBF16 ? bf16_from_f32(expected[i]) : f16_from_f32(expected[i]))
            << i;
      }
    }
  }
}

TEST(ReplayedGradients, AreTheSameThroughStagingOfAnySize) {
  const TempFolder folder;
  put(folder / "1", model_file());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    JobPlan plan = plan_of(dtype);
    plan.gradients.source = GradientSource::kReplay;
    plan.gradients.replay_path = folder / "{step}";
    GradientFiller in_place(plan, Rank(1), cpu_math());
    const std::vector<std::byte> expected = filled(&in_place, plan, 1, 1);
    for (const size_t bytes : {4u, 30u, 100u, 4096u, 1u << 20}) {
      FarMath math(bytes);
      GradientFiller filler(plan, Rank(1), &math);
      EXPECT_EQ(filled(&filler, plan, 1, 1), expected) << name_of(dtype) << " " << bytes;
      EXPECT_GE(math.puts_, 4u) << "at least one a tensor";
    }
  }
}

TEST(ReplayedGradients, ConvertTensorsOfManyPieces) {
  const TempFolder folder;
  const uint64_t elements = 3 * (64u << 10) + 17;  // pieces of 64 Ki elements and a rest
  JobPlan plan;
  plan.segment.job_name = "j";
  plan.segment.world_size = 1;
  plan.segment.spaces = {space_of("s", {Rank(0)}, {tensor_of("t", {elements})}, DType::kBF16)};
  ASSERT_TRUE(lay_out(&plan.segment, 0).is_ok());
  plan.gradients.source = GradientSource::kReplay;
  const std::vector<float> values = ramp(elements, -7);
  plan.gradients.replay_path = put(
      folder / "every-step",
      craft("{" + entry("t", "F32", "[" + std::to_string(elements) + "]", 0, elements * 4) + "}",
            bytes_of_floats(values)));
  GradientFiller filler(plan, Rank(0), cpu_math());
  const std::vector<std::byte> out = filled(&filler, plan, 1, 0);
  EXPECT_EQ(filled(&filler, plan, 2, 0), out) << "a path without {step} serves every step";
  for (uint64_t i = 0; i < elements; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, &out[i * 2], 2);
    ASSERT_EQ(half, bf16_from_f32(values[i])) << i;
  }
}

TEST(ReplayedGradients, SayWhichFileOrTensorIsWrong) {
  const TempFolder folder;
  JobPlan plan = plan_of();
  plan.gradients.source = GradientSource::kReplay;
  EXPECT_EQ(validate_gradient_source(plan).code(), StatusCode::kInvalidArgument);
  plan.gradients.replay_path = folder / "{step}";
  EXPECT_TRUE(validate_gradient_source(plan).is_ok());
  GradientFiller filler(plan, Rank(0), cpu_math());
  std::vector<float> out(plan.segment.spaces[1].elements);
  Status status = filler.fill(1, 1, out.data());
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find(folder / "1"), std::string::npos) << status.text();

  put(folder / "2", craft("{" + entry("embed", "F32", "[1]", 0, 4) + "}", "abcd"));
  status = filler.fill(2, 1, out.data());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'embed' has shape [1]"), std::string::npos) << status.text();
  status = filler.fill(2, 0, out.data());
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("'own.w'"), std::string::npos) << status.text();

  put(folder / "3", model_file());  // the step after a failure is read afresh
  EXPECT_TRUE(filler.fill(3, 1, out.data()).is_ok());
  EXPECT_EQ(out[0], 100.0f);
}

TEST(ReplayedGradients, NameFilesByEveryPlaceholder) {
  EXPECT_EQ(replay_file_of("a/{step}/{rank}-{step}{x}", 12, Rank(3)), "a/12/3-12{x}");
  EXPECT_EQ(replay_file_of("plain", 12, Rank(3)), "plain");
}

}  // namespace
}  // namespace optlease
