#include "actors/gpu_actor/initial_state.h"

#include <algorithm>
#include <cmath>

#include "actors/gpu_actor/tensor_import.h"
#include "kernels/random.h"

namespace optlease {
namespace {

Status check_seeded(const JobPlan& plan) {
  const auto& spaces = plan.segment.spaces;
  if (plan.model.init.size() != spaces.size())
    return Status(StatusCode::kInvalidArgument,
                  format("initial values for %zu spaces are given; the job has %zu",
                         plan.model.init.size(), spaces.size()));
  for (size_t space = 0; space < spaces.size(); ++space) {
    const std::vector<TensorInit>& inits = plan.model.init[space];
    if (inits.size() != spaces[space].tensors.size())
      return Status(StatusCode::kInvalidArgument,
                    format("space '%s': initial values for %zu tensors are given; it has %zu",
                           spaces[space].name.c_str(), inits.size(), spaces[space].tensors.size()));
    for (size_t tensor = 0; tensor < inits.size(); ++tensor)
      if (inits[tensor].kind == InitKind::kNormal &&
          !(std::isfinite(inits[tensor].std_dev) && inits[tensor].std_dev >= 0))
        return Status(StatusCode::kInvalidArgument,
                      format("tensor '%s': a standard deviation of %g is no finite number >= 0",
                             spaces[space].tensors[tensor].name.c_str(), inits[tensor].std_dev));
  }
  return Status::ok();
}

Status check_tensor(const ModelSource& model, const TensorSpec& wanted) {
  const FileTensor* stored = model.find(wanted.name);
  if (stored == nullptr)
    return Status(StatusCode::kNotFound, model.path() + ": the model has no tensor '" +
                                             wanted.name + "' that the job trains");
  if (const std::string why = why_unusable(*stored, wanted); !why.empty())
    return Status(StatusCode::kInvalidArgument,
                  model.file_of(wanted.name) + ": tensor '" + wanted.name + "' " + why);
  return Status::ok();
}

void fill_seeded(const JobPlan& plan, uint32_t space, size_t tensor, uint64_t first_in_space,
                 uint64_t count, float* out) {
  const TensorInit& init = plan.model.init[space][tensor];
  switch (init.kind) {
    case InitKind::kNormal:
      fill_normal(out, plan.model.seed, space, first_in_space, count,
                  static_cast<float>(init.std_dev));
      return;
    case InitKind::kZeros:
      std::fill_n(out, count, 0.0f);
      return;
    case InitKind::kOnes:
      std::fill_n(out, count, 1.0f);
      return;
  }
  OPTLEASE_CHECK(false, "init kind %d", static_cast<int>(init.kind));
}

}  // namespace

Result<InitialState> InitialState::open(const JobPlan& plan) {
  InitialState state(plan);
  if (plan.model.source.empty()) {
    OPTLEASE_TRY(check_seeded(plan));
    return state;
  }
  Result<ModelSource> model = ModelSource::open(plan.model.source);
  if (!model) return model.status();
  for (const SpaceSpec& space : plan.segment.spaces)
    for (const TensorSpec& tensor : space.tensors)
      OPTLEASE_TRY(check_tensor(model.value(), tensor));
  state.model_.emplace(std::move(model).value());
  return state;
}

Status InitialState::fill_main(uint32_t space, ElementRange range, float* main) const {
  OPTLEASE_CHECK(space < plan_->segment.spaces.size(), "space %u of %zu", space,
                 plan_->segment.spaces.size());
  const SpaceSpec& spec = plan_->segment.spaces[space];
  return for_each_tensor_in(
      spec, range, [&](size_t index, uint64_t first, uint64_t count, uint64_t offset) -> Status {
        const TensorSpec& tensor = spec.tensors[index];
        float* out = main + offset;
        if (!model_.has_value()) {
          fill_seeded(*plan_, space, index, tensor.flat_offset + first, count, out);
          return Status::ok();
        }
        const auto read = [&](uint64_t from, uint64_t elements, void* piece) {
          return model_->read_elements(tensor.name, from, elements, piece);
        };
        return import_elements(tensor, *model_->find(tensor.name), read, first, count, DType::kF32,
                               out);
      });
}

Status InitialState::fill(uint32_t space, ElementRange range, float* main, float* exp_avg,
                          float* exp_avg_sq) const {
  OPTLEASE_TRY(fill_main(space, range, main));
  std::fill_n(exp_avg, range.size(), 0.0f);
  std::fill_n(exp_avg_sq, range.size(), 0.0f);
  return Status::ok();
}

}  // namespace optlease
