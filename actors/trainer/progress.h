// What a trainer must know to go on exactly where it was killed: the user blob that is committed
// together with each step. Used by the training loop; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shm/contract/status.h"

namespace optlease {

inline constexpr uint32_t kProgressMagic = 0x474f5250;  // "PROG"
inline constexpr uint32_t kProgressVersion = 1;
inline constexpr uint32_t kLossTailMax = 64;

// The blob's first bytes; then loss_count doubles, the losses of the last steps, the latest last.
struct ProgressHeader {
  uint32_t magic;
  uint32_t version;
  int64_t step;          // that the blob was committed with
  uint64_t next_sample;  // of the whole job, not of one rank
  uint64_t seed;         // of the sample order
  uint64_t text_hash;
  uint32_t loss_count;
  uint32_t reserved_zero;
};
static_assert(sizeof(ProgressHeader) == 48 && std::is_trivially_copyable_v<ProgressHeader>,
              "stored in user blobs: bump kProgressVersion");

struct TrainingProgress {
  int64_t step = 0;
  uint64_t next_sample = 0;
  uint64_t seed = 0;
  uint64_t text_hash = 0;
  std::vector<double> losses;  // at most kLossTailMax; losses.back() is of `step`

  bool operator==(const TrainingProgress&) const = default;
};

// After one more step that saw `samples` samples of the job and had `loss` on this rank.
TrainingProgress advanced(const TrainingProgress& progress, uint64_t samples, double loss);

std::string encode_progress(const TrainingProgress& progress);
// Corrupt or WrongVersion where the blob is no trainer's.
Result<TrainingProgress> decode_progress(std::string_view blob);

}  // namespace optlease
