// The update kernels with main weights in two halves (docs/KERNELS.md) against the CPU's, bit by
// bit, every kind of float included.
#include <gtest/gtest.h>

#include <random>

#include "kernels/adam_cpu.h"
#include "shm/contract/remainder.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/update_values.h"

namespace optlease {
namespace {

constexpr uint64_t kSeed = 20261130;

// A range of a chunk with main weights in halves, each array a buffer of its own, on both sides.
struct Halves {
  Halves(uint64_t count, DType grad_dtype, uint64_t offset, Values of, std::mt19937_64* random)
      : elements(count), grad_type(grad_dtype), param_offset(offset), values(of) {
    const size_t sizes[] = {count * 2,
                            count * 2,
                            count * 4,
                            count * 4,
                            count * bytes_of(grad_dtype),
                            (count + offset) * 2 + kGuard};
    for (size_t bytes : sizes) {
      cpu.emplace_back(bytes, static_cast<char>(0xee));
      gpu.push_back(std::make_unique<GpuBytes>(bytes));
    }
    fill_main(random);
    fill(&cpu[2], DType::kF32, values, random);
    fill(&cpu[3], DType::kF32, values, random);
    for (uint64_t i = 0; i < count; ++i) cpu[3][4 * i + 3] &= 0x7f;  // a second moment
    for (int i = 0; i < 4; ++i) gpu[i]->put(cpu[i].data(), cpu[i].size());
  }
  // Numbers, split: any two halves of any bits would be a NaN too often, and rarely a tie.
  void fill_main(std::mt19937_64* random) {
    std::vector<char> main(elements * 4);
    fill(&main, DType::kF32, values, random);
    for (uint64_t i = 0; i < elements; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, &main[4 * i], 4);
      const uint16_t halves[2] = {rounded_half(bits), remainder_half(bits)};
      std::memcpy(&cpu[0][2 * i], &halves[0], 2);
      std::memcpy(&cpu[1][2 * i], &halves[1], 2);
    }
  }
  void next_gradient(std::mt19937_64* random) {
    fill(&cpu[4], grad_type, values, random);
    gpu[4]->put(cpu[4].data(), cpu[4].size());
  }
  AdamChunk chunk(bool on_gpu) {
    const auto at = [&](int i) { return on_gpu ? gpu[i]->data() : cpu[i].data(); };
    AdamChunk part;
    part.main_rounded = reinterpret_cast<uint16_t*>(at(0));
    part.main_remainder = reinterpret_cast<uint16_t*>(at(1));
    part.exp_avg = reinterpret_cast<float*>(at(2));
    part.exp_avg_sq = reinterpret_cast<float*>(at(3));
    part.grad = at(4);
    part.grad_dtype = grad_type;
    part.param = at(5) + param_offset * 2;
    part.param_dtype = DType::kBF16;
    part.elements = elements;
    part.first = 128;
    part.chunk_elements = elements + 1000;
    return part;
  }

  uint64_t elements;
  DType grad_type;
  uint64_t param_offset;
  Values values;
  // Rounded, remainder, exp_avg, exp_avg_sq, gradients, parameters.
  std::vector<std::vector<char>> cpu;
  std::vector<std::unique_ptr<GpuBytes>> gpu;
};

class GpuHalves : public testing::Test {
 protected:
  void SetUp() override { device_ = make_cuda_device(); }
  void TearDown() override { EXPECT_TRUE(device_->failure().is_ok()) << device_->failure().text(); }

  void update(Halves* halves, int steps, double lr, std::mt19937_64* random) {
    for (int step = 1; step <= steps; ++step) {
      halves->next_gradient(random);
      const GroupParams group{lr, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdam), 0};
      const AdamFactors factors = make_adam_factors(group, step, 0.37f);
      const ChunkSums expected = adam_update(halves->chunk(false), factors);
      ChunkSums sums{5, 7, 11};  // a launch adds
      device_->update(halves->chunk(true), factors, &sums);
      ASSERT_TRUE(wait_for(*device_, device_->signal(StreamKind::kCompute)));
      ASSERT_EQ(sums.read, expected.read + 5) << "step " << step;
      ASSERT_EQ(sums.written, expected.written + 7) << "step " << step;
      ASSERT_EQ(sums.grad, expected.grad + 11) << "step " << step;
    }
    for (int array = 0; array < 6; ++array) {
      ASSERT_EQ(halves->gpu[array]->take(), halves->cpu[array]) << "buffer " << array;
    }
    written_ += kinds_in(halves->cpu[0], DType::kBF16);
  }
  void publish_again(Halves* halves) {
    std::vector<char>& params = halves->cpu[5];
    std::fill(params.begin(), params.end(), static_cast<char>(0xee));
    halves->gpu[5]->put(params.data(), params.size());
    ChunkSums sums;
    const uint64_t expected = republish(halves->chunk(false));
    device_->republish(halves->chunk(true), &sums);
    ASSERT_TRUE(wait_for(*device_, device_->signal(StreamKind::kCompute)));
    ASSERT_EQ(sums.read, expected);
    ASSERT_EQ(halves->gpu[5]->take(), params);
  }
  void compare(Values values, double lr) {
    std::mt19937_64 random(kSeed);
    for (int i = 0; i < 3 * 7 * 2; ++i) {
      constexpr uint64_t kSizes[] = {1, 7, 8, 64, 255, 4096, 100'003};
      Halves halves(kSizes[i / 6], kTypes[i % 3], static_cast<uint64_t>(i / 3 % 2), values,
                    &random);
      SCOPED_TRACE(format("seed %llu, %s, lr %g, gradients %s, %llu elements, parameters +%llu",
                          static_cast<unsigned long long>(kSeed), name_of(values), lr,
                          name_of(halves.grad_type),
                          static_cast<unsigned long long>(halves.elements),
                          static_cast<unsigned long long>(halves.param_offset)));
      ASSERT_NO_FATAL_FAILURE(update(&halves, 3, lr, &random));
      ASSERT_NO_FATAL_FAILURE(publish_again(&halves));
    }
  }

  std::unique_ptr<CudaDevice> device_;
  Kinds written_;  // of all rounded halves
};

TEST_F(GpuHalves, GiveTheCpusBits) { compare(Values::kUsual, 1e-3); }

// With lr 0 the special main weights come back as they were: among them the halfway ones, and those
// whose rounded half is infinite while the number is not. Gradients are NaN and infinite here and
// there.
TEST_F(GpuHalves, GiveTheCpusBitsForTiesInfinitiesAndNans) {
  for (double lr : {0.0, 1e-3}) compare(Values::kSpecial, lr);
  EXPECT_GT(written_.infinities, 1000u) << "no rounding to infinity was met";
  EXPECT_GT(written_.nans, 1000u) << "no NaN of a gradient was met";
  EXPECT_GT(written_.denormals, 1000u);
}

TEST_F(GpuHalves, GiveTheCpusBitsForAnyBits) { compare(Values::kAnyBits, 1e-3); }

}  // namespace
}  // namespace optlease
