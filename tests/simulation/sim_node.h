// Memory of a simulated node that outlives actors and trainers: the buffers in the launcher's
// vault, which end with the launcher, and the gradient segments, which do not.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/simulation/sim_model.h"

namespace optlease {

struct SimRankMemory {
  std::vector<std::vector<float>> params;  // by space; empty where the rank is no member
  // What the trainer's gradient buffer holds: the numbers themselves are the model's.
  Step grads_step = kNoStep;
  uint32_t grads_attempt = 0;
  // The gradient segment: shards, spaces ascending, and whose gradients were summed into it.
  std::vector<std::vector<float>> shards;
  Attempts summed_attempts;
};

struct SimNode {
  explicit SimNode(const SimContext& context) : ranks(context.options.ranks) {
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      for (uint32_t s = 0; s < context.plan.spaces.size(); ++s) {
        ranks[r].shards.emplace_back(shard_of(context.plan, s, Rank{r}).size());
      }
    }
    forget_vault(context);
  }
  // The launcher is gone: another one's buffers are new memory.
  void forget_vault(const SimContext& context) {
    constexpr float kNothingYet = -77.0f;
    for (uint32_t r = 0; r < ranks.size(); ++r) {
      ranks[r].params.clear();
      for (const SpaceSpec& space : context.plan.spaces) {
        const bool member = member_index(space, Rank{r}) >= 0;
        ranks[r].params.emplace_back(member ? space.elements : 0, kNothingYet);
      }
      ranks[r].grads_step = kNoStep;
    }
  }
  std::vector<SimRankMemory> ranks;
};

}  // namespace optlease
