// The update kernels against the CPU's, bit by bit: every pair of types, odd sizes, buffers that
// are aligned to their elements only, and every kind of float.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "kernels/adam_cpu.h"
#include "kernels/checksum.h"
#include "shm/contract/geometry.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/update_values.h"

namespace optlease {
namespace {

constexpr uint64_t kElementsMax = (3u << 20) + 7;
constexpr uint64_t kSeed = 20261129;

struct Case {
  uint64_t elements = 0;
  DType grad = DType::kF32;
  DType param = DType::kF32;
  uint64_t grad_offset = 0;  // elements by which a buffer is off its alignment
  uint64_t param_offset = 0;
  Values values = Values::kUsual;
  int steps = 1;
  Rule rule = Rule::kAdamW;
  double lr = 1e-3;
};

std::string name_of(const Case& c) {
  return format(
      "seed %llu: %llu elements, gradients %s +%llu, parameters %s +%llu, %d steps, %s, "
      "lr %g",
      static_cast<unsigned long long>(kSeed), static_cast<unsigned long long>(c.elements),
      name_of(c.grad), static_cast<unsigned long long>(c.grad_offset), name_of(c.param),
      static_cast<unsigned long long>(c.param_offset), c.steps, name_of(c.values), c.lr);
}

// What a usual second moment never is.
void drop_signs(std::vector<char>* slot, uint64_t elements) {
  char* second = slot->data() + 2 * array_stride_bytes(elements);
  for (uint64_t i = 0; i < elements; ++i) second[4 * i + 3] &= 0x7f;
}

AdamChunk chunk_over(char* slot, char* grad, char* param, const Case& c) {
  const uint64_t stride = array_stride_bytes(c.elements);
  AdamChunk chunk;
  chunk.main = reinterpret_cast<float*>(slot);
  chunk.exp_avg = reinterpret_cast<float*>(slot + stride);
  chunk.exp_avg_sq = reinterpret_cast<float*>(slot + 2 * stride);
  chunk.grad = grad + c.grad_offset * bytes_of(c.grad);
  chunk.grad_dtype = c.grad;
  chunk.grad_first_word = 77 + c.elements;
  chunk.param = param == nullptr ? nullptr : param + c.param_offset * bytes_of(c.param);
  chunk.param_dtype = c.param;
  chunk.elements = c.elements;
  return chunk;
}

class GpuUpdate : public testing::Test {
 protected:
  void SetUp() override {
    device_ = make_cuda_device();
    ASSERT_TRUE(device_->allocate_staging(1, chunk_bytes(kElementsMax)).is_ok());
  }
  void TearDown() override { EXPECT_TRUE(device_->failure().is_ok()) << device_->failure().text(); }

  // Copies in, runs `work` on the staged chunk, copies out, as the pipeline does.
  template <class Work>
  void stream(std::vector<char>* slot, Work work) {
    device_->copy(StreamKind::kCopyIn, device_->staging(0), slot->data(), slot->size());
    device_->wait(StreamKind::kCompute, device_->signal(StreamKind::kCopyIn));
    work(device_->staging(0));
    device_->wait(StreamKind::kCopyOut, device_->signal(StreamKind::kCompute));
    device_->copy(StreamKind::kCopyOut, slot->data(), device_->staging(0), slot->size());
    ASSERT_TRUE(wait_for(*device_, device_->signal(StreamKind::kCopyOut)));
  }

  void compare(const Case& c, bool with_params = true) {
    SCOPED_TRACE(name_of(c));
    std::mt19937_64 random(kSeed + c.elements);
    std::vector<char> slot(chunk_bytes(c.elements));
    std::vector<char> grad((c.elements + c.grad_offset) * bytes_of(c.grad));
    std::vector<char> params((c.elements + c.param_offset) * bytes_of(c.param) + kGuard,
                             static_cast<char>(0xee));
    fill(&slot, DType::kF32, c.values, &random);
    if (c.values != Values::kAnyBits) drop_signs(&slot, c.elements);
    std::vector<char> found = slot;
    GpuBytes gpu_grad(grad.size()), gpu_params(params.size());
    for (int step = 1; step <= c.steps; ++step) {
      fill(&grad, c.grad, c.values, &random);
      gpu_grad.put(grad.data(), grad.size());
      const GroupParams group{c.lr, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(c.rule), 0};
      const AdamFactors factors = make_adam_factors(group, step, 0.37f);
      const ChunkSums expected = adam_update(
          chunk_over(slot.data(), grad.data(), with_params ? params.data() : nullptr, c), factors);
      ChunkSums sums;
      stream(&found, [&](char* staged) {
        char* to = with_params ? gpu_params.data() : nullptr;
        device_->update(chunk_over(staged, gpu_grad.data(), to, c), factors, &sums);
      });
      ASSERT_EQ(sums.read, expected.read) << "step " << step;
      ASSERT_EQ(sums.written, expected.written) << "step " << step;
      ASSERT_EQ(sums.grad, expected.grad) << "step " << step;
    }
    ASSERT_EQ(found, slot) << "state arrays differ";
    ASSERT_EQ(gpu_params.take(), params) << "parameters, or bytes around them, differ";
    params.resize((c.elements + c.param_offset) * bytes_of(c.param));
    written_ += kinds_in(params, c.param);
  }

  std::unique_ptr<CudaDevice> device_;
  Kinds written_;  // of all parameters that were compared
};

// The stream is asked about a later ticket first, and says no: what it has seen of an earlier one
// meanwhile must not be true before that one's sums are there.
TEST_F(GpuUpdate, SumsAreThereWhicheverQuestionSawTheirTicket) {
  constexpr uint64_t kElements = 4096;
  const GroupParams group{1e-3, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
  const AdamFactors factors = make_adam_factors(group, 1, 1.0f);
  std::vector<char> slot(chunk_bytes(kElements)), grad(kElements * 4, 1), param(kElements * 4);
  GpuBytes gpu_slot(slot.size(), 0), gpu_grad(grad.size(), 1), gpu_param(param.size(), 0);
  const Case plain{kElements, DType::kF32, DType::kF32};
  const ChunkSums expected =
      adam_update(chunk_over(slot.data(), grad.data(), param.data(), plain), factors);
  for (const StreamKind asked : {StreamKind::kCompute, StreamKind::kCopyOut}) {
    gpu_slot.put(std::vector<char>(slot.size()).data(), slot.size());
    ChunkSums sums;
    device_->update(chunk_over(gpu_slot.data(), gpu_grad.data(), gpu_param.data(), plain), factors,
                    &sums);
    const Ticket computed = device_->signal(StreamKind::kCompute);
    device_->wait(StreamKind::kCopyOut, computed);
    const Ticket first = asked == StreamKind::kCompute ? computed : device_->signal(asked);
    std::atomic<bool> go{false};
    const Deadline deadline = Deadline::after_ms(30'000);
    device_->run_on_host(asked, [&go, deadline] {
      while (!go && !deadline.passed()) std::this_thread::yield();
    });
    const Ticket later = device_->signal(asked);
    for (const Deadline enough = Deadline::after_ms(200); !enough.passed();) {
      ASSERT_FALSE(device_->reached(later)) << "it waits for us";
    }
    EXPECT_TRUE(device_->reached(first)) << "its work takes microseconds";
    EXPECT_EQ(sums.read, expected.read);
    EXPECT_EQ(sums.written, expected.written);
    EXPECT_EQ(sums.grad, expected.grad);
    go = true;
    ASSERT_TRUE(wait_for(*device_, later));
  }
}

TEST_F(GpuUpdate, GivesTheCpusBitsForEveryPairOfTypes) {
  for (DType grad : kTypes) {
    for (DType param : kTypes) {
      for (uint64_t elements : {1, 7, 8, 9, 64, 255, 2047, 4096, 5000, 100'003}) {
        compare({elements, grad, param, 0, 0, Values::kUsual, 3});
      }
    }
  }
}

TEST_F(GpuUpdate, GivesTheCpusBitsForEveryOddSize) {
  for (uint64_t elements = 1; elements <= 5000; elements += 2) {
    const DType grad = kTypes[elements / 2 % 3];
    const DType param = kTypes[elements / 6 % 3];
    compare({elements, grad, param});
    if (HasFatalFailure()) return;
  }
}

TEST_F(GpuUpdate, GivesTheCpusBitsForALargeChunk) {
  for (DType grad : kTypes) {
    compare({kElementsMax, grad, DType::kBF16, 0, 0, Values::kUsual, 2});
    compare({kElementsMax, grad, DType::kF32, 1, 3, Values::kUsual, 1, Rule::kAdam});
  }
}

TEST_F(GpuUpdate, TakesBuffersThatAreAlignedToTheirElementsOnly) {
  for (DType grad : kTypes) {
    for (DType param : kTypes) {
      for (uint64_t offset = 0; offset < 8; ++offset) {
        compare({4099, grad, param, offset, 7 - offset, Values::kUsual, 1});
      }
    }
  }
}

TEST_F(GpuUpdate, GivesTheCpusBitsForInfinitiesNansAndDenormals) {
  for (DType grad : kTypes) {
    for (DType param : kTypes) {
      for (Rule rule : {Rule::kAdam, Rule::kAdamW}) {
        compare({100'001, grad, param, 0, 0, Values::kAnyBits, 3, rule});
      }
    }
  }
}

// Main weights that lie halfway between two numbers of a narrow format, next to that, or beyond its
// largest; where lr is 0 they come as they are to where they are rounded. Gradients are of every
// kind, too: of the two-byte formats infinities and both sorts of NaN.
TEST_F(GpuUpdate, RoundsAsTheCpuDoesAtEveryBorderOfTheNarrowFormats) {
  for (DType grad : kTypes) {
    for (DType param : kTypes) {
      for (double lr : {0.0, 1e-3}) {
        compare({20'011, grad, param, 0, 0, Values::kSpecial, 2, Rule::kAdamW, lr});
        compare({4099, grad, param, 1, 3, Values::kSpecial, 1, Rule::kAdam, lr});
      }
    }
  }
  EXPECT_GT(written_.infinities, 1000u) << "what rounds to infinity was not met";
  EXPECT_GT(written_.nans, 1000u) << "gradients that are none were not met";
  EXPECT_GT(written_.denormals, 1000u);
  EXPECT_GT(written_.others, 100'000u);
}

TEST_F(GpuUpdate, WritesNoParametersWhereThereIsNoBuffer) {
  compare({100'003, DType::kF32, DType::kBF16, 0, 0, Values::kUsual, 2}, false);
}

TEST_F(GpuUpdate, RepublishWritesTheCpusParametersAndSums) {
  for (DType param : kTypes) {
    for (uint64_t elements : {uint64_t{1}, uint64_t{63}, uint64_t{4099}, kElementsMax}) {
      for (uint64_t offset : {0, 1, 4}) {
        const Case c{elements, DType::kF32, param, 0, offset, Values::kAnyBits};
        SCOPED_TRACE(name_of(c));
        std::mt19937_64 random(kSeed);
        std::vector<char> slot(chunk_bytes(elements));
        fill(&slot, DType::kF32, c.values, &random);
        std::vector<char> params((elements + offset) * bytes_of(param) + kGuard,
                                 static_cast<char>(0xee));
        GpuBytes gpu_params(params.size());
        const uint64_t expected = republish(chunk_over(slot.data(), nullptr, params.data(), c));
        std::vector<char> found = slot;
        ChunkSums sums;
        stream(&found, [&](char* staged) {
          AdamChunk chunk = chunk_over(staged, nullptr, gpu_params.data(), c);
          chunk.grad = nullptr;
          device_->republish(chunk, &sums);
        });
        ASSERT_EQ(sums.read, expected);
        ASSERT_EQ(sums.written, expected);
        ASSERT_EQ(found, slot) << "republish changed the state";
        ASSERT_EQ(gpu_params.take(), params);
      }
    }
  }
}

// As an incarnation reads what another one left; and that updates beside it lose nothing.
TEST_F(GpuUpdate, SumsGradientsAsTheCpuDoesAtAnySizeAndAlignment) {
  std::mt19937_64 random(kSeed);
  for (const uint64_t elements :
       {uint64_t{1}, uint64_t{7}, uint64_t{8}, uint64_t{9}, uint64_t{2047}, uint64_t{4096},
        uint64_t{100'003}, kElementsMax}) {
    for (const uint64_t offset : {0u, 1u, 4u}) {
      std::vector<char> grad((elements + offset) * 4);
      fill(&grad, DType::kF32, Values::kAnyBits, &random);
      GpuBytes on_gpu(grad.size());
      on_gpu.put(grad.data(), grad.size());
      const uint64_t first = random() >> 20;
      ChunkSums sums{1, 2, 3};
      device_->sum_gradient(reinterpret_cast<const float*>(on_gpu.data()) + offset, elements, first,
                            &sums);
      ASSERT_TRUE(wait_for(*device_, device_->signal(StreamKind::kCompute)));
      EXPECT_EQ(sums.grad, 3 + checksum_words(grad.data() + offset * 4, elements, first))
          << elements << " elements +" << offset;
      EXPECT_EQ(sums.read, 1u);
      EXPECT_EQ(sums.written, 2u);
    }
  }
}

TEST_F(GpuUpdate, KeepsTheSumsOfChunksInFlightApart) {
  constexpr uint32_t kChunks = 200;
  constexpr uint64_t kElements = 1000;
  const Case c{kElements};
  std::vector<char> slot(chunk_bytes(kElements)), grad(kElements * 4);
  std::mt19937_64 random(kSeed);
  fill(&slot, DType::kF32, Values::kUsual, &random);
  fill(&grad, DType::kF32, Values::kUsual, &random);
  GpuBytes state(slot.size()), gpu_grad(grad.size());
  state.put(slot.data(), slot.size());
  gpu_grad.put(grad.data(), grad.size());
  const GroupParams group{1e-3, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
  std::vector<ChunkSums> sums(kChunks), expected(kChunks);
  for (uint32_t i = 0; i < kChunks; ++i) {
    const AdamFactors factors = make_adam_factors(group, i + 1, 0.37f);
    expected[i] = adam_update(chunk_over(slot.data(), grad.data(), nullptr, c), factors);
    device_->update(chunk_over(state.data(), gpu_grad.data(), nullptr, c), factors, &sums[i]);
  }
  ASSERT_TRUE(wait_for(*device_, device_->signal(StreamKind::kCompute)));
  for (uint32_t i = 0; i < kChunks; ++i) {
    ASSERT_EQ(sums[i].read, expected[i].read) << "chunk " << i;
    ASSERT_EQ(sums[i].written, expected[i].written) << "chunk " << i;
    ASSERT_EQ(sums[i].grad, expected[i].grad) << "chunk " << i;
  }
  EXPECT_GT(device_->counters().kernel_seconds, 0);
}

}  // namespace
}  // namespace optlease
