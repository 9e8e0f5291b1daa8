#include "kernels/reduce_cpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/checksum.h"
#include "kernels/cpu_loops.h"
#include "kernels/formats.h"
#include "kernels/random.h"

namespace optlease {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr CpuIsa kIsas[] = {CpuIsa::kGeneric, CpuIsa::kV3, CpuIsa::kV4};

std::vector<float> gradients(uint64_t elements, uint32_t rank) {
  std::vector<float> grad(elements);
  fill_synthetic_gradient(grad.data(), DType::kF32, 5, 1, rank, 0, 0, elements);
  return grad;
}

TEST(SumShards, AddsInInputOrderRoundingEachSum) {
  const uint64_t n = 5003;
  for (DType dtype : kDTypes) {
    std::vector<std::vector<uint8_t>> inputs;
    std::vector<const void*> pointers;
    std::vector<float> expected(n);
    for (uint32_t rank = 0; rank < 5; ++rank) {
      inputs.emplace_back(n * bytes_of(dtype));
      convert_from_f32(inputs.back().data(), gradients(n, rank).data(), dtype, n);
      std::vector<float> term(n);
      convert_to_f32(term.data(), inputs.back().data(), dtype, n);
      for (uint64_t i = 0; i < n; ++i) expected[i] = rank == 0 ? term[i] : expected[i] + term[i];
    }
    for (const auto& input : inputs) pointers.push_back(input.data());
    for (CpuIsa isa : kIsas) {
      const CpuLoops* loops = cpu_loops_of(isa);
      if (loops == nullptr) continue;
      std::vector<float> out(n, 99.0f);
      loops->sum_shards(out.data(), pointers.data(), 5, dtype, n);
      for (uint64_t i = 0; i < n; ++i) {
        ASSERT_EQ(bits_of(out[i]), bits_of(expected[i])) << name_of(dtype) << name_of(isa) << i;
      }
    }
  }
}

TEST(SumShards, OrderMattersAndIsKept) {
  const float big = 1e8f, small = 1.0f, minus = -1e8f;
  const void* inputs[3] = {&big, &small, &minus};
  float out = 7;
  sum_shards(&out, inputs, 3, DType::kF32, 1);
  EXPECT_EQ(out, 0.0f);
  const void* swapped[3] = {&big, &minus, &small};
  sum_shards(&out, swapped, 3, DType::kF32, 1);
  EXPECT_EQ(out, 1.0f);
}

TEST(SumShards, WorksInPlaceOnTheFirstInput) {
  std::vector<float> a = gradients(3000, 0), b = gradients(3000, 1), expected(3000);
  for (int i = 0; i < 3000; ++i) expected[i] = a[i] + b[i];
  const void* inputs[2] = {a.data(), b.data()};
  sum_shards(a.data(), inputs, 2, DType::kF32, 3000);
  EXPECT_TRUE(a == expected);
}

TEST(GradStats, IsTheSumOfSquaresWithinItsBound) {
  const std::vector<float> grad = gradients(100003, 0);
  long double exact = 0;
  for (float g : grad) exact += static_cast<long double>(g) * g * 0.25L * 0.25L;
  const GradStats stats = grad_stats(grad.data(), 64, grad.size(), 0.25f);
  EXPECT_LE(std::fabs(stats.sum_squares - exact), exact * (4096 / 16 + 20 + 25) * 0x1p-53L);
  EXPECT_EQ(stats.nonfinite, 0u);
}

TEST(GradStats, EveryInstructionSetGivesTheSameBits) {
  const std::vector<float> grad = gradients(4096, 0);
  for (uint64_t n : {1u, 15u, 16u, 17u, 64u, 1000u, 4095u, 4096u}) {
    uint64_t nonfinite = 0;
    const double generic = cpu_loops_generic().grad_block(grad.data(), n, 0.3f, &nonfinite);
    for (CpuIsa isa : kIsas) {
      const CpuLoops* loops = cpu_loops_of(isa);
      if (loops == nullptr) continue;
      EXPECT_EQ(loops->grad_block(grad.data(), n, 0.3f, &nonfinite), generic) << name_of(isa) << n;
    }
  }
}

TEST(GradStats, DoesNotDependOnPiecesOrThreads) {
  const std::vector<float> grad = gradients(70001, 0);
  const uint64_t first = 3 * 64 + 10 * kGradBlockElements;
  const double whole = grad_stats(grad.data(), first, grad.size(), 1.0f).sum_squares;

  GradStats pieces;
  std::mt19937 random(2);
  for (uint64_t at = 0; at < grad.size();) {
    const uint64_t blocks = 1 + random() % 4;
    const uint64_t cut = ((first + at) / kGradBlockElements + blocks) * kGradBlockElements - first;
    const uint64_t end = std::min<uint64_t>(cut, grad.size());
    add_grad_stats(&pieces, grad.data() + at, first + at, end - at, 1.0f);
    at = end;
  }
  EXPECT_EQ(pieces.sum_squares, whole);

  std::vector<double> sums(grad_block_count(first, grad.size()));
  const uint64_t head = kGradBlockElements - first % kGradBlockElements;  // two "threads"
  const uint64_t head_blocks = grad_block_count(first, head);
  (void)grad_block_sums(sums.data() + head_blocks, grad.data() + head, first + head,
                        grad.size() - head, 1.0f);
  (void)grad_block_sums(sums.data(), grad.data(), first, head, 1.0f);
  double total = 0;
  for (double sum : sums) total += sum;
  EXPECT_EQ(total, whole);
}

// In the pass that sums the squares, whatever the chunks and however the shard is walked.
TEST(GradStats, SumsEveryChunkByTheChecksumOfItsWords) {
  const std::vector<float> grad = gradients(70001, 0);
  const uint64_t first = 3 * 64 + 10 * kGradBlockElements, word = 12345;
  const GradStats plain = grad_stats(grad.data(), first, grad.size(), 0.5f);
  for (const uint64_t chunk : {64u, 192u, 4096u, 4160u, 8192u, 70016u, 1u << 20}) {
    std::vector<uint64_t> whole((grad.size() + chunk - 1) / chunk), pieces(whole.size());
    const GradStats stats =
        grad_stats(grad.data(), first, grad.size(), 0.5f, {whole.data(), chunk, 0, word});
    EXPECT_EQ(stats.sum_squares, plain.sum_squares) << "the sums changed the norm";
    uint64_t total = 0;
    for (uint64_t c = 0; c < whole.size(); ++c) {
      const uint64_t count = std::min<uint64_t>(chunk, grad.size() - c * chunk);
      ASSERT_EQ(whole[c], checksum_words(&grad[c * chunk], count, word + c * chunk)) << c;
      total += whole[c];
    }
    EXPECT_EQ(total, checksum_words(grad.data(), grad.size(), word));
    GradStats walked;
    for (uint64_t at = 0; at < grad.size();) {
      const uint64_t blocks = (first + at) / kGradBlockElements + 3;
      const uint64_t end = std::min<uint64_t>(blocks * kGradBlockElements - first, grad.size());
      add_grad_stats(&walked, &grad[at], first + at, end - at, 0.5f,
                     {&pieces[at / chunk], chunk, at % chunk, word + at});
      at = end;
    }
    EXPECT_EQ(walked.sum_squares, plain.sum_squares);
    EXPECT_TRUE(pieces == whole) << chunk;
  }
}

TEST(GradStats, CountsEveryNonFiniteElement) {
  std::vector<float> grad = gradients(10000, 0);
  grad[0] = std::numeric_limits<float>::quiet_NaN();
  grad[4999] = std::numeric_limits<float>::infinity();
  grad[9999] = -std::numeric_limits<float>::infinity();
  const GradStats stats = grad_stats(grad.data(), 0, grad.size(), 1.0f);
  EXPECT_EQ(stats.nonfinite, 3u);
  EXPECT_FALSE(std::isfinite(stats.sum_squares));
}

TEST(GradStats, TheLargestFloatsDoNotOverflow) {
  const std::vector<float> grad(5000, std::numeric_limits<float>::max());
  const GradStats stats = grad_stats(grad.data(), 0, grad.size(), 1.0f);
  EXPECT_EQ(stats.nonfinite, 0u);
  EXPECT_NEAR(std::sqrt(stats.sum_squares) / (std::sqrt(5000.0) * grad[0]), 1.0, 1e-12);
}

TEST(GradStats, CountsBlocksByTheSpacesBoundaries) {
  EXPECT_EQ(grad_block_count(0, 0), 0u);
  EXPECT_EQ(grad_block_count(64, 0), 0u);
  EXPECT_EQ(grad_block_count(0, 4096), 1u);
  EXPECT_EQ(grad_block_count(0, 4097), 2u);
  EXPECT_EQ(grad_block_count(4032, 65), 2u);
}

TEST(GradStatsDeathTest, RefusesAnUnalignedFirstElement) {
  const float grad[1] = {1.0f};
  EXPECT_DEATH((void)grad_stats(grad, 63, 1, 1.0f), "first element 63");
  uint64_t sum = 0;
  EXPECT_DEATH((void)grad_stats(grad, 64, 1, 1.0f, {&sum, 100, 0, 0}), "chunks of 100 elements");
}

}  // namespace
}  // namespace optlease
