// The CUDA device and gradient math on a GPU that is none (fake_gpu.h): what they do when calls
// fail, when the GPU does not answer, and where a slot is several pinned pieces. What real GPUs do
// with it is tests/gpu's.
#include "actors/gpu_actor/cuda_device.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "actors/gpu_actor/gradient_math.h"
#include "actors/runtime/clock.h"
#include "tests/gpu_actor/fake_gpu.h"

namespace optlease {
namespace {

constexpr uint64_t kPage = 4096;

std::unique_ptr<CudaDevice> make_cuda_device(const CudaDeviceOptions& options = {}) {
  Result<std::unique_ptr<Device>> made = CudaDevice::create(Rank(1), options);
  OPTLEASE_CHECK(made.is_ok(), "%s", made.status().text().c_str());
  return std::unique_ptr<CudaDevice>(static_cast<CudaDevice*>(made.value().release()));
}

bool wait_for(Device& device, Ticket ticket) {
  const Deadline deadline = Deadline::after_ms(60'000);
  while (!device.reached(ticket)) {
    if (deadline.passed() || !device.failure().is_ok()) return false;
    std::this_thread::yield();
    device.drain_completions();
  }
  return true;
}

// A device and what is enqueued on it. Once it has failed its end would be this process's, so it is
// kept, and so is all that the fake GPU may still touch.
struct Scene {
  std::unique_ptr<CudaDevice> device = make_cuda_device();
  std::vector<float> state = std::vector<float>(3 * 64);
  std::vector<char> bytes = std::vector<char>(kPage);
  ChunkSums sums;

  AdamChunk chunk() {
    AdamChunk chunk;
    chunk.main = state.data();
    chunk.exp_avg = chunk.main + 64;
    chunk.exp_avg_sq = chunk.main + 128;
    return chunk;
  }
};
Scene& kept_scene() {
  static auto* scenes = new std::vector<std::unique_ptr<Scene>>;
  scenes->push_back(std::make_unique<Scene>());
  return *scenes->back();
}

class FakeCudaDevice : public testing::Test {
 protected:
  void SetUp() override { fake_gpu_seed(20261130); }
  void TearDown() override {
    for (const char* call : {"cudaSetDevice", "cudaMalloc", "cudaHostRegister"}) {
      fake_gpu_fail(call, cudaSuccess);
    }
  }
};

TEST_F(FakeCudaDevice, CopiesUpdatesAndEndsWithNothingLeft) {
  const uint64_t leftovers = fake_gpu_leftovers();
  constexpr uint64_t kElements = 1000;
  std::vector<float> slot(3 * 1024, 0.5f), grad(kElements, 0.25f), expected = slot;
  const auto chunk_over = [&](float* at) {
    AdamChunk chunk;
    chunk.main = at;
    chunk.exp_avg = at + 1024;
    chunk.exp_avg_sq = at + 2048;
    chunk.grad = grad.data();
    chunk.elements = kElements;
    return chunk;
  };
  const GroupParams group{1e-3, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
  const AdamFactors factors = make_adam_factors(group, 1, 1.0f);
  const ChunkSums wanted = adam_update(chunk_over(expected.data()), factors);
  const uint64_t bytes = slot.size() * sizeof(float);
  auto device = make_cuda_device();
  EXPECT_EQ(device->pci_address(), "0000:3B:00.0") << "rank 1's";
  ASSERT_TRUE(device->allocate_staging(1, bytes).is_ok());
  ChunkSums sums;
  device->copy(StreamKind::kCopyIn, device->staging(0), slot.data(), bytes);
  device->wait(StreamKind::kCompute, device->signal(StreamKind::kCopyIn));
  device->update(chunk_over(reinterpret_cast<float*>(device->staging(0))), factors, &sums);
  device->wait(StreamKind::kCopyOut, device->signal(StreamKind::kCompute));
  device->copy(StreamKind::kCopyOut, slot.data(), device->staging(0), bytes);
  ASSERT_TRUE(wait_for(*device, device->signal(StreamKind::kCopyOut)));
  EXPECT_EQ(slot, expected);
  EXPECT_EQ(sums.read, wanted.read);
  EXPECT_EQ(sums.written, wanted.written);
  device.reset();
  EXPECT_EQ(fake_gpu_leftovers(), leftovers);
}

TEST_F(FakeCudaDevice, WhatCannotBeOpenedSaysWhy) {
  const uint64_t leftovers = fake_gpu_leftovers();
  struct {
    const char* call;
    cudaError_t error;
    StatusCode code;
  } const cases[] = {
      {"cudaGetDeviceCount", cudaErrorNoDevice, StatusCode::kUnsupported},
      {"cudaGetDeviceCount", cudaErrorInsufficientDriver, StatusCode::kUnsupported},
      {"cudaSetDevice", cudaErrorDevicesUnavailable, StatusCode::kInternal},
      {"preload_adam_cuda", cudaErrorNoKernelImageForDevice, StatusCode::kUnsupported},
      {"cudaStreamCreateWithFlags", cudaErrorUnknown, StatusCode::kInternal},
      {"cudaMalloc", cudaErrorMemoryAllocation, StatusCode::kNoSpace},
      {"cudaHostAlloc", cudaErrorMemoryAllocation, StatusCode::kNoSpace},
  };
  for (const auto& each : cases) {
    fake_gpu_fail(each.call, each.error);
    const Status refused = CudaDevice::create(Rank(0)).status();
    fake_gpu_fail(each.call, cudaSuccess);
    EXPECT_EQ(refused.code(), each.code) << each.call << ": " << refused.text();
    EXPECT_TRUE(CudaDevice::create(Rank(0)).is_ok()) << each.call << " left something behind";
  }
  EXPECT_EQ(fake_gpu_leftovers(), leftovers);
}

// Whichever call it is: one meaning, the words of the call, and nothing is reached after it.
TEST_F(FakeCudaDevice, ACallThatFailsUnderWayFailsTheDeviceAsInternal) {
  for (const char* call : {"cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent",
                           "cudaLaunchHostFunc", "cudaEventQuery", "adam_update_cuda"}) {
    SCOPED_TRACE(call);
    Scene& scene = kept_scene();
    const auto& device = scene.device;
    ASSERT_TRUE(device->allocate_staging(1, kPage).is_ok());
    const Ticket before = device->signal(StreamKind::kCompute);
    ASSERT_TRUE(wait_for(*device, before));
    fake_gpu_fail(call, cudaErrorIllegalAddress);
    device->copy(StreamKind::kCopyIn, device->staging(0), scene.bytes.data(), kPage);
    device->update(scene.chunk(), AdamFactors{}, &scene.sums);
    const Ticket after = device->signal(StreamKind::kCompute);
    const Deadline deadline = Deadline::after_ms(60'000);
    while (device->failure().is_ok() && !deadline.passed()) (void)device->reached(after);
    EXPECT_EQ(device->failure().code(), StatusCode::kInternal) << device->failure().text();
    EXPECT_NE(device->failure().message().find(" on GPU 1"), std::string::npos);
    EXPECT_NE(device->failure().message().find("a fake error"), std::string::npos);
    fake_gpu_fail(call, cudaSuccess);
    EXPECT_FALSE(device->reached(after)) << "CUDA works again, what was enqueued is not trusted";
    EXPECT_FALSE(device->reached(device->signal(StreamKind::kCopyIn)));
  }
}

TEST_F(FakeCudaDevice, IsTakenDownAfterAnErrorByTheProcessesEndAlone) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        auto device = make_cuda_device();
        fake_gpu_fail("cudaEventRecord", cudaErrorIllegalAddress);
        (void)device->signal(StreamKind::kCopyIn);
        device.reset();
      },
      testing::ExitedWithCode(1), "cudaEventRecord on GPU 1.*the process ends at once");
}

TEST_F(FakeCudaDevice, IsTakenDownWhereTheGpuHangsByTheProcessesEndAlone) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        auto device = make_cuda_device({.pins = {}, .finish_ms = 50});
        fake_gpu_hang(true);
        (void)device->signal(StreamKind::kCopyIn);
        device.reset();
      },
      testing::ExitedWithCode(1), "has not finished.*the process ends at once");
}

// Memory as an arena's is, in slots.
class Arena {
 public:
  Arena(uint32_t slots, uint64_t slot_bytes) : slots_(slots), slot_bytes_(slot_bytes) {
    data_ = static_cast<char*>(
        mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    OPTLEASE_CHECK(data_ != MAP_FAILED, "mmap");
    std::mt19937_64 random(3);
    for (uint64_t at = 0; at < bytes(); at += 8) {
      const uint64_t value = random();
      std::memcpy(data_ + at, &value, 8);
    }
  }
  ~Arena() { munmap(data_, bytes()); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  uint64_t bytes() const { return slots_ * slot_bytes_; }
  char* slot(uint32_t index) const { return data_ + index * slot_bytes_; }
  HostMemory as_host_memory() const {
    std::vector<uint32_t> order(slots_);
    std::iota(order.begin(), order.end(), 0u);
    return {data_, slot_bytes_, static_cast<uint32_t>(slots_), order};
  }

 private:
  uint32_t slots_;
  uint64_t slot_bytes_;
  char* data_;
};

void wait_for_pinning(const CudaDevice& device) {
  const Deadline deadline = Deadline::after_ms(60'000);
  while (device.pinning().waiting_bytes > 0 && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(device.pinning().waiting_bytes, 0u);
}

// Seventeen pages a slot, registered by at most eight: copies are cut where registrations end.
TEST_F(FakeCudaDevice, ASlotThatIsSeveralPinnedPiecesIsCopiedPieceByPiece) {
  constexpr uint64_t kSlotBytes = 17 * kPage;
  const CudaDeviceOptions options{.pins = {3 * kPage, 20 * kPage, 8 * kPage}, .finish_ms = 10'000};
  const Arena arena(5, kSlotBytes);
  auto device = make_cuda_device(options);
  ASSERT_TRUE(device->allocate_staging(1, kSlotBytes).is_ok());
  ASSERT_TRUE(device->adopt_host_memory(arena.as_host_memory()).is_ok());
  wait_for_pinning(*device);
  EXPECT_EQ(device->pinning().pinned_bytes, arena.bytes()) << device->pinning().first_refusal;
  for (uint32_t from = 0; from < 4; ++from) {
    const uint64_t bytes = kSlotBytes - 100 * from;
    device->copy(StreamKind::kCopyIn, device->staging(0), arena.slot(from), bytes);
    device->wait(StreamKind::kCopyOut, device->signal(StreamKind::kCopyIn));
    device->copy(StreamKind::kCopyOut, arena.slot(from + 1), device->staging(0), bytes);
    ASSERT_TRUE(wait_for(*device, device->signal(StreamKind::kCopyOut)))
        << device->failure().text();
    EXPECT_EQ(std::memcmp(arena.slot(from), arena.slot(from + 1), bytes), 0) << from;
  }
  EXPECT_EQ(device->counters().bounced_bytes, 0u);
  EXPECT_EQ(device->counters().bytes_in, 4 * kSlotBytes - 600);
}

TEST_F(FakeCudaDevice, PinsNothingWhereItsThreadsCannotComeToItsGpu) {
  const Arena arena(4, 2 * kPage);
  auto device = make_cuda_device();
  ASSERT_TRUE(device->allocate_staging(1, 2 * kPage).is_ok());
  fake_gpu_fail("cudaSetDevice", cudaErrorDevicesUnavailable);
  ASSERT_TRUE(device->adopt_host_memory(arena.as_host_memory()).is_ok());
  wait_for_pinning(*device);
  EXPECT_EQ(device->pinning().refused_bytes, arena.bytes());
  EXPECT_NE(device->pinning().first_refusal.find("cudaSetDevice"), std::string::npos)
      << device->pinning().first_refusal;
  device->copy(StreamKind::kCopyIn, device->staging(0), arena.slot(2), 2 * kPage);
  ASSERT_TRUE(wait_for(*device, device->signal(StreamKind::kCopyIn)));
  EXPECT_EQ(std::memcmp(device->staging(0), arena.slot(2), 2 * kPage), 0);
  EXPECT_EQ(device->counters().bounced_bytes, 2 * kPage);
}

TEST_F(FakeCudaDevice, PinsALittleLaterWhatWasRefusedAtFirst) {
  const CudaDeviceOptions options{.pins = {2 * kPage, 2 * kPage, 2 * kPage, 200},
                                  .finish_ms = 10'000};
  const Arena arena(4, 2 * kPage);
  auto device = make_cuda_device(options);
  ASSERT_TRUE(device->allocate_staging(1, 2 * kPage).is_ok());
  LifeFigures figures;
  device->count_copies_in(&figures);
  fake_gpu_fail("cudaHostRegister", cudaErrorMemoryAllocation);
  ASSERT_TRUE(device->adopt_host_memory(arena.as_host_memory()).is_ok());
  wait_for_pinning(*device);
  EXPECT_EQ(device->host_pins().refused_bytes, arena.bytes());
  device->copy(StreamKind::kCopyIn, device->staging(0), arena.slot(2), 2 * kPage);
  fake_gpu_fail("cudaHostRegister", cudaSuccess);
  const Deadline deadline = Deadline::after_ms(60'000);
  while (device->host_pins().refused_bytes > 0 && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(device->host_pins().pinned_bytes, arena.bytes());
  device->copy(StreamKind::kCopyIn, device->staging(0), arena.slot(2), 2 * kPage);
  ASSERT_TRUE(wait_for(*device, device->signal(StreamKind::kCopyIn)));
  EXPECT_EQ(figures.read().bytes_h2d, 4 * kPage);
  EXPECT_EQ(figures.read().bytes_bounced, 2 * kPage) << "only the first copy";
}

// An answer of "not yet" must not come back as the next launch's error.
TEST_F(FakeCudaDevice, ATicketThatIsAskedAboutTooEarlyLeavesNoErrorBehind) {
  Scene scene;
  const auto& device = scene.device;
  fake_gpu_hang(true);
  const Ticket early = device->signal(StreamKind::kCompute);
  EXPECT_FALSE(device->reached(early));
  device->update(scene.chunk(), AdamFactors{}, &scene.sums);
  EXPECT_TRUE(device->failure().is_ok()) << device->failure().text();
  fake_gpu_hang(false);
  EXPECT_TRUE(wait_for(*device, device->signal(StreamKind::kCompute)));
}

TEST(FakeCudaGradientMath, IsStoppedWhileItWaitsForAGpuThatHangs) {
  const uint64_t before = fake_gpu_leftovers();
  auto math = std::move(make_cuda_gradient_math(0)).value();
  std::vector<char> out(64);
  fake_gpu_hang(true);
  Status stopped;
  std::thread worker([&] { stopped = math->put(out.data(), math->staging().data(), 64); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  math->stop();
  worker.join();
  EXPECT_EQ(stopped.code(), StatusCode::kCancelled) << stopped.text();
  EXPECT_EQ(math->fill_synthetic(out.data(), DType::kF32, {}, 16).code(), StatusCode::kCancelled);
  fake_gpu_hang(false);
  math.reset();
  EXPECT_EQ(fake_gpu_leftovers(), before);
}

TEST(FakeCudaGradientMath, GivesTheStatisticsOfTheCpu) {
  const auto math = std::move(make_cuda_gradient_math(0)).value();
  std::vector<float> shard(20'000);
  ASSERT_TRUE(math->fill_synthetic(shard.data(), DType::kF32, {3, 1, Rank(2), 0}, 20'000).is_ok());
  const auto got = math->stats(shard.data(), 64, shard.size(), 0.5f, {});
  ASSERT_TRUE(got.is_ok()) << got.status().text();
  const GradStats expected = grad_stats(shard.data(), 64, shard.size(), 0.5f);
  EXPECT_GT(expected.sum_squares, 0);
  EXPECT_EQ(got.value().sum_squares, expected.sum_squares);
}

}  // namespace
}  // namespace optlease
