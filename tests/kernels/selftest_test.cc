// The self-test must be able to fail.
#include "kernels/selftest.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/adam_math.h"
#include "kernels/formats.h"

namespace optlease {
namespace {

// One tensor, one step, with a reference made by the formula in double.
struct SmallCase {
  std::vector<float> init{0.5f, -1.25f, 3.0f}, grad{0.1f, -0.2f, 0.0f};
  std::vector<float> param, exp_avg, exp_avg_sq;
  AdamCase adam_case;

  SmallCase() {
    for (size_t i = 0; i < init.size(); ++i) {
      const double g = grad[i], m = 0.1 * g, v = 0.001 * g * g;
      exp_avg.push_back(static_cast<float>(m));
      exp_avg_sq.push_back(static_cast<float>(v));
      const double step = 1e-3 * (m / 0.1) / (std::sqrt(v / 0.001) + 1e-8);
      param.push_back(static_cast<float>(init[i] * (1 - 1e-3 * 0.1) - step));
    }
    adam_case.file = "small";
    adam_case.params = {1e-3, 0.9, 0.999, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
    adam_case.lrs = {1e-3};
    adam_case.grad_norms = {std::hypot(0.1f, -0.2f)};
    AdamCaseTensor tensor;
    tensor.name = "w";
    tensor.init = init;
    tensor.grads = {grad.data()};
    tensor.expected[1] = {param, exp_avg, exp_avg_sq, {}};
    adam_case.tensors.push_back(tensor);
  }
};

TEST(Selftest, PassesARightTrajectory) {
  const SmallCase small;
  const SelftestResult result = run_adam_case(small.adam_case);
  EXPECT_TRUE(result.passed) << result.detail;
  EXPECT_EQ(result.compared, 1u + 3 * 4);
  EXPECT_LE(result.worst_ratio, 1.0);
}

TEST(Selftest, FailsAWrongParameterMomentOrNorm) {
  for (int wrong = 0; wrong < 4; ++wrong) {
    SmallCase small;
    if (wrong == 0) small.param[1] *= 1.000002f;
    if (wrong == 1) small.exp_avg[0] *= 1.00001f;
    if (wrong == 2) small.exp_avg_sq[1] = NAN;
    if (wrong == 3) small.adam_case.grad_norms[0] *= 1.00001;
    const SelftestResult result = run_adam_case(small.adam_case);
    EXPECT_FALSE(result.passed) << wrong;
    EXPECT_GT(result.worst_ratio, wrong == 2 ? 0.0 : 1.0);
    EXPECT_NE(result.detail.find("tolerance"), std::string::npos) << result.detail;
  }
}

TEST(Selftest, RefusesACaseThatDoesNotFitTogether) {
  SmallCase small;
  small.adam_case.lrs.push_back(1e-3);
  EXPECT_FALSE(run_adam_case(small.adam_case).passed);
  EXPECT_FALSE(run_adam_case(AdamCase{}).passed) << "an empty case proves nothing";
}

TEST(Selftest, FailsOneWrongByteOfACast) {
  const std::vector<float> x = {1.0f, 2.5f};
  std::vector<uint16_t> bf16 = {bf16_from_f32(1.0f), bf16_from_f32(2.5f)};
  CastsCase casts;
  casts.file = "casts";
  casts.x = x;
  casts.bf16 = bf16;
  EXPECT_TRUE(check_casts(casts).passed);
  bf16[1] ^= 1;
  const SelftestResult result = check_casts(casts);
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.detail.find("BF16 of x[1]"), std::string::npos) << result.detail;
  EXPECT_FALSE(check_casts(CastsCase{}).passed);
}

}  // namespace
}  // namespace optlease
