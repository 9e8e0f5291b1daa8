// The element-wise kernels of kernels/reduce_cuda.h and the CUDA gradient math, bit for bit against
// the CPU's. Needs a GPU; ends with 0 or 1.
#include "kernels/reduce_cuda.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "actors/gpu_actor/gradient_math.h"
#include "kernels/formats.h"
#include "kernels/random.h"
#include "kernels/reduce_cpu.h"
#include "tests/gpu/gpu_support.h"

namespace optlease {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr uint64_t kGuardBytes = 256;  // before and after what a kernel may write
constexpr uint64_t kSizes[] = {1, 3, 4, 7, 8, 9, 63, 64, 65, 1000, 4095, 4096, 4097, 100003};

void finish() { must(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

// Device memory with guards around `bytes`; the first byte may lie off a 16-byte boundary.
class Guarded {
 public:
  explicit Guarded(uint64_t bytes, uint64_t off = 0)
      : memory_(bytes + 2 * kGuardBytes), bytes_(bytes), begin_(kGuardBytes / 2 + off) {}
  char* data() const { return memory_.data() + begin_; }
  void put(const void* from) { memory_.put(from, bytes_, begin_); }
  // The bytes; the guards must be as they were.
  std::vector<char> take() const {
    const std::vector<char> all = memory_.take();
    for (uint64_t i = 0; i < all.size(); ++i)
      if ((i < begin_ || i >= begin_ + bytes_) && all[i] != static_cast<char>(0xee)) {
        ADD_FAILURE() << "byte " << static_cast<int64_t>(i - begin_) << " of " << bytes_;
        break;
      }
    return {all.begin() + static_cast<std::ptrdiff_t>(begin_),
            all.begin() + static_cast<std::ptrdiff_t>(begin_ + bytes_)};
  }

 private:
  GpuBytes memory_;
  uint64_t bytes_;
  uint64_t begin_;
};

// Finite values of many magnitudes; with `specials`, also zeros of both signs, denormals,
// infinities and NaNs here and there.
std::vector<float> values(uint64_t count, uint32_t seed, bool specials) {
  const float inf = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f, -0.0f, 1e-42f, -3e-39f, inf, -inf, NAN, 65504.0f, 3e38f, -3e38f};
  std::mt19937 random(seed);
  std::vector<float> out(count);
  for (uint64_t i = 0; i < count; ++i) {
    out[i] = synthetic_gradient(seed, 1, 0, 0, i);
    if (specials && random() % 5 == 0) out[i] = special[random() % std::size(special)];
  }
  return out;
}

std::vector<char> stored(const std::vector<float>& from, DType dtype) {
  std::vector<char> bytes(from.size() * bytes_of(dtype));
  convert_from_f32(bytes.data(), from.data(), dtype, from.size());
  return bytes;
}

// Bits equal, or both no number: additions make NaNs of their own.
void expect_same_floats(const std::vector<char>& got, const std::vector<float>& expected,
                        const std::string& where) {
  ASSERT_EQ(got.size(), expected.size() * 4);
  for (uint64_t i = 0; i < expected.size(); ++i) {
    float value;
    std::memcpy(&value, &got[i * 4], 4);
    if (std::isnan(value) && std::isnan(expected[i])) continue;
    ASSERT_EQ(bits_of(value), bits_of(expected[i])) << where << " element " << i;
  }
}

void check_sum(DType dtype, uint32_t inputs, uint64_t elements, uint64_t off) {
  std::vector<std::vector<char>> h_inputs;
  std::vector<std::unique_ptr<Guarded>> d_inputs;
  std::vector<const void*> h_at, d_at;
  for (uint32_t k = 0; k < inputs; ++k) {
    h_inputs.push_back(stored(values(elements, 7 + k, k % 2 == 1), dtype));
    d_inputs.push_back(
        std::make_unique<Guarded>(h_inputs.back().size(), k == 0 ? off * bytes_of(dtype) : 0));
    d_inputs.back()->put(h_inputs.back().data());
    d_at.push_back(d_inputs.back()->data());
  }
  for (const auto& input : h_inputs) h_at.push_back(input.data());
  std::vector<float> expected(elements);
  sum_shards(expected.data(), h_at.data(), inputs, dtype, elements);
  const Guarded out(elements * 4);
  ASSERT_EQ(sum_shards_cuda(reinterpret_cast<float*>(out.data()), d_at.data(), inputs, dtype,
                            elements, nullptr),
            cudaSuccess);
  finish();
  expect_same_floats(out.take(), expected, format("%s, %u inputs", name_of(dtype), inputs));
}

TEST(GpuReduce, SumsShardsInMemberOrderWithTheBitsOfTheCpu) {
  for (const DType dtype : kDTypes)
    for (const uint32_t inputs : {1u, 2u, 3u, 8u, 16u, 17u, 33u})
      for (const uint64_t elements : kSizes)
        for (const uint64_t off : {0u, 1u}) check_sum(dtype, inputs, elements, off);
}

TEST(GpuReduce, SumsOntoTheFirstInputInPlace) {
  const uint64_t n = 10007;
  std::vector<float> a = values(n, 1, false);
  const std::vector<float> b = values(n, 2, false);
  Guarded d_a(n * 4), d_b(n * 4);
  d_a.put(a.data());
  d_b.put(b.data());
  const void* inputs[2] = {d_a.data(), d_b.data()};
  ASSERT_EQ(
      sum_shards_cuda(reinterpret_cast<float*>(d_a.data()), inputs, 2, DType::kF32, n, nullptr),
      cudaSuccess);
  finish();
  for (uint64_t i = 0; i < n; ++i) a[i] = a[i] + b[i];
  expect_same_floats(d_a.take(), a, "in place");
}

TEST(GpuReduce, WidensEveryBitPatternOfTheNarrowFormats) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> all(1u << 16);
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    Guarded in(all.size() * 2), out(all.size() * 4);
    in.put(all.data());
    const void* inputs[1] = {in.data()};
    ASSERT_EQ(sum_shards_cuda(reinterpret_cast<float*>(out.data()), inputs, 1, dtype, all.size(),
                              nullptr),
              cudaSuccess);
    finish();
    std::vector<float> expected(all.size());
    convert_to_f32(expected.data(), all.data(), dtype, all.size());
    const std::vector<char> got = out.take();
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0) << name_of(dtype);
  }
}

// Chunks of `chunk` elements, of which the first has `skip` before the shard's first one.
void check_norm(const std::vector<float>& grad, uint64_t first, float scale, uint64_t off,
                uint64_t chunk = 0, uint64_t skip = 0) {
  const uint64_t blocks = grad_block_count(first, grad.size());
  std::vector<double> expected(blocks);
  const uint64_t nonfinite =
      grad_block_sums(expected.data(), grad.data(), first, grad.size(), scale);
  Guarded d_grad(grad.size() * 4, off * 4), sums(blocks * 8), count(8);
  d_grad.put(grad.data());
  const uint64_t before = 1000;
  count.put(&before);
  const uint64_t chunks = chunk == 0 ? 0 : (skip + grad.size() - 1) / chunk + 1;
  std::vector<uint64_t> chunk_sums(chunks, 9), expected_sums(chunks, 9);
  Guarded d_chunk_sums(chunks * 8);
  GradSums into, on_gpu;
  if (chunk != 0) {
    d_chunk_sums.put(chunk_sums.data());
    into = {expected_sums.data(), chunk, skip, 55 + first};
    on_gpu = into;
    on_gpu.sums = reinterpret_cast<uint64_t*>(d_chunk_sums.data());
    (void)grad_stats(grad.data(), first, grad.size(), scale, into);
  }
  ASSERT_EQ(grad_block_sums_cuda(reinterpret_cast<double*>(sums.data()),
                                 reinterpret_cast<uint64_t*>(count.data()),
                                 reinterpret_cast<const float*>(d_grad.data()), first, grad.size(),
                                 scale, on_gpu, nullptr),
            cudaSuccess);
  finish();
  if (chunk != 0) {
    std::memcpy(chunk_sums.data(), d_chunk_sums.take().data(), chunks * 8);
    ASSERT_EQ(chunk_sums, expected_sums)
        << "chunks of " << chunk << ", first element " << first << ", " << grad.size()
        << " elements, " << skip << " skipped";
  }
  uint64_t after = 0;
  std::memcpy(&after, count.take().data(), 8);
  EXPECT_EQ(after, before + nonfinite) << first << " " << grad.size();
  const std::vector<char> got = sums.take();
  for (uint64_t b = 0; b < blocks; ++b) {
    double sum;
    std::memcpy(&sum, &got[b * 8], 8);
    if (std::isnan(sum) && std::isnan(expected[b])) continue;
    ASSERT_EQ(std::memcmp(&sum, &expected[b], 8), 0)
        << "block " << b << " of " << blocks << ", first element " << first << ", " << grad.size()
        << " elements: " << sum << " " << expected[b];
  }
}

TEST(GpuReduce, SumsSquaresOfBlocksWithTheBitsOfTheCpu) {
  const uint64_t firsts[] = {0, 64, 128, 4032, 4096, 3 * 4096 + 192, 7777ull * 64};
  for (const uint64_t first : firsts)
    for (const uint64_t n : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 127u, 128u, 129u, 4031u, 4032u,
                             4033u, 4095u, 4096u, 4097u, 8191u, 12289u, 100003u})
      for (const float scale : {1.0f, 0.3f})
        for (const uint64_t off : {0u, 1u})
          for (const bool specials : {false, true})
            check_norm(values(n, static_cast<uint32_t>(n), specials), first, scale, off);
  check_norm(values((4u << 20) + 5, 3, false), 64, 1.0f / 3, 0);
}

// Chunks that end within a block of the norm, on its end, and far behind it.
TEST(GpuReduce, SumsEveryChunkInThePassForTheNorm) {
  for (const uint64_t first : {0u, 64u, 4032u, 3u * 4096 + 192})
    for (const uint64_t n : {1u, 15u, 64u, 65u, 4031u, 4096u, 4097u, 12289u, 100003u, 1000003u})
      for (const uint64_t chunk : {64u, 128u, 192u, 4096u, 4160u, 5u * 4096, 65536u, 1u << 24})
        for (const uint64_t skip : {uint64_t{0}, uint64_t{64}, chunk - 64})
          for (const uint64_t off : {0u, 1u})
            check_norm(values(n, static_cast<uint32_t>(n), true), first, 0.3f, off, chunk,
                       skip % chunk);
}

TEST(GpuReduce, FillsSyntheticGradientsWithTheBitsOfTheCpu) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{12345678901}})
    for (const uint64_t n : kSizes)
      for (const uint64_t off : {0u, 1u}) {
        for (const DType dtype : kDTypes) {
          Guarded out(n * bytes_of(dtype), off * bytes_of(dtype));
          ASSERT_EQ(fill_synthetic_gradient_cuda(out.data(), dtype, 42, 9, 3, 2, first, n, nullptr),
                    cudaSuccess);
          finish();
          std::vector<char> expected(n * bytes_of(dtype));
          fill_synthetic_gradient(expected.data(), dtype, 42, 9, 3, 2, first, n);
          ASSERT_EQ(out.take(), expected) << name_of(dtype) << " " << first << " " << n;
        }
      }
}

std::unique_ptr<GradientMath> cuda_math() {
  Result<std::unique_ptr<GradientMath>> math = make_cuda_gradient_math(0);
  OPTLEASE_CHECK(math.is_ok(), "%s", math.status().text().c_str());
  return std::move(math).value();
}

TEST(GpuGradientMath, GivesTheStatisticsOfTheCpu) {
  const auto math = cuda_math();
  const auto cpu = make_cpu_gradient_math();
  for (const uint64_t n : {uint64_t{1}, uint64_t{5000}, (uint64_t{9} << 20) + 5})
    for (const bool specials : {false, true}) {
      const std::vector<float> shard = values(n, 5, specials);
      Guarded d_shard(n * 4);
      d_shard.put(shard.data());
      const uint64_t chunk = n > 5000 ? 64 : 4096;  // small ones: more than a launch has room for
      std::vector<uint64_t> sums((n + chunk - 1) / chunk), expected_sums(sums.size());
      const auto got = math->stats(reinterpret_cast<const float*>(d_shard.data()), 4096 + 64, n,
                                   0.7f, {sums.data(), chunk, 0, 999});
      ASSERT_TRUE(got.is_ok()) << got.status().text();
      const GradStats expected =
          cpu->stats(shard.data(), 4096 + 64, n, 0.7f, {expected_sums.data(), chunk, 0, 999})
              .value();
      EXPECT_EQ(sums, expected_sums) << n;
      EXPECT_EQ(got.value().nonfinite, expected.nonfinite);
      if (!std::isnan(expected.sum_squares)) {
        EXPECT_EQ(got.value().sum_squares, expected.sum_squares);
      }
    }
}

// More blocks than one launch has room for; and the figures.
TEST(GpuGradientMath, GivesTheStatisticsOfAShardOfManyLaunches) {
  const auto math = cuda_math();
  const uint64_t n = (288ull << 20) + 333;
  GpuBytes d_shard(n * 4);
  auto* shard = reinterpret_cast<float*>(d_shard.data());
  ASSERT_TRUE(math->fill_synthetic(shard, DType::kF32, {8, 2, Rank(1), 0}, n).is_ok());
  const auto started = std::chrono::steady_clock::now();
  constexpr uint64_t kChunk = (2ull << 20) + 64;
  std::vector<uint64_t> sums((n + kChunk - 1) / kChunk), expected_sums(sums.size());
  const auto got = math->stats(shard, 5 * 64, n, 0.5f, {sums.data(), kChunk, 0, 7});
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
  ASSERT_TRUE(got.is_ok()) << got.status().text();
  std::printf("[figure] sum of squares and chunk sums of %llu Mi elements: %.2f ms, %.0f GB/s\n",
              static_cast<unsigned long long>(n >> 20), ms, static_cast<double>(n) * 4e-6 / ms);
  std::vector<float> host(n);
  must(cudaMemcpy(host.data(), shard, n * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
  const GradStats expected =
      grad_stats(host.data(), 5 * 64, n, 0.5f, {expected_sums.data(), kChunk, 0, 7});
  EXPECT_EQ(sums, expected_sums);
  EXPECT_EQ(got.value().sum_squares, expected.sum_squares);
  EXPECT_EQ(got.value().nonfinite, 0u);
  std::vector<float> piece(1u << 20);
  fill_synthetic_gradient(piece.data(), DType::kF32, 8, 2, 1, 0, n - piece.size(), piece.size());
  EXPECT_EQ(std::memcmp(piece.data(), &host[n - piece.size()], piece.size() * 4), 0);
}

TEST(GpuGradientMath, PutsStagedBytes) {
  const auto math = cuda_math();
  const std::span<std::byte> staging = math->staging();
  ASSERT_GE(staging.size(), 64u << 10);
  std::vector<char> expected(staging.size());
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<char>(i * 31);
  std::memcpy(staging.data(), expected.data(), expected.size());
  const Guarded out(expected.size());
  ASSERT_TRUE(math->put(out.data(), staging.data(), staging.size()).is_ok());
  EXPECT_EQ(out.take(), expected);
}

}  // namespace
}  // namespace optlease
