// The resident run: what the state, the parameters, the records and the blobs of every step are
// where nothing ever dies, by plain loops over plain arrays. Also what a rank's gradients are and
// sum to. A trainer that is restarted in the middle of a step may have other gradients (its
// attempt); whichever were summed when the step opened are the step's for ever.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/gpu_actor/shard_sums.h"
#include "kernels/adam_math.h"
#include "shm/contract/segment_layout.h"
#include "tests/simulation/sim_context.h"

namespace optlease {

// Whose gradients were summed, by rank: each trainer's attempt at the step.
using Attempts = std::vector<uint32_t>;

class SimModel {
 public:
  explicit SimModel(const SimContext& context);

  // A rank's gradients of a whole space, before they are summed over the members.
  float gradient(Step step, Rank rank, uint32_t attempt, uint32_t space, uint64_t element) const;
  // The summed gradients of a rank's shard of a space, members added in order.
  std::vector<float> summed(Step step, const Attempts& attempts, uint32_t space, Rank rank) const;
  // Of all shards of the rank, with a checksum a chunk.
  ShardSums sums_of(Step step, const Attempts& attempts, Rank rank) const;
  StepRecord record_of(Step step, const Attempts& attempts, int64_t updates_before) const;
  AdamFactors factors_of(const StepRecord& record, uint32_t space) const;
  float initial(uint32_t space, uint64_t element) const;
  // Empty where the trainer asks to keep the one before.
  std::optional<std::string> blob(Step step, Rank rank, uint32_t attempt) const;

  // The step has opened with these gradients: its versions exist from here on.
  // REQUIRES: step == newest() + 1.
  void open(Step step, const Attempts& attempts);
  Step newest() const { return newest_; }
  const StepRecord& record(Step step) const { return at(step).record; }
  const Attempts& attempts(Step step) const { return at(step).attempts; }
  // The bytes of a chunk in its slot, less padding. REQUIRES: the step exists, and is one of the
  // two newest.
  bool chunk_is(const char* slot, Rank rank, uint32_t chunk, Step step) const;
  bool params_are(const std::vector<float>& params, uint32_t space, Step step) const;
  // What is committed with the step; none where nobody gave one yet.
  const std::optional<std::string>& blob_at(Step step, Rank rank) const {
    return at(step).blobs[rank.value];
  }

 private:
  struct Version {
    Attempts attempts;
    StepRecord record{};
    std::vector<std::optional<std::string>> blobs;              // by rank
    std::vector<std::vector<float>> main, exp_avg, exp_avg_sq;  // by space
  };
  const Version& at(Step step) const;
  void update(Version* version, uint32_t space) const;

  const SimContext& context_;
  Step newest_ = 0;
  std::map<Step, Version> versions_;
};

// The rank's shard of a space; empty where it is no member.
ElementRange shard_of(const SegmentPlan& plan, uint32_t space, Rank rank);

}  // namespace optlease
