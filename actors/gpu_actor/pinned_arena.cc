#include "actors/gpu_actor/pinned_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "actors/gpu_actor/cuda_status.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"
#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr int64_t kStopLookMs = 10;
constexpr size_t kThreads = 4;  // more gain nothing: the driver's own lock is then the limit

// Maps the pages, so that registration finds them. Never writes: others may own the bytes now.
void populate(char* base, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  int result;
  do {
    result = madvise(base, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
#endif
  for (uint64_t at = 0; at < bytes; at += kPageBytes) {
    (void)*static_cast<volatile const char*>(base + at);
  }
}

}  // namespace

PinnedArena::PinnedArena(const HostMemory& memory, int device, const PinLimits& limits)
    : base_(memory.base), device_(device), again_ms_(limits.again_ms), started_us_(now_us()) {
  const PinUnits units = pin_units(memory, limits);
  unit_bytes_ = units.bytes;
  piece_of_unit_.resize(units.count);
  const uint64_t arena_bytes = memory.slot_bytes * memory.slot_count;
  const std::vector<PinPiece> plan = plan_pins(units.count, units.bytes, units.order, limits);
  pieces_ = std::vector<Piece>(plan.size());
  for (uint32_t p = 0; p < plan.size(); ++p) {
    const uint64_t offset = plan[p].first * unit_bytes_;
    pieces_[p].base = base_ + offset;
    pieces_[p].bytes = std::min(plan[p].count * unit_bytes_, arena_bytes - offset);
    for (uint32_t u = 0; u < plan[p].count; ++u) piece_of_unit_[plan[p].first + u] = p;
  }
  for (size_t t = 0; t < std::min(kThreads, pieces_.size()); ++t) {
    threads_.emplace_back([this] { run(); });
  }
}

PinnedArena::~PinnedArena() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
  for (Piece& piece : pieces_) {
    if (piece.state.load() == State::kPinned) (void)cudaHostUnregister(piece.base);
  }
  (void)cudaGetLastError();
}

void PinnedArena::run() {
  const cudaError_t current = cudaSetDevice(device_);
  std::vector<Piece*> refused;
  while (!stopping_) {
    const size_t mine = next_.fetch_add(1);
    if (mine >= pieces_.size()) break;
    Piece& piece = pieces_[mine];
    // On another GPU than its own a registration would cost that one memory and serve nobody.
    if (current != cudaSuccess) {
      refuse(piece, current, "cudaSetDevice for the pinning");
    } else if (!pin(piece)) {
      refused.push_back(&piece);
    }
    if (finished_.fetch_add(1) + 1 != pieces_.size()) continue;
    const PinProgress now = progress();
    log_info("pinned %llu of %llu bytes in %lld ms, %zu pieces",
             static_cast<unsigned long long>(now.pinned_bytes),
             static_cast<unsigned long long>(now.pinned_bytes + now.refused_bytes),
             static_cast<long long>((now_us() - started_us_) / 1000), pieces_.size());
  }
  try_again(refused);
}

void PinnedArena::try_again(const std::vector<Piece*>& refused) {
  if (refused.empty()) return;
  const Deadline then = Deadline::after_ms(again_ms_);
  while (!then.passed()) {
    if (stopping_) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(then.remaining_ms(kStopLookMs)));
  }
  uint64_t bytes = 0;
  for (Piece* piece : refused) {
    if (stopping_) return;
    if (pin(*piece)) bytes += piece->bytes;
  }
  if (bytes == 0) return;
  log_warn("%llu bytes that were refused at first are pinned now",
           static_cast<unsigned long long>(bytes));
}

bool PinnedArena::pin(Piece& piece) {
  populate(piece.base, piece.bytes);
  const cudaError_t error = cudaHostRegister(piece.base, piece.bytes, cudaHostRegisterDefault);
  if (error == cudaSuccess) {
    piece.state.store(State::kPinned, std::memory_order_release);
    return true;
  }
  refuse(piece, error, "cudaHostRegister");
  return false;
}

void PinnedArena::refuse(Piece& piece, cudaError_t error, const char* call) {
  const Status refused =
      cuda_status(error,
                  format("%s of %llu bytes at arena offset %llu", call,
                         static_cast<unsigned long long>(piece.bytes),
                         static_cast<unsigned long long>(piece.base - base_)),
                  "copies of these bytes go through a bounce buffer, several times slower; look at "
                  "RLIMIT_MEMLOCK and the cgroup's memory limit");
  piece.state.store(State::kRefused, std::memory_order_release);
  std::lock_guard lock(mutex_);
  if (!first_refusal_.empty()) return;
  first_refusal_ = refused.text();
  log_warn("%s", first_refusal_.c_str());
}

const PinnedArena::Piece* PinnedArena::piece_at(const void* address) const {
  const char* begin = static_cast<const char*>(address);
  if (begin < base_) return nullptr;
  const uint64_t unit = static_cast<uint64_t>(begin - base_) / unit_bytes_;
  if (unit >= piece_of_unit_.size()) return nullptr;
  const Piece& piece = pieces_[piece_of_unit_[unit]];
  return begin < piece.base + piece.bytes ? &piece : nullptr;
}

uint64_t PinnedArena::in_one_piece(const void* address, uint64_t bytes) const {
  const Piece* piece = piece_at(address);
  if (piece == nullptr) return bytes;
  const char* begin = static_cast<const char*>(address);
  return std::min(bytes, static_cast<uint64_t>(piece->base + piece->bytes - begin));
}

bool PinnedArena::covers(const void* address, uint64_t bytes) const {
  const Piece* piece = piece_at(address);
  return piece != nullptr && in_one_piece(address, bytes) == bytes &&
         piece->state.load(std::memory_order_acquire) == State::kPinned;
}

PinProgress PinnedArena::progress() const {
  PinProgress progress;
  for (const Piece& piece : pieces_) {
    switch (piece.state.load(std::memory_order_acquire)) {
      case State::kWaiting:
        progress.waiting_bytes += piece.bytes;
        break;
      case State::kPinned:
        progress.pinned_bytes += piece.bytes;
        break;
      case State::kRefused:
        progress.refused_bytes += piece.bytes;
        break;
    }
  }
  std::lock_guard lock(mutex_);
  progress.first_refusal = first_refusal_;
  return progress;
}

}  // namespace optlease
