// The kernels against trajectories and conversions that PyTorch computed (tests/data/golden).
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "actors/tensor_files/safetensors.h"
#include "kernels/selftest.h"

namespace optlease {
namespace {

// An open file and the bytes of the tensors that were asked for.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name)
      : reader_(open(OPTLEASE_SOURCE_DIR "/tests/data/golden/" + name + ".safetensors")),
        about(nlohmann::json::parse(reader_.metadata().at("golden"))) {}

  template <class T>
  std::span<const T> get(const std::string& name) {
    const FileTensor* tensor = reader_.find(name);
    if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
    std::vector<char>& bytes = held_.emplace_back(tensor->bytes());
    const Status status = reader_.read(*tensor, 0, tensor->bytes(), bytes.data());
    if (!status.is_ok()) throw std::runtime_error(status.text());
    if (tensor->bytes() != tensor->elements * sizeof(T)) throw std::runtime_error(name + ": size");
    return {reinterpret_cast<const T*>(bytes.data()), tensor->elements};
  }
  DType dtype_of(const std::string& name) const {
    DType dtype{};
    if (!parse_dtype(reader_.find(name)->dtype, &dtype)) throw std::runtime_error(name + ": dtype");
    return dtype;
  }
  const void* raw(const std::string& name) {
    return dtype_of(name) == DType::kF32 ? static_cast<const void*>(get<float>(name).data())
                                         : get<uint16_t>(name).data();
  }

 private:
  static SafetensorsReader open(const std::string& path) {
    Result<SafetensorsReader> reader = SafetensorsReader::open(path);
    if (!reader.is_ok()) throw std::runtime_error(reader.status().text());
    return std::move(reader).value();
  }
  SafetensorsReader reader_;
  std::deque<std::vector<char>> held_;

 public:
  const nlohmann::json about;
};

AdamCaseTensor tensor_of(GoldenFile& file, const std::string& name) {
  AdamCaseTensor tensor;
  tensor.name = name;
  tensor.init = file.get<float>(name + ".init");
  tensor.grad_dtype = file.dtype_of(name + ".grad.1");
  for (size_t step = 1; step <= file.about["lrs"].size(); ++step) {
    tensor.grads.push_back(file.raw(name + ".grad." + std::to_string(step)));
  }
  for (int64_t step : file.about["kept_steps"]) {
    const std::string at = "." + std::to_string(step);
    tensor.expected[step] = {
        file.get<float>(name + ".param" + at), file.get<float>(name + ".exp_avg" + at),
        file.get<float>(name + ".exp_avg_sq" + at), file.get<uint16_t>(name + ".param_bf16" + at)};
  }
  return tensor;
}

AdamCase case_of(GoldenFile& file, const std::string& name) {
  AdamCase adam_case;
  adam_case.file = name;
  const auto& about = file.about;
  const Rule rule = about["optimizer"] == "AdamW" ? Rule::kAdamW : Rule::kAdam;
  adam_case.params = {about["lrs"][0],
                      about["betas"][0],
                      about["betas"][1],
                      about["eps"],
                      about["weight_decay"],
                      static_cast<uint32_t>(rule),
                      0};
  adam_case.lrs = about["lrs"].get<std::vector<double>>();
  if (!about["clip_max_norm"].is_null()) adam_case.max_norm = about["clip_max_norm"];
  adam_case.grad_norms = about["grad_norms"].get<std::vector<double>>();
  for (const std::string name_of_tensor : about["tensors"]) {
    adam_case.tensors.push_back(tensor_of(file, name_of_tensor));
  }
  return adam_case;
}

class GoldenAdam : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenAdam, TrajectoryIsWithinTheStatedTolerances) {
  GoldenFile file(GetParam());
  const AdamCase adam_case = case_of(file, GetParam());
  const SelftestResult result = run_adam_case(adam_case);
  EXPECT_TRUE(result.passed) << result.detail;
  EXPECT_GT(result.compared, 500u);
  std::printf("%s: %llu values, worst error %.2f of the tolerance\n", GetParam(),
              static_cast<unsigned long long>(result.compared), result.worst_ratio);
}

TEST_P(GoldenAdam, AnotherHyperParameterFails) {
  GoldenFile file(GetParam());
  AdamCase adam_case = case_of(file, GetParam());
  adam_case.params.beta2 *= 0.9999;
  EXPECT_FALSE(run_adam_case(adam_case).passed);
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenAdam,
                         ::testing::Values("adamw_fp32", "adam_l2_fp32", "adamw_schedule",
                                           "adamw_bf16_grads", "adamw_clip",
                                           "adamw_zero_wd_big_eps"),
                         [](const auto& file) { return std::string(file.param); });

TEST(GoldenCasts, EveryByteIsEqual) {
  GoldenFile file("casts");
  CastsCase casts{"casts",
                  file.get<float>("x"),
                  file.get<uint16_t>("bf16"),
                  file.get<uint16_t>("fp16"),
                  file.get<uint8_t>("e4m3"),
                  file.get<uint8_t>("e5m2")};
  const SelftestResult result = check_casts(casts);
  EXPECT_TRUE(result.passed) << result.detail;
  EXPECT_EQ(result.compared, 4 * casts.x.size());
}

}  // namespace
}  // namespace optlease
