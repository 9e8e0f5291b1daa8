// Gradients that come from no trainer: synthetic (from a counter-based generator) or replayed from
// a safetensors file a step. Used by the GPU actor to fill its rank's gradient buffers before it
// says that a step is ready. Knows nothing of steps' states.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "actors/gpu_actor/gradient_math.h"
#include "actors/runtime/job_plan.h"
#include "actors/tensor_files/replay_file.h"
#include "actors/tensor_files/safetensors.h"
#include "shm/contract/ids.h"
#include "shm/contract/status.h"

namespace optlease {

// The broken rule of the plan's gradient source in words. Looks at no file: those of later steps
// may still be on their way. A replay path without "{step}" replays one file at every step.
Status validate_gradient_source(const JobPlan& plan);

// Not thread-safe. The same (plan, rank, step, space) always gives the same bytes.
class GradientFiller {
 public:
  // REQUIRES: `plan` and `math` outlive this; the plan's source is not kTrainer.
  GradientFiller(const JobPlan& plan, Rank rank, GradientMath* math);

  // Fills the whole gradient of `space` (its elements x bytes of its grad_dtype) at `out`, memory
  // of the math's device. Holds a bounded piece beside it. NotFound, InvalidArgument, Corrupt, Io
  // name file and tensor.
  Status fill(Step step, uint32_t space, void* out);

 private:
  Status open_replay(Step step);

  const JobPlan* plan_;
  Rank rank_;
  GradientMath* math_;
  std::optional<SafetensorsReader> replay_;  // the file of replay_step_
  Step replay_step_ = kNoStep;
};

}  // namespace optlease
