// The checksums of a rank's summed gradients, one a chunk. They are made with the sums
// (gradient_math.h) and kept in the memory of the incarnation that made them; their total travels
// with the step's record. The update is compared with them chunk by chunk (window_pipeline.h). An
// incarnation that did not make the sums reads them through with SumsCheck before its first update,
// and has a sum a chunk from then on, too. It knows neither segments nor messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/gpu_actor/device.h"
#include "shm/contract/segment_layout.h"

namespace optlease {

struct ShardSums {
  Step step = kNoStep;
  std::vector<uint64_t> of_chunk;  // ChunkIndex order; word indices are SumsDigestKind::kChecksum's

  SumsDigest digest() const;  // REQUIRES: step is not kNoStep
};

// One chunk's summed gradients, where the device reads them.
struct GradRange {
  const float* at = nullptr;
  uint64_t elements = 0;
  uint64_t first_word = 0;
};

// Reads the shards through on the device's compute stream, some of it at a time, and compares.
// Nothing may write to them meanwhile. Not movable: what is enqueued writes into it, so that it
// lives until it is over or the device is gone.
class SumsCheck {
 public:
  // `place`: where they lie, in words.
  SumsCheck(Device& device, Rank rank, const SumsDigest& recorded, std::vector<GradRange> chunks,
            std::string place);
  SumsCheck(const SumsCheck&) = delete;
  SumsCheck& operator=(const SumsCheck&) = delete;

  // Enqueues more where what was enqueued is done; never waits. True once all are read and are what
  // was recorded; Corrupt, with both sums, where they are not.
  Result<bool> advance();
  // REQUIRES: advance() has returned true.
  ShardSums sums() const;

 private:
  void enqueue();
  Status compare() const;

  Device& device_;
  Rank rank_;
  SumsDigest recorded_;
  std::vector<GradRange> chunks_;
  std::string place_;
  std::vector<ChunkSums> sums_;  // by chunk
  size_t chunk_ = 0;             // the one that is read next,
  uint64_t at_ = 0;              // from this element on
  bool under_way_ = false;
  Ticket done_;
};

}  // namespace optlease
