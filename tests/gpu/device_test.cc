// Copies, tickets, order, staging and pinning of the CUDA device.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "tests/gpu/gpu_support.h"

namespace optlease {
namespace {

constexpr uint64_t kSlotBytes = 2ull << 20;
constexpr uint32_t kSlots = 40;  // two pieces: 64 MiB and the rest

// Shared memory as an arena's is.
class SharedMemory {
 public:
  explicit SharedMemory(uint64_t bytes) : bytes_(bytes) {
    data_ = static_cast<char*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    OPTLEASE_CHECK(data_ != MAP_FAILED, "mmap of %llu bytes",
                   static_cast<unsigned long long>(bytes));
    std::mt19937_64 random(7);
    for (uint64_t i = 0; i < bytes; i += 8) {
      const uint64_t value = random();
      std::memcpy(data_ + i, &value, 8);
    }
  }
  ~SharedMemory() { munmap(data_, bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  char* slot(uint32_t index) const { return data_ + index * kSlotBytes; }
  HostMemory as_arena() const {
    std::vector<uint32_t> order(kSlots);
    std::iota(order.begin(), order.end(), 0u);
    return {data_, kSlotBytes, kSlots, order};
  }

 private:
  char* data_;
  uint64_t bytes_;
};

class GpuDevice : public testing::Test {
 protected:
  void SetUp() override { device_ = make_cuda_device(); }
  void TearDown() override { EXPECT_TRUE(device_->failure().is_ok()) << device_->failure().text(); }

  // To the device and back into `to`, each on its stream.
  void round_trip(char* to, const char* from, uint64_t bytes) {
    device_->copy(StreamKind::kCopyIn, device_->staging(0), from, bytes);
    device_->wait(StreamKind::kCopyOut, device_->signal(StreamKind::kCopyIn));
    device_->copy(StreamKind::kCopyOut, to, device_->staging(0), bytes);
    ASSERT_TRUE(wait_for(*device_, device_->signal(StreamKind::kCopyOut)));
  }

  void wait_for_pinning() {
    const Deadline deadline = Deadline::after_ms(60'000);
    while (device_->pinning().waiting_bytes > 0 && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ASSERT_EQ(device_->pinning().waiting_bytes, 0u);
  }

  std::unique_ptr<CudaDevice> device_;
};

TEST_F(GpuDevice, StagingIsExactlyWhatWasAskedFor) {
  ASSERT_TRUE(device_->allocate_staging(3, 12 << 20).is_ok());
  EXPECT_EQ(device_->staging_bytes(), 3u * (12u << 20));
  for (uint32_t b = 0; b < 3; ++b) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device_->staging(b)) % 256, 0u);
  }
  EXPECT_EQ(device_->staging(2) - device_->staging(1), 12 << 20);
}

TEST_F(GpuDevice, SaysWhatToDoWhenStagingDoesNotFitAndGoesOn) {
  const Status refused = device_->allocate_staging(4, 1ull << 42);
  EXPECT_EQ(refused.code(), StatusCode::kNoSpace) << refused.text();
  EXPECT_NE(refused.message().find("staging_buffers"), std::string::npos) << refused.text();
  ASSERT_TRUE(device_->allocate_staging(1, kSlotBytes).is_ok()) << "an error stuck";
  std::vector<char> from(kSlotBytes, 5), to(kSlotBytes);
  round_trip(to.data(), from.data(), kSlotBytes);
  EXPECT_EQ(to, from);
}

TEST_F(GpuDevice, CopiesMemoryThatIsNotPinnedThroughTheBounceBuffer) {
  ASSERT_TRUE(device_->allocate_staging(1, 16 << 20).is_ok());
  std::mt19937_64 random(3);
  uint64_t all = 0;
  for (uint64_t bytes :
       {1ull, 3ull, 4095ull, (4ull << 20) - 1, 4ull << 20, (4ull << 20) + 1, (9ull << 20) + 13}) {
    std::vector<char> from(bytes), to(bytes);
    for (char& byte : from) byte = static_cast<char>(random());
    round_trip(to.data(), from.data(), bytes);
    ASSERT_EQ(to, from) << bytes << " bytes";
    all += bytes;
  }
  EXPECT_EQ(device_->counters().bytes_in, all);
  EXPECT_EQ(device_->counters().bytes_out, all);
  EXPECT_EQ(device_->counters().bounced_bytes, 2 * all);
}

TEST_F(GpuDevice, CopiesPinnedSlotsDirectly) {
  SharedMemory memory(kSlots * kSlotBytes);
  ASSERT_TRUE(device_->allocate_staging(1, kSlotBytes).is_ok());
  ASSERT_TRUE(device_->adopt_host_memory(memory.as_arena()).is_ok());
  wait_for_pinning();
  EXPECT_EQ(device_->pinning().pinned_bytes, kSlots * kSlotBytes)
      << device_->pinning().first_refusal;
  for (uint32_t s = 0; s + 1 < kSlots; s += 2) {
    round_trip(memory.slot(s + 1), memory.slot(s), kSlotBytes - 8 * s);
    ASSERT_EQ(std::memcmp(memory.slot(s), memory.slot(s + 1), kSlotBytes - 8 * s), 0) << s;
  }
  EXPECT_EQ(device_->counters().bounced_bytes, 0u);
  device_.reset();  // unpins before the memory goes away
  device_ = make_cuda_device();
}

TEST_F(GpuDevice, CopiesWhileThePinningIsUnderWay) {
  SharedMemory memory(kSlots * kSlotBytes);
  ASSERT_TRUE(device_->allocate_staging(1, kSlotBytes).is_ok());
  ASSERT_TRUE(device_->adopt_host_memory(memory.as_arena()).is_ok());
  for (uint32_t s = kSlots - 1; s > 0; s -= 3) {
    round_trip(memory.slot(s - 1), memory.slot(s), kSlotBytes);
    ASSERT_EQ(std::memcmp(memory.slot(s), memory.slot(s - 1), kSlotBytes), 0) << s;
  }
  device_.reset();  // perhaps in the middle of it
  device_ = make_cuda_device();
}

TEST_F(GpuDevice, BouncesWhatCannotBePinnedAndSaysSo) {
  SharedMemory memory(kSlots * kSlotBytes);
  // A page of the second piece is registered already: registering the piece must fail.
  must(cudaHostRegister(memory.slot(35), 4096, cudaHostRegisterDefault), "cudaHostRegister");
  ASSERT_TRUE(device_->allocate_staging(1, kSlotBytes).is_ok());
  ASSERT_TRUE(device_->adopt_host_memory(memory.as_arena()).is_ok());
  wait_for_pinning();
  const PinProgress progress = device_->pinning();
  EXPECT_EQ(progress.pinned_bytes, 32 * kSlotBytes);
  EXPECT_EQ(progress.refused_bytes, 8 * kSlotBytes);
  EXPECT_NE(progress.first_refusal.find("cudaHostRegister of 16777216 bytes"), std::string::npos)
      << progress.first_refusal;
  round_trip(memory.slot(3), memory.slot(2), kSlotBytes);
  EXPECT_EQ(device_->counters().bounced_bytes, 0u);
  round_trip(memory.slot(34), memory.slot(36), kSlotBytes);
  EXPECT_EQ(device_->counters().bounced_bytes, 2 * kSlotBytes);
  EXPECT_EQ(std::memcmp(memory.slot(34), memory.slot(36), kSlotBytes), 0);
  // The refusal must not come back as a launch's error.
  GpuBytes state(4096, 0);
  AdamChunk chunk;
  chunk.main = reinterpret_cast<float*>(state.data());
  chunk.exp_avg = chunk.main + 64;
  chunk.exp_avg_sq = chunk.main + 128;
  chunk.param = state.data() + 2048;
  chunk.elements = 64;
  ChunkSums sums;
  device_->republish(chunk, &sums);
  EXPECT_TRUE(wait_for(*device_, device_->signal(StreamKind::kCompute)));
  EXPECT_TRUE(device_->failure().is_ok()) << device_->failure().text();
  must(cudaHostUnregister(memory.slot(35)), "cudaHostUnregister");
  device_.reset();
  device_ = make_cuda_device();
}

// 400 MiB a slot, registered by at most 256: copies are cut where registrations end.
TEST_F(GpuDevice, CopiesASlotThatIsSeveralPinnedPieces) {
  constexpr uint64_t kLargeSlot = (400ull << 20) + 4096;
  void* memory =
      mmap(nullptr, 2 * kLargeSlot, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  char* first = static_cast<char*>(memory);
  for (uint64_t at = 0; at < kLargeSlot; at += 509) first[at] = static_cast<char>(at * 31 + 1);
  ASSERT_TRUE(device_->allocate_staging(1, kLargeSlot).is_ok());
  ASSERT_TRUE(device_->adopt_host_memory({first, kLargeSlot, 2, {1, 0}}).is_ok());
  wait_for_pinning();
  EXPECT_EQ(device_->pinning().pinned_bytes, 2 * kLargeSlot) << device_->pinning().first_refusal;
  round_trip(first + kLargeSlot, first, kLargeSlot);
  EXPECT_EQ(std::memcmp(first + kLargeSlot, first, kLargeSlot), 0);
  EXPECT_EQ(device_->counters().bounced_bytes, 0u);
  device_.reset();
  munmap(memory, 2 * kLargeSlot);
  device_ = make_cuda_device();
}

// A call that CUDA refuses for what it was given: the device has failed, with the call's words, and
// its end is the process's. In a process of its own, because CUDA is not to be forked.
TEST(GpuDeviceDeathTest, AFailedCallFailsTheDeviceAndTheProcessEndsWithIt) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        auto device = make_cuda_device();
        std::vector<char> bytes(4096);
        device->copy(StreamKind::kCopyIn, reinterpret_cast<void*>(16), bytes.data(), bytes.size());
        const Ticket ticket = device->signal(StreamKind::kCopyIn);
        if (wait_for(*device, ticket)) _exit(40);
        if (device->failure().code() != StatusCode::kInternal) _exit(41);
        device.reset();
      },
      testing::ExitedWithCode(1), "on GPU 0.*the process ends at once");
}

// Enqueued work that never ends: the destructor waits for as long as it was told, and no longer.
TEST(GpuDeviceDeathTest, AGpuThatDoesNotFinishEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        auto made = CudaDevice::create(Rank(0), {.pins = {}, .finish_ms = 200});
        if (!made.is_ok()) _exit(40);
        std::unique_ptr<Device> device = std::move(made).value();
        device->run_on_host(StreamKind::kCopyOut,
                            [] { std::this_thread::sleep_for(std::chrono::seconds(60)); });
        device.reset();
      },
      testing::ExitedWithCode(1), "has not finished.*the process ends at once");
}

TEST_F(GpuDevice, RefusesSlotsThatAreNoWholePages) {
  SharedMemory memory(kSlots * kSlotBytes);
  HostMemory arena = memory.as_arena();
  arena.base += 64;
  EXPECT_EQ(device_->adopt_host_memory(arena).code(), StatusCode::kInvalidArgument);
}

TEST_F(GpuDevice, TicketsAreReachedInOrderAndOnlyWhenTheirWorkIsDone) {
  std::atomic<int> done{0};
  std::vector<Ticket> tickets;
  for (int i = 0; i < 3; ++i) {
    device_->run_on_host(StreamKind::kCopyIn, [&done] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++done;
    });
    tickets.push_back(device_->signal(StreamKind::kCopyIn));
  }
  for (int i = 2; i >= 0; --i) {
    const bool reached = device_->reached(tickets[static_cast<size_t>(i)]);
    EXPECT_TRUE(!reached || done.load() > i) << "ticket " << i << ", " << done << " done";
  }
  ASSERT_TRUE(wait_for(*device_, tickets[1]));
  EXPECT_TRUE(device_->reached(tickets[0]));
  EXPECT_GE(done.load(), 2);
  ASSERT_TRUE(wait_for(*device_, tickets[2]));
  EXPECT_EQ(done.load(), 3);
}

TEST_F(GpuDevice, AWaitingStreamStartsOnlyAfterTheTicket) {
  for (StreamKind waiter : {StreamKind::kCompute, StreamKind::kCopyOut}) {
    std::atomic<bool> first{false}, in_order{false};
    device_->run_on_host(StreamKind::kCopyIn, [&first] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      first = true;
    });
    device_->wait(waiter, device_->signal(StreamKind::kCopyIn));
    device_->run_on_host(waiter, [&] { in_order = first.load(); });
    ASSERT_TRUE(wait_for(*device_, device_->signal(waiter)));
    EXPECT_TRUE(in_order);
  }
}

TEST_F(GpuDevice, TheDescriptorBecomesReadableWhenATicketIsReached) {
  for (uint32_t s = 0; s < kStreamCount; ++s) {
    device_->drain_completions();
    const Ticket ticket = device_->signal(static_cast<StreamKind>(s));
    pollfd waiting{device_->completion_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, 30'000), 1) << "stream " << s;
    EXPECT_TRUE(device_->reached(ticket));
  }
}

TEST_F(GpuDevice, HandsOutMoreTicketsThanItMadeEventsFor) {
  Ticket last;
  for (int i = 0; i < 2000; ++i) last = device_->signal(StreamKind::kCompute);
  ASSERT_TRUE(wait_for(*device_, last));
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(wait_for(*device_, device_->signal(StreamKind::kCopyOut)));
  }
}

TEST_F(GpuDevice, ItsEndFinishesWhatIsEnqueued) {
  std::vector<char> from(kSlotBytes, 9), to(kSlotBytes, 0);
  std::atomic<bool> ran{false};
  ASSERT_TRUE(device_->allocate_staging(1, kSlotBytes).is_ok());
  device_->run_on_host(StreamKind::kCopyIn, [&ran] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ran = true;
  });
  device_->copy(StreamKind::kCopyIn, device_->staging(0), from.data(), kSlotBytes);
  device_->wait(StreamKind::kCopyOut, device_->signal(StreamKind::kCopyIn));
  device_->copy(StreamKind::kCopyOut, to.data(), device_->staging(0), kSlotBytes);
  device_.reset();
  EXPECT_TRUE(ran);
  EXPECT_EQ(to, from);
  device_ = make_cuda_device();
}

TEST(MakeDevice, KnowsCudaAndNamesWhatItDoesNotKnow) {
  EXPECT_TRUE(make_device("cuda", Rank(5)).is_ok());
  const Status unknown = make_device("abacus", Rank(0)).status();
  EXPECT_EQ(unknown.code(), StatusCode::kUnsupported);
  EXPECT_NE(unknown.message().find("abacus"), std::string::npos);
}

}  // namespace
}  // namespace optlease
