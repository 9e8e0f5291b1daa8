// What the link can do with nothing else in the way: copies between shared memory that the device
// has adopted (pinned) and its staging, over the same Device interface that the window pipeline
// uses. `optlease-floor` runs it for `optlease bench`; one thread. It knows nothing of jobs, leases
// or stores, and its memory never has a name: whatever ends the process, nothing is left.
#pragma once

#include <memory>

#include "actors/gpu_actor/device.h"
#include "actors/runtime/floor_messages.h"
#include "shm/shared_buffer.h"

namespace optlease {

class DmaFloor {
 public:
  // Opens the device, takes the memory, has it pinned, and goes through it until no copy bounces
  // any more, for at most `warm_ms`.
  static Result<std::unique_ptr<DmaFloor>> open(const FloorSetup& setup, uint64_t warm_ms);
  ~DmaFloor();
  DmaFloor(const DmaFloor&) = delete;
  DmaFloor& operator=(const DmaFloor&) = delete;

  // One round: every copy of each direction asked for, all enqueued at once. Returns its seconds.
  Result<double> round(FloorDirection direction);
  // Rounds until order.measure_ms are over.
  Result<FloorReply> measure(const FloorOrder& order);
  uint64_t pinned_ms() const { return pinned_ms_; }

 private:
  explicit DmaFloor(const FloorSetup& setup) : setup_(setup) {}
  Status open_memory();
  Status warm_up(uint64_t warm_ms);
  Status wait_for(Ticket ticket);
  char* slot(uint64_t index) {
    return static_cast<char*>(memory_.data()) + index * setup_.slot_bytes;
  }

  FloorSetup setup_;
  uint64_t pinned_ms_ = 0;
  UniqueFd file_;
  MappedBuffer memory_;
  std::unique_ptr<Device> device_;  // goes before the memory
};

}  // namespace optlease
