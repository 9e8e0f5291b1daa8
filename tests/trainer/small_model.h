// A small byte model with seeded parameters in one flat buffer, for the tests of the trainer.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "actors/runtime/job_plan.h"
#include "actors/trainer/byte_model.h"

namespace optlease {

inline constexpr ByteModelShape kSmallShape{3, 4, 10};  // C, E, H

inline uint64_t element_count(const ByteModelShape& s) {
  return kByteValues * s.embed + s.hidden * s.context * s.embed + s.hidden +
         kByteValues * s.hidden + kByteValues;
}

// The model's tensors one after another from `flat`.
template <class T>
ByteModelTensors<T> tensors_in(T* flat, const ByteModelShape& s) {
  ByteModelTensors<T> at;
  at.embed = flat;
  at.hidden_weight = at.embed + kByteValues * s.embed;
  at.hidden_bias = at.hidden_weight + s.hidden * s.context * s.embed;
  at.out_weight = at.hidden_bias + s.hidden;
  at.out_bias = at.out_weight + kByteValues * s.hidden;
  return at;
}

inline std::vector<float> seeded_params(const ByteModelShape& shape, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::vector<float> params(element_count(shape));
  // Not a standard distribution: those differ between libraries.
  for (float& value : params)
    value = scale * (static_cast<float>(random() >> 8) / 8388608.0f - 1.0f);
  return params;
}

inline std::string small_text() {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += "the quick brown fox jumps over the lazy dog " + std::to_string(i % 7) + ".\n";
  return text;
}

// A job of `world_size` ranks whose one space holds the small model.
inline JobPlan small_model_plan(const std::string& name, uint32_t world_size, DType params,
                                DType grads) {
  const auto [context, embed, hidden] = kSmallShape;
  JobPlan plan;
  plan.steps = 12;
  plan.trainer.attach_timeout_ms = 20000;
  plan.optimizer.lr = 1e-2;
  plan.optimizer.groups.push_back(
      {1e-2, 0.9, 0.999, 1e-8, 0, static_cast<uint32_t>(Rule::kAdam), 0});
  plan.segment.job_name = name;
  plan.segment.world_size = world_size;
  SpaceSpec space;
  space.name = "model";
  for (uint32_t r = 0; r < world_size; ++r) space.members.push_back(Rank{r});
  space.tensors = {{"embed.weight", {kByteValues, embed}, 0, 0, {}, {}},
                   {"hidden.weight", {hidden, context * embed}, 0, 0, {}, {}},
                   {"hidden.bias", {hidden}, 0, 0, {}, {}},
                   {"out.weight", {kByteValues, hidden}, 0, 0, {}, {}},
                   {"out.bias", {kByteValues}, 0, 0, {}, {}}};
  space.param_dtype = params;
  space.grad_dtype = grads;
  plan.segment.spaces = {space};
  const Status laid = lay_out(&plan.segment, 0);
  OPTLEASE_CHECK(laid.is_ok(), "%s", laid.text().c_str());
  return plan;
}

}  // namespace optlease
