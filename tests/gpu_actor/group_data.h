// Gradients and parameters whose sums depend on the order of adding, and the reference that one
// process computes by itself: what collectives tests compare with, bit for bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "actors/gpu_actor/collectives.h"
#include "kernels/formats.h"
#include "kernels/random.h"

namespace optlease {

// Values of different magnitude: (a + b) + c differs from a + (b + c) for about one element in six.
inline float test_gradient(uint32_t rank, Step step, uint64_t element) {
  const uint64_t bits = mix64(mix64(element * 1024 + rank) + static_cast<uint64_t>(step));
  const auto mantissa = static_cast<int32_t>(bits & 0xffffff) - 0x800000;
  const auto exponent = static_cast<uint32_t>(bits >> 61);  // 2^-28 .. 2^-21 times 24 bits
  return static_cast<float>(mantissa) * float_of_bits((127u - 28u + exponent) << 23);
}

inline std::vector<std::byte> encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * bytes_of(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half =
        dtype == DType::kBF16 ? bf16_from_f32(values[i]) : f16_from_f32(values[i]);
    if (dtype == DType::kF32)
      std::memcpy(&bytes[i * 4], &values[i], 4);
    else
      std::memcpy(&bytes[i * 2], &half, 2);
  }
  return bytes;
}

inline float decode(const std::vector<std::byte>& bytes, DType dtype, uint64_t index) {
  float value = 0;
  uint16_t half = 0;
  if (dtype == DType::kF32) {
    std::memcpy(&value, &bytes[index * 4], 4);
    return value;
  }
  std::memcpy(&half, &bytes[index * 2], 2);
  return dtype == DType::kBF16 ? f32_from_bf16(half) : f32_from_f16(half);
}

inline std::vector<std::byte> gradient_of(uint32_t rank, Step step, uint64_t elements,
                                          DType dtype) {
  std::vector<float> values(elements);
  for (uint64_t i = 0; i < elements; ++i) values[i] = test_gradient(rank, step, i);
  return encode(values, dtype);
}

// Member order, one rounding an addition.
inline std::vector<float> reference_sum(const ShardMap& map, Step step, uint64_t elements,
                                        DType dtype, ElementRange range) {
  std::vector<float> sum(range.size());
  for (size_t member = 0; member < map.members.size(); ++member) {
    const auto grads = gradient_of(map.members[member].value, step, elements, dtype);
    for (uint64_t i = 0; i < range.size(); ++i) {
      const float term = decode(grads, dtype, range.begin + i);
      sum[i] = member == 0 ? term : sum[i] + term;
    }
  }
  return sum;
}

inline uint64_t elements_of(const ShardMap& map) { return map.ranges.back().end; }

// Empty, or what is wrong with the sum that `rank` was given.
inline std::string reduce_and_compare(Collectives* group, const ShardMap& map, Step step,
                                      uint32_t rank, std::vector<uint8_t> needs, DType dtype) {
  const uint64_t elements = elements_of(map);
  const auto grads = gradient_of(rank, step, elements, dtype);
  uint32_t me = 0;
  while (me < map.members.size() && map.members[me].value != rank) ++me;
  const bool is_member = me < map.members.size();
  const ElementRange mine = is_member ? map.ranges[me] : ElementRange{};
  std::vector<float> out(mine.size(), 123.25f);
  const ReduceScatterCall call{{step, 0}, &map, needs, dtype, grads.data(), out.data()};
  if (const Status status = group->reduce_scatter(call); !status) return status.text();
  if (grads != gradient_of(rank, step, elements, dtype)) return "the gradient was written to";
  const bool in_need = is_member && needs[me];
  const std::vector<float> expected = in_need ? reference_sum(map, step, elements, dtype, mine)
                                              : std::vector<float>(mine.size(), 123.25f);
  // memcmp takes no null pointers, which an empty shard has.
  if (!out.empty() && std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) != 0)
    return "the sum differs from the reference";
  return "";
}

// Each rank's own shard holds its values, everything else -1; afterwards those in need have all.
inline std::string gather_and_compare(Collectives* group, const ShardMap& map, Step step,
                                      uint32_t rank, std::vector<uint8_t> needs, DType dtype) {
  const uint64_t elements = elements_of(map);
  std::vector<float> before(elements, -1.0f);
  std::vector<float> after(elements, -1.0f);
  bool in_need = false;
  for (size_t member = 0; member < map.members.size(); ++member)
    if (map.members[member].value == rank) in_need = needs[member];
  for (size_t member = 0; member < map.members.size(); ++member) {
    const uint32_t owner = map.members[member].value;
    for (uint64_t i = map.ranges[member].begin; i < map.ranges[member].end; ++i) {
      if (owner == rank) before[i] = test_gradient(owner, step, i);
      if (owner == rank || in_need) after[i] = test_gradient(owner, step, i);
    }
  }
  std::vector<std::byte> params = encode(before, dtype);
  const AllGatherCall call{{step, 0}, &map, needs, dtype, params.data()};
  if (const Status status = group->all_gather(call); !status) return status.text();
  return params == encode(after, dtype) ? "" : "the parameters differ from the reference";
}

}  // namespace optlease
