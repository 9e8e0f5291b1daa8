#include "actors/gpu_actor/gradient_source.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "actors/gpu_actor/tensor_import.h"
#include "kernels/reduce_cpu.h"

namespace optlease {
namespace {

// Rank 0's first element: of the first space, with elements, that it is a member of.
bool holds_first_element_of_rank_0(const SegmentPlan& plan, uint32_t space) {
  for (uint32_t i = 0; i < plan.spaces.size(); ++i)
    if (plan.spaces[i].elements > 0 && member_index(plan.spaces[i], Rank(0)) >= 0)
      return i == space;
  return false;
}

Status fill_synthetic(const JobPlan& plan, Rank rank, Step step, uint32_t space, GradientMath* math,
                      void* out) {
  const SpaceSpec& spec = plan.segment.spaces[space];
  const SyntheticKey key{plan.gradients.synthetic_seed, step, rank, space};
  OPTLEASE_TRY(math->fill_synthetic(out, spec.grad_dtype, key, spec.elements));
  const auto& bad = plan.gradients.synthetic_nonfinite_steps;
  if (rank != Rank(0) || std::find(bad.begin(), bad.end(), step) == bad.end() ||
      !holds_first_element_of_rank_0(plan.segment, space))
    return Status::ok();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  uint32_t stored = 0;
  convert_from_f32(&stored, &nan, spec.grad_dtype, 1);
  return math->put(out, &stored, bytes_of(spec.grad_dtype));
}

// Elements [first, first + count) of a tensor into gradient memory, through the staging where the
// host cannot write there.
Status import_gradient(const SafetensorsReader& file, const TensorSpec& wanted,
                       const FileTensor& stored, uint64_t first, uint64_t count, DType to,
                       GradientMath* math, std::byte* out) {
  DType stored_dtype;
  (void)parse_dtype(stored.dtype, &stored_dtype);
  const uint64_t stored_bytes = bytes_of(stored_dtype);
  const auto read = [&](uint64_t from, uint64_t elements, void* piece) {
    return file.read(stored, from * stored_bytes, elements * stored_bytes, piece);
  };
  const std::span<std::byte> staging = math->staging();
  if (staging.empty()) return import_elements(wanted, stored, read, first, count, to, out);
  const uint64_t bytes = bytes_of(to);
  for (uint64_t at = 0; at < count;) {
    const uint64_t elements = std::min(staging.size() / bytes, count - at);
    OPTLEASE_TRY(import_elements(wanted, stored, read, first + at, elements, to, staging.data()));
    OPTLEASE_TRY(math->put(out + at * bytes, staging.data(), elements * bytes));
    at += elements;
  }
  return Status::ok();
}

Status fill_replay(const SafetensorsReader& file, const SpaceSpec& space, GradientMath* math,
                   void* out) {
  auto* to = static_cast<std::byte*>(out);
  return for_each_tensor_in(
      space, {0, space.elements},
      [&](size_t index, uint64_t first, uint64_t count, uint64_t offset) -> Status {
        const TensorSpec& wanted = space.tensors[index];
        const FileTensor* stored = file.find(wanted.name);
        if (stored == nullptr)
          return Status(StatusCode::kNotFound, file.path() + ": has no tensor '" + wanted.name +
                                                   "': its gradient cannot be replayed");
        if (const std::string why = why_unusable(*stored, wanted); !why.empty())
          return Status(StatusCode::kInvalidArgument,
                        file.path() + ": tensor '" + wanted.name + "' " + why);
        return import_gradient(file, wanted, *stored, first, count, space.grad_dtype, math,
                               to + offset * bytes_of(space.grad_dtype));
      });
}

}  // namespace

Status validate_gradient_source(const JobPlan& plan) {
  if (plan.gradients.source == GradientSource::kReplay && plan.gradients.replay_path.empty())
    return Status(StatusCode::kInvalidArgument,
                  "gradients are to be replayed but no replay path is given");
  return Status::ok();
}

GradientFiller::GradientFiller(const JobPlan& plan, Rank rank, GradientMath* math)
    : plan_(&plan), rank_(rank), math_(math) {
  OPTLEASE_CHECK(plan.gradients.source != GradientSource::kTrainer,
                 "rank %u: the trainer fills the gradients", rank.value);
}

Status GradientFiller::fill(Step step, uint32_t space, void* out) {
  OPTLEASE_CHECK(space < plan_->segment.spaces.size(), "space %u of %zu", space,
                 plan_->segment.spaces.size());
  if (plan_->gradients.source == GradientSource::kSynthetic)
    return fill_synthetic(*plan_, rank_, step, space, math_, out);
  OPTLEASE_TRY(open_replay(step));
  return fill_replay(*replay_, plan_->segment.spaces[space], math_, out);
}

Status GradientFiller::open_replay(Step step) {
  if (replay_.has_value() && replay_step_ == step) return Status::ok();
  replay_.reset();
  Result<SafetensorsReader> file =
      SafetensorsReader::open(replay_file_of(plan_->gradients.replay_path, step, rank_));
  if (!file)
    return Status(file.status().code(),
                  format("gradients of step %lld, rank %u: %s", static_cast<long long>(step),
                         rank_.value, file.status().message().c_str()));
  replay_.emplace(std::move(file).value());
  replay_step_ = step;
  return Status::ok();
}

}  // namespace optlease
