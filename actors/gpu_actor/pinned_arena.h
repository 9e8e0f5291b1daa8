// Pins a rank's arena for DMA, piece by piece, in the background: pages are populated and pieces
// registered by a few threads in the order in which they will be wanted, so that the first windows
// can be copied at once. Whoever copies asks first whether the range is pinned; a piece that is not
// yet, or cannot be, goes through a bounce buffer instead. What is refused is tried once more a
// little later: a predecessor in its teardown may hold what its user may pin. Used by the CUDA
// device. All methods are for its one thread; the threads in here touch nothing but the pieces'
// states.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/gpu_actor/device.h"
#include "actors/gpu_actor/pin_plan.h"

namespace optlease {

struct PinProgress {
  uint64_t pinned_bytes = 0;
  uint64_t refused_bytes = 0;  // as they are now
  uint64_t waiting_bytes = 0;
  std::string first_refusal;  // in words; empty where there was none
};

class PinnedArena {
 public:
  // Begins. `device` is a CUDA ordinal whose context exists.
  PinnedArena(const HostMemory& memory, int device, const PinLimits& limits);
  // Ends the threads (each after the piece in hand), then unpins. REQUIRES: no copy is under way.
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  // How many of [address, address + bytes) lie in one piece with the first of them; outside the
  // arena all. A copy may not go over that border.
  uint64_t in_one_piece(const void* address, uint64_t bytes) const;
  // True when one pinned piece holds all of it.
  bool covers(const void* address, uint64_t bytes) const;
  PinProgress progress() const;

 private:
  enum class State : uint8_t { kWaiting, kPinned, kRefused };
  struct Piece {
    char* base = nullptr;
    uint64_t bytes = 0;
    std::atomic<State> state{State::kWaiting};
  };

  void run();
  void try_again(const std::vector<Piece*>& refused);
  bool pin(Piece& piece);
  void refuse(Piece& piece, cudaError_t error, const char* call);
  const Piece* piece_at(const void* address) const;

  // Constant after construction.
  char* base_;
  uint64_t unit_bytes_ = 0;  // of the plan: a slot, or a part of one
  int device_;
  int64_t again_ms_;
  int64_t started_us_;
  std::vector<Piece> pieces_;            // in pinning order
  std::vector<uint32_t> piece_of_unit_;  // index into pieces_

  std::atomic<size_t> next_{0};
  std::atomic<size_t> finished_{0};
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::string first_refusal_;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace optlease
