#include "launcher/replay_files.h"

#include <algorithm>

#include "actors/tensor_files/replay_file.h"
#include "actors/tensor_files/safetensors.h"
#include "launcher/committed_word.h"

namespace optlease {
namespace {

Status check_file(const JobPlan& plan, const std::string& path, Rank rank) {
  const auto file = SafetensorsReader::open(path);
  if (!file) return file.status();
  for (const SpaceSpec& space : plan.segment.spaces) {
    if (member_index(space, rank) < 0) continue;
    for (const TensorSpec& wanted : space.tensors) {
      const FileTensor* found = file.value().find(wanted.name);
      if (found == nullptr) {
        return {StatusCode::kNotFound, path + ": has no tensor '" + wanted.name + "'"};
      }
      if (wanted.global_shape.empty() && found->shape != wanted.shape) {
        return {StatusCode::kInvalidArgument,
                path + ": tensor '" + wanted.name + "' has another shape than the parameter"};
      }
    }
  }
  return Status::ok();
}

}  // namespace

Step next_step_of(const RunDirectory& run) {
  const auto word = CommittedWord::open(run.control_segment());
  const Step committed = word ? word.value().read().value_or(0) : 0;
  return std::max<Step>(committed, 0) + 1;
}

Status check_replay_files(const JobPlan& plan, Step next, const std::string& place) {
  if (plan.gradients.source != GradientSource::kReplay || next > plan.steps) return Status::ok();
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    const std::string path = replay_file_of(plan.gradients.replay_path, next, Rank(r));
    const Status usable = check_file(plan, path, Rank(r));
    if (usable.is_ok()) continue;
    return {StatusCode::kInvalidArgument,
            place + ": gradients.replay_path: the gradients of step " + std::to_string(next) +
                ", rank " + std::to_string(r) + ", the next to be replayed: " + usable.message()};
  }
  return Status::ok();
}

}  // namespace optlease
