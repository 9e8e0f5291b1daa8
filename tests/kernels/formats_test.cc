// Conversions against a brute-force reference: the nearest value of the format's whole table.
#include "kernels/formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu_loops.h"
#include "kernels/reduce_cpu.h"

namespace optlease {
namespace {

struct SmallFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
  uint32_t magnitude_bits() const { return static_cast<uint32_t>(exponent_bits + mantissa_bits); }
  uint32_t sign() const { return 1u << magnitude_bits(); }
};
constexpr SmallFormat kBf16{8, 7, true}, kF16{5, 10, true}, kE4m3{4, 3, false}, kE5m2{5, 2, true};

// The value of magnitude `code` as if every exponent were an ordinary one.
double value_of(const SmallFormat& f, uint32_t code) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> f.mantissa_bits);
  const double mantissa = code & ((1u << f.mantissa_bits) - 1);
  const double unit = std::ldexp(1.0, 1 - bias - f.mantissa_bits);
  if (exponent == 0) return mantissa * unit;
  return std::ldexp((1 << f.mantissa_bits) + mantissa, exponent - bias - f.mantissa_bits);
}

// Codes below this are finite; it itself stands for what lies beyond.
uint32_t first_beyond(const SmallFormat& f) {
  const uint32_t all = f.sign() - 1;
  return f.has_infinity ? all & ~((1u << f.mantissa_bits) - 1) : all;
}

uint32_t nearest(const SmallFormat& f, float value) {
  const uint32_t sign = std::signbit(value) ? f.sign() : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint32_t beyond = first_beyond(f);
  uint32_t low = 0, high = beyond;
  if (magnitude >= value_of(f, beyond)) return sign | beyond;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (value_of(f, middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of(f, low), above = value_of(f, high) - magnitude;
  if (below == above) return sign | ((low & 1) == 0 ? low : high);
  return sign | (below < above ? low : high);
}

std::vector<float> samples(const SmallFormat& f) {
  std::vector<float> values;
  for (uint32_t code = 0; code <= first_beyond(f); ++code) {
    const double here = value_of(f, code), next = value_of(f, code + 1);
    for (double exact : {here, (here + next) / 2}) {  // each value, and each tie
      const float value = static_cast<float>(exact);
      for (float v : {value, std::nextafter(value, 0.0f),
                      std::nextafter(value, std::numeric_limits<float>::infinity())}) {
        if (!std::isfinite(v)) continue;
        values.push_back(v);
        values.push_back(-v);
      }
    }
  }
  std::mt19937 random(20261129);
  for (int i = 0; i < 300000; ++i) {
    const float v = float_of_bits(static_cast<uint32_t>(random()));
    if (std::isfinite(v)) values.push_back(v);
  }
  return values;
}

template <class Convert>
void expect_nearest(const SmallFormat& f, Convert convert) {
  uint64_t wrong = 0;
  for (float v : samples(f)) {
    const uint32_t ours = convert(v), reference = nearest(f, v);
    if (ours == reference) continue;
    if (++wrong < 5) ADD_FAILURE() << v << ": " << ours << " instead of " << reference;
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(Formats, RoundToTheNearestBf16TiesToEven) { expect_nearest(kBf16, bf16_from_f32); }
TEST(Formats, RoundToTheNearestF16TiesToEven) { expect_nearest(kF16, f16_from_f32); }
TEST(Formats, RoundToTheNearestE4m3TiesToEven) { expect_nearest(kE4m3, e4m3_from_f32); }
TEST(Formats, RoundToTheNearestE5m2TiesToEven) { expect_nearest(kE5m2, e5m2_from_f32); }

TEST(Formats, EveryBf16PatternSurvivesTheRoundTrip) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = f32_from_bf16(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(value)))) << code;
    } else {
      EXPECT_EQ(bf16_from_f32(value), code);
    }
    EXPECT_EQ(std::signbit(value), (code & 0x8000) != 0) << code;
  }
}

TEST(Formats, EveryF16PatternSurvivesTheRoundTripAndHasItsValue) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = f32_from_f16(static_cast<uint16_t>(code));
    const uint32_t magnitude = code & 0x7fff;
    if (magnitude > 0x7c00) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f32(value)))) << code;
      continue;
    }
    EXPECT_EQ(f16_from_f32(value), code);
    const double exact =
        magnitude == 0x7c00 ? std::numeric_limits<double>::infinity() : value_of(kF16, magnitude);
    EXPECT_EQ(std::fabs(static_cast<double>(value)), exact) << code;
    EXPECT_EQ(std::signbit(value), (code & 0x8000) != 0) << code;
  }
}

TEST(Formats, EveryKindOfNanStaysNan) {
  for (uint32_t mantissa : {1u, 0x1fffu, 0x2000u, 0x400000u, 0x7fffffu}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const float nan = float_of_bits(sign | 0x7f800000u | mantissa);
      EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(nan)))) << mantissa;
      EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f32(nan)))) << mantissa;
      EXPECT_EQ(e4m3_from_f32(nan) & 0x7f, 0x7f) << mantissa;
      EXPECT_GT(e5m2_from_f32(nan) & 0x7f, 0x7c) << mantissa;
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(bf16_from_f32(-infinity), 0xff80);
  EXPECT_EQ(f16_from_f32(infinity), 0x7c00);
  EXPECT_EQ(e4m3_from_f32(infinity), 0x7f);
  EXPECT_EQ(e5m2_from_f32(-infinity), 0xfc);
}

// The vector loops of every instruction set against the scalar functions above.
TEST(Formats, LoopsOfEveryInstructionSetConvertLikeOneElement) {
  std::vector<float> values = samples(kF16);
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffc00001u}) {
    values.push_back(float_of_bits(bits));
  }
  const size_t n = values.size();
  std::vector<uint16_t> bf16(n), f16(n), out(n);
  std::transform(values.begin(), values.end(), bf16.begin(),
                 [](float value) { return bf16_from_f32(value); });
  std::transform(values.begin(), values.end(), f16.begin(),
                 [](float value) { return f16_from_f32(value); });
  std::vector<float> back(n);
  for (CpuIsa isa : {CpuIsa::kGeneric, CpuIsa::kV3, CpuIsa::kV4}) {
    const CpuLoops* loops = cpu_loops_of(isa);
    if (loops == nullptr) continue;
    SCOPED_TRACE(name_of(isa));
    loops->from_f32(out.data(), values.data(), DType::kBF16, n);
    EXPECT_TRUE(out == bf16);
    loops->to_f32(back.data(), out.data(), DType::kBF16, n);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(bits_of(back[i]), bits_of(f32_from_bf16(bf16[i])));
    loops->from_f32(out.data(), values.data(), DType::kF16, n);
    EXPECT_TRUE(out == f16);
    loops->to_f32(back.data(), out.data(), DType::kF16, n);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(bits_of(back[i]), bits_of(f32_from_f16(f16[i])));
    loops->from_f32(back.data(), values.data(), DType::kF32, n);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(bits_of(back[i]), bits_of(values[i]));
  }
}

}  // namespace
}  // namespace optlease
