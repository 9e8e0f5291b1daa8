#include "kernels/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "kernels/reduce_cpu.h"

namespace optlease {
namespace {

std::vector<float> normals(uint64_t elements, uint64_t seed) {
  std::vector<float> values(elements);
  fill_normal(values.data(), seed, 0, 0, elements, 1.0f);
  return values;
}

TEST(NormalValue, HasTheMomentsOfTheNormalDistribution) {
  const std::vector<float> values = normals(1 << 20, 1);
  double sums[5] = {};
  for (double v : values) {
    for (int k = 1; k <= 4; ++k) sums[k] += std::pow(v, k);
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sums[1] / n, 0.0, 5e-3);
  EXPECT_NEAR(sums[2] / n, 1.0, 7e-3);
  EXPECT_NEAR(sums[3] / n, 0.0, 2e-2);
  EXPECT_NEAR(sums[4] / n, 2.9, 5e-2);  // Irwin-Hall of 12: excess -0.1
}

TEST(NormalValue, DiffersFromTheNormalDistributionByTheStatedError) {
  std::vector<float> values = normals(1 << 22, 2);
  std::sort(values.begin(), values.end());
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = 0.5 * std::erfc(-static_cast<double>(values[i]) / std::sqrt(2.0));
    worst = std::fmax(worst, std::fabs(exact - static_cast<double>(i) / values.size()));
  }
  EXPECT_LE(worst, 0.0023 + 1.6 / std::sqrt(static_cast<double>(values.size())));
  EXPECT_LT(std::fabs(values.front()), 6.0f);
  EXPECT_LT(values.back(), 6.0f);
}

TEST(NormalValue, DependsOnSeedSpaceAndElementOnly) {
  std::vector<float> whole(1000), part(300);
  fill_normal(whole.data(), 9, 2, 500, 1000, 0.02f);
  fill_normal(part.data(), 9, 2, 900, 300, 0.02f);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 400));
  EXPECT_EQ(whole[0], normal_value(9, 2, 500) * 0.02f);
  EXPECT_NE(normal_value(9, 2, 500), normal_value(9, 3, 500));
  EXPECT_NE(normal_value(9, 2, 500), normal_value(10, 2, 500));
}

TEST(SyntheticGradient, IsFiniteCentredAndOfManyMagnitudes) {
  double sum = 0, sum_squares = 0;
  int exponent_min = 1000, exponent_max = -1000;
  const int n = 1 << 20;
  for (int i = 0; i < n; ++i) {
    const float g = synthetic_gradient(3, 1, 0, 0, static_cast<uint64_t>(i));
    ASSERT_LE(std::fabs(g), 0x1p-5f);
    sum += g;
    sum_squares += static_cast<double>(g) * g;
    if (g == 0) continue;
    exponent_min = std::min(exponent_min, std::ilogb(g));
    exponent_max = std::max(exponent_max, std::ilogb(g));
  }
  EXPECT_LE(std::fabs(sum), 5 * std::sqrt(sum_squares));
  EXPECT_GE(exponent_max - exponent_min, 12);
}

TEST(SyntheticGradient, DiffersByStepRankSpaceSeedAndElement) {
  std::set<uint64_t> keys = {
      gradient_key(1, 1, 0, 0), gradient_key(2, 1, 0, 0), gradient_key(1, 2, 0, 0),
      gradient_key(1, 1, 1, 0), gradient_key(1, 1, 0, 1), gradient_key(1, 0, 1, 0),
      gradient_key(1, 0, 0, 1), normal_key(1, 0),         normal_key(1, 1)};
  EXPECT_EQ(keys.size(), 9u);
  std::set<uint64_t> bits;
  for (uint64_t element = 0; element < 10000; ++element) {
    bits.insert(random_bits(gradient_key(1, 1, 0, 0), element));
  }
  EXPECT_EQ(bits.size(), 10000u);
}

TEST(SyntheticGradient, FillsAnyRangeInAnyType) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<uint8_t> bytes(2500 * bytes_of(dtype)), expected(bytes.size());
    fill_synthetic_gradient(bytes.data(), dtype, 4, 7, 1, 2, 12345, 2500);
    std::vector<float> values(2500);
    for (uint64_t i = 0; i < 2500; ++i) values[i] = synthetic_gradient(4, 7, 1, 2, 12345 + i);
    convert_from_f32(expected.data(), values.data(), dtype, 2500);
    EXPECT_TRUE(bytes == expected) << name_of(dtype);
  }
}

// Seeded jobs are reproducible across versions only while these hold.
TEST(Random, KeepsItsValuesAcrossVersions) {
  EXPECT_EQ(mix64(1), 0x5692161d100b05e5ull);
  EXPECT_EQ(bits_of(normal_value(1, 0, 0)), 1048904704u);
  EXPECT_EQ(bits_of(synthetic_gradient(1, 1, 0, 0, 0)), 3124307456u);
}

}  // namespace
}  // namespace optlease
