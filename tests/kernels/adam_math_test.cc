// The one formula and its factors against exact or double arithmetic.
#include "kernels/adam_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace optlease {
namespace {

GroupParams params_of(Rule rule, double weight_decay = 0.1) {
  return {1e-3, 0.9, 0.999, 1e-8, weight_decay, static_cast<uint32_t>(rule), 0};
}

TEST(AdamFactors, AreTheRoundedFactorsOfTheFormula) {
  for (int64_t t : {int64_t{1}, int64_t{2}, int64_t{10}, int64_t{1000}, int64_t{123456789}}) {
    const AdamFactors f = make_adam_factors(params_of(Rule::kAdamW), t, 0.5f);
    const long double power1 = std::pow(0.9L, static_cast<long double>(t));
    const long double power2 = std::pow(0.999L, static_cast<long double>(t));
    const auto near = [](float ours, long double exact) {
      EXPECT_LE(std::fabs(static_cast<long double>(ours) - exact), 0x1.001p-24L * std::fabs(exact));
    };
    near(f.minus_step_size, -1e-3L / (1 - power1));
    near(f.inverse_sqrt_bias2, 1 / std::sqrt(1 - power2));
    near(f.decay, 1 - 1e-3L * 0.1L);
    near(f.one_minus_beta1, 0.1L);
    near(f.beta2, 0.999L);
    near(f.one_minus_beta2, 0.001L);
    near(f.eps, 1e-8L);
    EXPECT_EQ(f.grad_coefficient, 0.5f);
    EXPECT_EQ(f.l2, 0.0f);
  }
}

TEST(AdamFactors, PutTheDecayWhereTheRuleHasIt) {
  const AdamFactors adam = make_adam_factors(params_of(Rule::kAdam), 3, 1.0f);
  EXPECT_EQ(adam.l2, 0.1f);
  EXPECT_EQ(adam.decay, 1.0f);
  const AdamFactors adamw = make_adam_factors(params_of(Rule::kAdamW), 3, 1.0f);
  EXPECT_EQ(adamw.l2, 0.0f);
  EXPECT_LT(adamw.decay, 1.0f);
}

TEST(AdamFactors, RulesAgreeWithoutDecay) {
  const AdamFactors adam = make_adam_factors(params_of(Rule::kAdam, 0), 3, 1.0f);
  const AdamFactors adamw = make_adam_factors(params_of(Rule::kAdamW, 0), 3, 1.0f);
  float a[3] = {0.5f, 0.1f, 0.2f}, b[3] = {0.5f, 0.1f, 0.2f};
  adam_element(a[0], a[1], a[2], -0.3f, adam);
  adam_element(b[0], b[1], b[2], -0.3f, adamw);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(bits_of(a[i]), bits_of(b[i]));
}

TEST(AdamFactorsDeathTest, RefuseBrokenParameters) {
  GroupParams broken = params_of(Rule::kAdamW);
  broken.beta1 = 1.0;
  EXPECT_DEATH((void)make_adam_factors(broken, 1, 1.0f), "");
  EXPECT_DEATH((void)make_adam_factors(params_of(Rule::kAdamW), 0, 1.0f), "update count 0");
  EXPECT_DEATH((void)make_adam_factors(params_of(Rule::kAdamW), 1, NAN), "coefficient");
}

TEST(ClipCoefficient, ShrinksOnlyWhatIsTooLong) {
  EXPECT_EQ(clip_coefficient(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_coefficient(1e9, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_coefficient(10.0, 1.0), 1.0 / (10.0 + 1e-6));
  EXPECT_EQ(clip_coefficient(0.0, 1.0), 1.0);
}

// The bounds that adam_math.h states, on inputs of every magnitude.
void expect_within_bounds(const AdamFactors& f, float main, float m, float v, float raw) {
  using Exact = long double;
  constexpr Exact kUnit = 0x1p-24L, kTiny = 0x1p-148L;
  float w1 = main, m1 = m, v1 = v;
  adam_element(w1, m1, v1, raw, f);
  const Exact scaled = static_cast<Exact>(raw) * f.grad_coefficient;
  const Exact decayed = static_cast<Exact>(f.l2) * main;
  const Exact grad = scaled + decayed, largest = std::fabs(scaled) + std::fabs(decayed);
  const Exact first = m + static_cast<Exact>(f.one_minus_beta1) * (grad - m);
  const Exact kept = static_cast<Exact>(f.beta2) * v;
  const Exact second = kept + static_cast<Exact>(f.one_minus_beta2) * grad * grad;
  EXPECT_LE(std::fabs(m1 - first), 5 * kUnit * std::fmax(std::fabs(Exact{m}), largest) + kTiny);
  EXPECT_LE(std::fabs(v1 - second),
            8 * kUnit * (kept + static_cast<Exact>(f.one_minus_beta2) * largest * largest) + kTiny);
  const Exact step = static_cast<Exact>(f.minus_step_size) * m1 /
                     (std::sqrt(Exact{v1}) * f.inverse_sqrt_bias2 + f.eps);
  const Exact updated = static_cast<Exact>(main) * f.decay + step;
  EXPECT_LE(std::fabs(w1 - updated),
            2 * kUnit * std::fabs(Exact{main}) + 5 * kUnit * std::fabs(step) + kTiny);
}

TEST(AdamElement, StaysWithinTheStatedErrorBounds) {
  std::mt19937_64 random(20261129);
  std::uniform_real_distribution<double> exponent(-44, 4), sign(-1, 1);
  const auto any = [&] {
    return static_cast<float>(std::copysign(std::pow(10.0, exponent(random)), sign(random)));
  };
  for (Rule rule : {Rule::kAdamW, Rule::kAdam}) {
    for (int i = 0; i < 200000; ++i) {
      const AdamFactors f = make_adam_factors(params_of(rule), 1 + i % 50, 0.37f);
      expect_within_bounds(f, any(), any(), std::fabs(any()), any());
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(AdamElement, FlushesNoDenormalToZero) {
  AdamFactors f = make_adam_factors(params_of(Rule::kAdamW), 1, 1.0f);
  float main = 1.0f, m = 0.0f, v = 0x1p-140f;
  adam_element(main, m, v, 0x1p-140f, f);
  EXPECT_GT(m, 0.0f);
  EXPECT_LT(m, 0x1p-126f);
  EXPECT_GT(v, 0.0f);
}

}  // namespace
}  // namespace optlease
