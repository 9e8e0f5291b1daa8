// The state that a job starts from (step 0): main weights from the plan's seed or from a model's
// safetensors files, moments zero. Used by the GPU actor while it initialises its chunks, and by
// the launcher's checks before anything starts. The bytes do not depend on how a space is cut.
#pragma once

#include <cstdint>
#include <optional>

#include "actors/runtime/job_plan.h"
#include "actors/tensor_files/model_source.h"
#include "shm/contract/geometry.h"
#include "shm/contract/status.h"

namespace optlease {

// Thread-safe once opened.
class InitialState {
 public:
  // Opens the model source, if there is one: every tensor of the plan is in it, with the right
  // shape and a dtype that can be converted. A seeded table has one entry a tensor. Errors name
  // file and tensor. REQUIRES: `plan` outlives the result.
  static Result<InitialState> open(const JobPlan& plan);

  // The main weights of `range` of `space` into main[0 .. range.size()).
  Status fill_main(uint32_t space, ElementRange range, float* main) const;
  // The same, and zeros for the moments.
  Status fill(uint32_t space, ElementRange range, float* main, float* exp_avg,
              float* exp_avg_sq) const;

 private:
  explicit InitialState(const JobPlan& plan) : plan_(&plan) {}

  const JobPlan* plan_;
  std::optional<ModelSource> model_;
};

}  // namespace optlease
