#include "kernels/adam_cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/checksum.h"
#include "kernels/cpu_isa.h"
#include "kernels/formats.h"
#include "kernels/random.h"
#include "kernels/reduce_cpu.h"
#include "kernels/selftest.h"
#include "shm/contract/geometry.h"
#include "shm/contract/remainder.h"

namespace optlease {
namespace {

GroupParams params_of(Rule rule) {
  return {1e-3, 0.9, 0.999, 1e-8, 0.1, static_cast<uint32_t>(rule), 0};
}

// A chunk as it lies in a slot, with its padding filled, its gradients and its parameters.
struct Slot {
  explicit Slot(uint64_t elements, DType grad_dtype = DType::kF32, DType param_dtype = DType::kBF16)
      : words(chunk_bytes(elements) / 4, 0xdeadbeefu),
        grad(elements * bytes_of(grad_dtype)),
        param(elements * bytes_of(param_dtype), 0xee) {
    const uint64_t stride = array_stride_bytes(elements) / 4;
    float* main = reinterpret_cast<float*>(words.data());
    chunk = {main,       main + stride, main + 2 * stride, grad.data(),
             grad_dtype, param.data(),  param_dtype,       elements};
    fill_normal(chunk.main, 11, 0, 0, elements, 0.02f);
    std::fill_n(chunk.exp_avg, elements, 0.0f);
    std::fill_n(chunk.exp_avg_sq, elements, 0.0f);
  }
  void next_gradient(int64_t step) {
    fill_synthetic_gradient(grad.data(), chunk.grad_dtype, 7, step, 0, 0, 0, chunk.elements);
  }
  std::vector<uint32_t> words;
  std::vector<uint8_t> grad;
  std::vector<uint8_t> param;
  AdamChunk chunk;
};

TEST(AdamCpu, EveryInstructionSetGivesTheSameBitsForEveryPairOfTypes) {
  const SelftestResult result = check_instruction_sets(1 << 20, 20261129);
  EXPECT_TRUE(result.passed) << result.detail;
  EXPECT_EQ(result.compared > 0, is_supported(CpuIsa::kV3)) << result.detail;
  std::printf("%s\n", result.detail.c_str());
}

TEST(AdamCpu, AnySplitOfAChunkGivesTheSameBitsAndSums) {
  const uint64_t elements = 20011;
  for (DType grad : {DType::kF32, DType::kBF16, DType::kF16}) {
    Slot whole(elements, grad), split(elements, grad);
    std::mt19937 random(1);
    for (int64_t step = 1; step <= 4; ++step) {
      whole.next_gradient(step);
      split.next_gradient(step);
      const AdamFactors factors = make_adam_factors(params_of(Rule::kAdamW), step, 0.5f);
      const ChunkSums expected = adam_update(whole.chunk, factors);
      ChunkSums sums;
      for (uint64_t at = 0; at < elements;) {
        const uint64_t end = std::min<uint64_t>(at + 1 + random() % 3000, elements);
        const ChunkSums part = adam_update_range(split.chunk, factors, at, end);
        sums.read += part.read;
        sums.written += part.written;
        sums.grad += part.grad;
        at = end;
      }
      EXPECT_EQ(sums.read, expected.read);
      EXPECT_EQ(sums.written, expected.written);
      EXPECT_EQ(sums.grad, expected.grad);
    }
    EXPECT_TRUE(whole.words == split.words);
    EXPECT_TRUE(whole.param == split.param);
  }
}

TEST(AdamCpu, SumsAreTheSlotsChecksumsBeforeAndAfter) {
  Slot slot(5003);
  for (int64_t step = 1; step <= 3; ++step) {
    slot.next_gradient(step);
    const uint64_t before = checksum_chunk(slot.words.data(), 5003);
    const ChunkSums sums =
        adam_update(slot.chunk, make_adam_factors(params_of(Rule::kAdam), step, 1.0f));
    EXPECT_EQ(sums.read, before);
    EXPECT_EQ(sums.written, checksum_chunk(slot.words.data(), 5003));
    EXPECT_NE(sums.written, before);
  }
}

// What an update read of its gradients shows, bit by bit; of those that are FP32.
TEST(AdamCpu, SumsTheGradientsThatItUsedByTheirPlaces) {
  const AdamFactors factors = make_adam_factors(params_of(Rule::kAdamW), 1, 0.5f);
  for (const uint64_t elements : {1u, 7u, 15u, 16u, 1023u, 1024u, 1025u, 5003u}) {
    for (const uint64_t first : {uint64_t{0}, uint64_t{77}, uint64_t{1} << 40}) {
      Slot slot(elements);
      slot.next_gradient(1);
      slot.chunk.grad_first_word = first;
      const uint64_t expected = checksum_words(slot.grad.data(), elements, first);
      EXPECT_EQ(adam_update(slot.chunk, factors).grad, expected) << elements << " at " << first;
      slot.grad[elements * 4 - 1] ^= 0x80;
      EXPECT_NE(adam_update(slot.chunk, factors).grad, expected) << elements << " at " << first;
    }
  }
  for (DType grad : {DType::kBF16, DType::kF16}) {
    Slot slot(2000, grad);
    slot.next_gradient(1);
    EXPECT_EQ(adam_update(slot.chunk, factors).grad, 0u) << name_of(grad);
  }
}

TEST(AdamCpu, TouchesNoByteBetweenOrBehindTheArrays) {
  Slot slot(1003);
  slot.next_gradient(1);
  (void)adam_update(slot.chunk, make_adam_factors(params_of(Rule::kAdamW), 1, 1.0f));
  const uint64_t stride = array_stride_bytes(1003) / 4;
  for (uint64_t a = 0; a < kAdamArrayCount; ++a) {
    for (uint64_t i = 1003; i < stride; ++i) EXPECT_EQ(slot.words[a * stride + i], 0xdeadbeefu);
  }
}

// A change of these numbers is a change of the results of every job: it needs a reason.
TEST(AdamCpu, KeepsItsBitsAcrossVersionsAndMachines) {
  Slot slot(10007, DType::kBF16);
  ChunkSums sums;
  for (int64_t step = 1; step <= 5; ++step) {
    slot.next_gradient(step);
    sums = adam_update(slot.chunk, make_adam_factors(params_of(Rule::kAdamW), step, 0.25f));
  }
  EXPECT_EQ(sums.written, 1235675151006987228ull);
}

TEST(AdamCpu, WritesParametersInEachTypeAndNoneWithoutABuffer) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Slot slot(3001, DType::kF32, dtype), without(3001, DType::kF32, dtype);
    slot.next_gradient(1);
    without.next_gradient(1);
    without.chunk.param = nullptr;
    const AdamFactors factors = make_adam_factors(params_of(Rule::kAdamW), 1, 1.0f);
    const ChunkSums sums = adam_update(slot.chunk, factors);
    EXPECT_EQ(adam_update(without.chunk, factors).written, sums.written);
    std::vector<uint8_t> expected(slot.param.size());
    convert_from_f32(expected.data(), slot.chunk.main, dtype, 3001);
    EXPECT_TRUE(slot.param == expected) << name_of(dtype);
    EXPECT_TRUE(std::all_of(without.param.begin(), without.param.end(),
                            [](uint8_t byte) { return byte == 0xee; }));
  }
}

TEST(AdamCpu, RepublishWritesTheSameParametersAndChangesNoState) {
  Slot slot(4099);
  slot.next_gradient(1);
  const ChunkSums sums =
      adam_update(slot.chunk, make_adam_factors(params_of(Rule::kAdamW), 1, 1.0f));
  const std::vector<uint8_t> written = slot.param;
  const std::vector<uint32_t> state = slot.words;
  std::fill(slot.param.begin(), slot.param.end(), uint8_t{0});
  EXPECT_EQ(republish(slot.chunk), sums.written);
  EXPECT_TRUE(slot.param == written);
  EXPECT_TRUE(slot.words == state);
  std::fill(slot.param.begin(), slot.param.end(), uint8_t{0});
  EXPECT_EQ(republish_range(slot.chunk, 0, 1500) + republish_range(slot.chunk, 1500, 4099),
            sums.written);
  EXPECT_TRUE(slot.param == written);
}

// Main weights of any bits, NaNs as they are stored.
void fill_any_main(Slot* slot, uint32_t seed) {
  std::mt19937 random(seed);
  for (uint64_t i = 0; i < slot->chunk.elements; ++i) {
    slot->chunk.main[i] = one_nan(float_of_bits(random()));
  }
}

TEST(AdamCpu, MainWeightsInHalvesGiveTheBitsAndSumsOfFp32) {
  for (DType grad : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (uint64_t elements : {1u, 63u, 1024u, 5003u}) {
      Slot whole(elements, grad), halves(elements, grad);
      if (elements > 1000) fill_any_main(&whole, 5);
      std::vector<uint16_t> rounded, remainder;
      for (uint64_t i = 0; i < elements; ++i) {
        rounded.push_back(rounded_half(bits_of(whole.chunk.main[i])));
        remainder.push_back(remainder_half(bits_of(whole.chunk.main[i])));
      }
      halves.chunk.main = nullptr;
      halves.chunk.main_rounded = rounded.data();
      halves.chunk.main_remainder = remainder.data();
      for (int64_t step = 1; step <= 3; ++step) {
        whole.next_gradient(step);
        halves.next_gradient(step);
        const AdamFactors factors = make_adam_factors(params_of(Rule::kAdam), step, 0.3f);
        const ChunkSums expected = adam_update(whole.chunk, factors);
        const ChunkSums sums = adam_update(halves.chunk, factors);
        ASSERT_EQ(sums.read, expected.read);
        ASSERT_EQ(sums.written, expected.written);
        ASSERT_EQ(sums.grad, expected.grad);
      }
      const std::vector<uint8_t> published = halves.param;
      for (uint64_t i = 0; i < elements; ++i) {
        ASSERT_EQ(joined_bits(rounded[i], remainder[i]), bits_of(whole.chunk.main[i])) << i;
        uint16_t param = 0;
        std::memcpy(&param, published.data() + 2 * i, sizeof param);
        ASSERT_EQ(param, rounded[i]) << i;
      }
      std::fill(halves.param.begin(), halves.param.end(), uint8_t{0});
      EXPECT_EQ(republish(halves.chunk), republish(whole.chunk));
      EXPECT_TRUE(halves.param == published);
    }
  }
}

TEST(AdamCpu, RangesOfAChunkThatLieApartAddUpToTheChunk) {
  const uint64_t elements = 5003, cut = 1984;
  Slot whole(elements), apart(elements);
  whole.next_gradient(1);
  apart.next_gradient(1);
  const AdamFactors factors = make_adam_factors(params_of(Rule::kAdamW), 1, 1.0f);
  const ChunkSums expected = adam_update(whole.chunk, factors);
  // The first main weights are somewhere else; the other arrays stay.
  std::vector<float> elsewhere(apart.chunk.main, apart.chunk.main + cut);
  AdamChunk first = apart.chunk, second = apart.chunk;
  first.main = elsewhere.data();
  first.elements = cut;
  first.chunk_elements = second.chunk_elements = elements;
  second.main += cut;
  second.exp_avg += cut;
  second.exp_avg_sq += cut;
  second.grad = static_cast<const char*>(second.grad) + cut * 4;
  second.param = static_cast<char*>(second.param) + cut * 2;
  second.elements = elements - cut;
  second.first = second.grad_first_word = cut;
  const ChunkSums a = adam_update(first, factors), b = adam_update(second, factors);
  EXPECT_EQ(a.read + b.read, expected.read);
  EXPECT_EQ(a.written + b.written, expected.written);
  EXPECT_EQ(a.grad + b.grad, expected.grad);
  std::copy(elsewhere.begin(), elsewhere.end(), apart.chunk.main);
  EXPECT_TRUE(apart.words == whole.words);
  EXPECT_TRUE(apart.param == whole.param);
}

TEST(AdamCpu, AnEmptyChunkDoesNothing) {
  AdamChunk chunk;
  const ChunkSums sums = adam_update(chunk, make_adam_factors(params_of(Rule::kAdamW), 1, 1.0f));
  EXPECT_EQ(sums.read, 0u);
  EXPECT_EQ(sums.written, 0u);
}

TEST(AdamCpuDeathTest, RefusesARangePastTheEndAndAMissingGradient) {
  Slot slot(100);
  const AdamFactors factors = make_adam_factors(params_of(Rule::kAdamW), 1, 1.0f);
  EXPECT_DEATH((void)adam_update_range(slot.chunk, factors, 50, 101), "of 100 elements");
  slot.chunk.grad = nullptr;
  EXPECT_DEATH((void)adam_update(slot.chunk, factors), "no gradient");
}

}  // namespace
}  // namespace optlease
