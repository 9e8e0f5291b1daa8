// Values for the update kernels: usual ones, those at the borders of the formats, any bits. And
// what came out, counted, so that a test can say that it met what it is for.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "kernels/formats.h"
#include "shm/contract/dtype.h"

namespace optlease {

inline constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
inline constexpr size_t kGuard = 64;  // bytes after each buffer that nobody may touch

enum class Values { kUsual, kSpecial, kAnyBits };

inline const char* name_of(Values values) {
  switch (values) {
    case Values::kUsual:
      return "usual values";
    case Values::kSpecial:
      return "values at borders";
    case Values::kAnyBits:
      return "any bits";
  }
  return "?";
}

// Bits of FP32 numbers: halfway between two BF16s (even and odd below), beside that, halfway above
// the largest BF16, beside that; the same of FP16, its denormals included; the largest, the
// smallest, zeros.
inline constexpr uint32_t kBorders[] = {
    0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0xbf808000, 0xbf818000, 0x7f7f8000, 0x7f7f7fff,
    0x7f7f8001, 0xff7f8000, 0x00008000, 0x00018000, 0x00007fff, 0x3f801000, 0x3f803000, 0x3f800fff,
    0x3f801001, 0xbf801000, 0x477ff000, 0x477fefff, 0x477ff001, 0xc77ff000, 0x33000000, 0x33000001,
    0x32ffffff, 0x33c00000, 0x387fe000, 0x387ff000, 0x7f7fffff, 0xff7fffff, 0x00000001, 0x80000001,
    0x007fffff, 0x00800000, 0x00000000, 0x80000000};
// Of gradients: also infinities, a quiet and two signalling NaNs, the largest, denormals.
inline constexpr uint32_t kOddFloats[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001,
                                          0xffa00000, 0x7f7fffff, 0x00000001, 0x807fffff};
inline constexpr uint16_t kOddBf16s[] = {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffa0,
                                         0x7f7f, 0xff7f, 0x0001, 0x807f, 0x8000};
inline constexpr uint16_t kOddF16s[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfd55,
                                        0x7bff, 0xfbff, 0x0001, 0x83ff, 0x8000};

namespace values_detail {

// Half precision with no exponent of ones, so that all is finite.
inline uint16_t finite_half(uint64_t bits) { return static_cast<uint16_t>(bits & 0xbbff); }

inline float usual_float(std::mt19937_64* random) {
  constexpr float kScales[] = {1.0f, 1e-3f, 0x1p-60f, 0x1p-126f, 0x1p-140f, 0.0f};
  const auto unit = static_cast<float>(static_cast<int32_t>((*random)())) * 0x1p-31f;
  return unit * kScales[(*random)() % 6];
}

inline uint32_t special_float(std::mt19937_64* random) {
  const uint64_t draw = (*random)();
  if (draw % 16 == 0) return kOddFloats[draw / 16 % std::size(kOddFloats)];
  if (draw % 2 == 0) return kBorders[draw / 16 % std::size(kBorders)];
  return bits_of(usual_float(random));
}

inline uint16_t special_half(DType dtype, std::mt19937_64* random) {
  const uint64_t draw = (*random)();
  if (draw % 8 != 0) return finite_half(draw >> 16);
  return dtype == DType::kBF16 ? kOddBf16s[draw / 8 % std::size(kOddBf16s)]
                               : kOddF16s[draw / 8 % std::size(kOddF16s)];
}

}  // namespace values_detail

inline void fill(std::vector<char>* bytes, DType dtype, Values values, std::mt19937_64* random) {
  if (values == Values::kAnyBits) {
    for (char& byte : *bytes) byte = static_cast<char>((*random)());
    return;
  }
  const bool special = values == Values::kSpecial;
  if (dtype == DType::kF32) {
    for (size_t i = 0; i + 4 <= bytes->size(); i += 4) {
      const uint32_t bits = special ? values_detail::special_float(random)
                                    : bits_of(values_detail::usual_float(random));
      std::memcpy(bytes->data() + i, &bits, 4);
    }
    return;
  }
  for (size_t i = 0; i + 2 <= bytes->size(); i += 2) {
    const uint16_t bits = special ? values_detail::special_half(dtype, random)
                                  : values_detail::finite_half((*random)());
    std::memcpy(bytes->data() + i, &bits, 2);
  }
}

struct Kinds {
  uint64_t infinities = 0;
  uint64_t nans = 0;
  uint64_t denormals = 0;  // of FP32: of the two-byte formats as well, which are read as such
  uint64_t others = 0;
  Kinds& operator+=(const Kinds& more) {
    infinities += more.infinities;
    nans += more.nans;
    denormals += more.denormals;
    others += more.others;
    return *this;
  }
};

inline Kinds kinds_in(const std::vector<char>& bytes, DType dtype) {
  Kinds kinds;
  for (size_t i = 0; i + bytes_of(dtype) <= bytes.size(); i += bytes_of(dtype)) {
    float value = 0;
    uint16_t half = 0;
    if (dtype == DType::kF32) {
      std::memcpy(&value, bytes.data() + i, 4);
    } else {
      std::memcpy(&half, bytes.data() + i, 2);
      value = dtype == DType::kBF16 ? f32_from_bf16(half) : f32_from_f16(half);
    }
    // Among FP16s those below 2^-14, in every other format those below 2^-126.
    const float smallest = dtype == DType::kF16 ? 0x1p-14f : 0x1p-126f;
    if (std::isnan(value)) {
      ++kinds.nans;
    } else if (std::isinf(value)) {
      ++kinds.infinities;
    } else if (value != 0 && std::fabs(value) < smallest) {
      ++kinds.denormals;
    } else {
      ++kinds.others;
    }
  }
  return kinds;
}

}  // namespace optlease
