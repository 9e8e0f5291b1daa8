// The collectives and the gradient math of a rank's device, chosen by the job's ranks.device. Used
// by the GPU actor when it opens its parts.
#pragma once

#include <memory>
#include <string>

#include "actors/gpu_actor/collectives.h"
#include "actors/gpu_actor/gradient_math.h"
#include "shm/contract/ids.h"
#include "shm/contract/status.h"

namespace optlease {

struct CollectiveParts {
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<GradientMath> math;
};

// Sets what the libraries below read from the environment and the user has not set. REQUIRES: no
// other thread runs yet.
void prepare_collectives_environment();

// `device` is "cpu" or "cuda"; Unsupported, with words, where this build or machine has it not.
Result<CollectiveParts> make_collective_parts(const std::string& device, Rank rank,
                                              const std::string& group_directory);

// Whether a later attempt in the same process can go better than the one that ended so.
bool collectives_can_recover(const Status& status);

}  // namespace optlease
