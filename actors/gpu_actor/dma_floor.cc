#include "actors/gpu_actor/dma_floor.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "actors/runtime/clock.h"
#include "shm/eintr.h"
#include "shm/reserve.h"

namespace optlease {
namespace {

constexpr const char* kSharedMemory = "/dev/shm";
constexpr int kRoundMsMax = 120'000;  // a link that is slower than this is broken
constexpr int kPollMs = 100;
constexpr uint32_t kStagingIn = 0, kStagingOut = 1;

}  // namespace

Result<std::unique_ptr<DmaFloor>> DmaFloor::open(const FloorSetup& setup, uint64_t warm_ms) {
  std::unique_ptr<DmaFloor> floor(new DmaFloor(setup));
  auto device = make_device(setup.device.c_str(), Rank(setup.rank));
  if (!device.is_ok()) return device.status();
  floor->device_ = std::move(device).value();
  OPTLEASE_TRY(floor->device_->allocate_staging(2, setup.slot_bytes));
  OPTLEASE_TRY(floor->open_memory());
  OPTLEASE_TRY(floor->warm_up(warm_ms));
  return floor;
}

// The device unpins the memory, so it goes first.
DmaFloor::~DmaFloor() { device_.reset(); }

// A file of the same file system as a job's segments that was never given a name.
Status DmaFloor::open_memory() {
  file_ = UniqueFd(retry_eintr(
      [&] { return ::open(kSharedMemory, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR); }));
  if (!file_) {
    return {StatusCode::kIo, format("no unnamed file in %s: %s", kSharedMemory, strerror(errno))};
  }
  const uint64_t bytes = setup_.memory_bytes();
  HugePages pages;
  OPTLEASE_TRY(reserve_space(file_.get(), bytes, "the memory of the floor's copies", &pages));
  Result<MappedBuffer> mapped = MappedBuffer::map(file_.get(), bytes);
  if (!mapped.is_ok()) return mapped.status();
  memory_ = std::move(mapped).value();
  HostMemory adopted;
  adopted.base = slot(0);
  adopted.slot_bytes = setup_.slot_bytes;
  adopted.slot_count = 2 * setup_.copies;
  return device_->adopt_host_memory(adopted);
}

// Rounds in which copies still bounce are no floor. Memory that cannot be pinned stays so: the
// replies tell how much bounced.
Status DmaFloor::warm_up(uint64_t warm_ms) {
  const int64_t begun = now_ms();
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(warm_ms));
  while (true) {
    const uint64_t before = device_->counters().bounced_bytes;
    const auto seconds = round(FloorDirection::kBoth);
    if (!seconds.is_ok()) return seconds.status();
    if (device_->counters().bounced_bytes == before || deadline.passed()) break;
  }
  pinned_ms_ = static_cast<uint64_t>(now_ms() - begun);
  // The first pass over pinned memory is not like the others either.
  const auto seconds = round(FloorDirection::kBoth);
  return seconds.status();
}

Status DmaFloor::wait_for(Ticket ticket) {
  const Deadline deadline = Deadline::after_ms(kRoundMsMax);
  while (!device_->reached(ticket)) {
    if (!device_->failure().is_ok()) return device_->failure();
    if (deadline.passed()) {
      return {StatusCode::kTimeout,
              format("copies of %llu bytes took more than %d s",
                     static_cast<unsigned long long>(setup_.round_bytes()), kRoundMsMax / 1000)};
    }
    pollfd waiting{device_->completion_fd(), POLLIN, 0};
    (void)poll(&waiting, 1, kPollMs);
    device_->drain_completions();
  }
  return device_->failure();
}

Result<double> DmaFloor::round(FloorDirection direction) {
  const bool in = direction != FloorDirection::kOut;
  const bool out = direction != FloorDirection::kIn;
  const int64_t begun = now_us();
  for (uint32_t c = 0; c < setup_.copies; ++c) {
    if (in) {
      device_->copy(StreamKind::kCopyIn, device_->staging(kStagingIn), slot(c), setup_.copy_bytes);
    }
    if (out) {
      device_->copy(StreamKind::kCopyOut, slot(uint64_t{setup_.copies} + c),
                    device_->staging(kStagingOut), setup_.copy_bytes);
    }
  }
  std::vector<Ticket> ends;
  if (in) ends.push_back(device_->signal(StreamKind::kCopyIn));
  if (out) ends.push_back(device_->signal(StreamKind::kCopyOut));
  for (const Ticket& end : ends) OPTLEASE_TRY(wait_for(end));
  return static_cast<double>(std::max<int64_t>(now_us() - begun, 1)) * 1e-6;
}

Result<FloorReply> DmaFloor::measure(const FloorOrder& order) {
  const uint64_t bounced = device_->counters().bounced_bytes;
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(order.measure_ms));
  std::vector<double> rounds;
  do {
    const auto seconds = round(order.direction);
    if (!seconds.is_ok()) return seconds.status();
    rounds.push_back(seconds.value());
  } while (!deadline.passed() && rounds.size() < kFloorRoundsMax);
  FloorReply reply;
  reply.rounds = rounds.size();
  reply.bounced_bytes = device_->counters().bounced_bytes - bounced;
  reply.best_round_seconds = *std::min_element(rounds.begin(), rounds.end());
  const auto middle = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
  std::nth_element(rounds.begin(), middle, rounds.end());
  reply.round_seconds = *middle;
  return reply;
}

}  // namespace optlease
