#include "tests/simulation/sim_model.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/adam_cpu.h"
#include "kernels/checksum.h"

namespace optlease {
namespace {

constexpr double kMaxNorm = 0.5;

uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15ull;
  return value ^ (value >> 29);
}

// In [-1, 1).
float number_of(uint64_t seed) {
  return static_cast<float>(static_cast<int64_t>(mixed(seed) >> 40) - (1 << 23)) / (1 << 23);
}

GroupParams group_params() {
  return {1e-2, 0.9, 0.99, 1e-8, 0.01, static_cast<uint32_t>(Rule::kAdamW), 0};
}

}  // namespace

ElementRange shard_of(const SegmentPlan& plan, uint32_t space, Rank rank) {
  const int member = member_index(plan.spaces[space], rank);
  if (member < 0) return {};
  return shard_range(plan.spaces[space], static_cast<uint32_t>(member));
}

SimModel::SimModel(const SimContext& context) : context_(context) {
  Version first;
  first.blobs.resize(context.options.ranks);
  for (uint32_t s = 0; s < context.plan.spaces.size(); ++s) {
    const uint64_t elements = context.plan.spaces[s].elements;
    first.main.emplace_back(elements);
    for (uint64_t i = 0; i < elements; ++i) first.main[s][i] = initial(s, i);
    first.exp_avg.emplace_back(elements, 0.0f);
    first.exp_avg_sq.emplace_back(elements, 0.0f);
  }
  versions_.emplace(0, std::move(first));
}

float SimModel::initial(uint32_t space, uint64_t element) const {
  return number_of(space * 1'000'003ull + element + 1);
}

float SimModel::gradient(Step step, Rank rank, uint32_t attempt, uint32_t space,
                         uint64_t element) const {
  const bool nan = rank.value == 0 && space == 0 && element == 3 &&
                   context_.options.nonfinite_steps.contains(step);
  if (nan) return std::numeric_limits<float>::quiet_NaN();
  const uint64_t which = (static_cast<uint64_t>(step) << 40) | (uint64_t{rank.value} << 32) |
                         (uint64_t{attempt} << 20) | (uint64_t{space} << 16);
  return number_of(mixed(which) + element);
}

std::vector<float> SimModel::summed(Step step, const Attempts& attempts, uint32_t space,
                                    Rank rank) const {
  const ElementRange shard = shard_of(context_.plan, space, rank);
  std::vector<float> sum(shard.size(), 0.0f);
  for (const Rank member : context_.plan.spaces[space].members) {
    for (uint64_t i = 0; i < sum.size(); ++i) {
      sum[i] += gradient(step, member, attempts[member.value], space, shard.begin + i);
    }
  }
  return sum;
}

ShardSums SimModel::sums_of(Step step, const Attempts& attempts, Rank rank) const {
  ShardSums sums{step, {}};
  uint64_t first_word = 0;
  uint32_t space = UINT32_MAX;
  std::vector<float> shard;
  ElementRange range;
  for (const ChunkSpec& chunk : context_.arenas[rank.value].chunks) {
    if (chunk.space != space) {
      first_word += range.size();
      space = chunk.space;
      range = shard_of(context_.plan, space, rank);
      shard = summed(step, attempts, space, rank);
    }
    const uint64_t in_shard = chunk.range.begin - range.begin;
    sums.of_chunk.push_back(
        checksum_words(shard.data() + in_shard, chunk.range.size(), first_word + in_shard));
  }
  return sums;
}

StepRecord SimModel::record_of(Step step, const Attempts& attempts, int64_t updates_before) const {
  double sum_squares = 0;
  for (uint32_t s = 0; s < context_.plan.spaces.size(); ++s) {
    for (const Rank member : context_.plan.spaces[s].members) {
      for (const float value : summed(step, attempts, s, member)) {
        sum_squares += static_cast<double>(value) * value;
      }
    }
  }
  const double norm = std::sqrt(sum_squares);
  StepRecord record{};
  record.step = step;
  record.skipped = std::isfinite(norm) ? 0 : 1;
  record.update_count = updates_before + (record.skipped ? 0 : 1);
  record.group_count = 1;
  record.groups[0] = group_params();
  record.grad_norm = std::isnan(norm) ? std::nan("") : norm;
  const double clip = record.skipped ? 0 : clip_coefficient(norm, kMaxNorm);
  record.grad_coefficient = static_cast<float>(clip);
  record.checksum = checksum_of(record);
  return record;
}

AdamFactors SimModel::factors_of(const StepRecord& record, uint32_t space) const {
  const auto members = static_cast<float>(context_.plan.spaces[space].members.size());
  return make_adam_factors(record.groups[context_.plan.spaces[space].group], record.update_count,
                           record.grad_coefficient / members);
}

std::optional<std::string> SimModel::blob(Step step, Rank rank, uint32_t attempt) const {
  if ((step + rank.value) % 4 == 0) return std::nullopt;
  return format("blob of step %lld, rank %u, attempt %u", static_cast<long long>(step), rank.value,
                attempt);
}

const SimModel::Version& SimModel::at(Step step) const {
  const auto found = versions_.find(step);
  OPTLEASE_CHECK(found != versions_.end(), "step %lld does not exist, the newest is %lld",
                 static_cast<long long>(step), static_cast<long long>(newest_));
  return found->second;
}

void SimModel::update(Version* version, uint32_t space) const {
  const AdamFactors factors = factors_of(version->record, space);
  for (const Rank member : context_.plan.spaces[space].members) {
    const ElementRange shard = shard_of(context_.plan, space, member);
    const std::vector<float> grads = summed(version->record.step, version->attempts, space, member);
    for (uint64_t i = 0; i < shard.size(); ++i) {
      adam_element(version->main[space][shard.begin + i], version->exp_avg[space][shard.begin + i],
                   version->exp_avg_sq[space][shard.begin + i], grads[i], factors);
    }
  }
}

void SimModel::open(Step step, const Attempts& attempts) {
  OPTLEASE_CHECK(step == newest_ + 1, "step %lld opens behind %lld", static_cast<long long>(step),
                 static_cast<long long>(newest_));
  Version next = at(newest_);
  const int64_t before = next.record.update_count;
  next.attempts = attempts;
  next.record = record_of(step, attempts, before);
  if (next.record.skipped == 0) {
    for (uint32_t s = 0; s < context_.plan.spaces.size(); ++s) update(&next, s);
  }
  for (uint32_t r = 0; r < context_.options.ranks && context_.options.trainers; ++r) {
    if (auto given = blob(step, Rank{r}, attempts[r])) next.blobs[r] = std::move(given);
  }
  newest_ = step;
  versions_.emplace(step, std::move(next));
  versions_.erase(step - 2);
}

bool SimModel::chunk_is(const char* slot, Rank rank, uint32_t chunk, Step step) const {
  const Version& version = at(step);
  const ChunkSpec& spec = context_.arenas[rank.value].chunks[chunk];
  const std::vector<float>* arrays[] = {&version.main[spec.space], &version.exp_avg[spec.space],
                                        &version.exp_avg_sq[spec.space]};
  for (const std::vector<float>* array : arrays) {
    const size_t bytes = spec.range.size() * sizeof(float);
    if (std::memcmp(slot, array->data() + spec.range.begin, bytes) != 0) return false;
    slot += array_stride_bytes(spec.range.size());
  }
  return true;
}

bool SimModel::params_are(const std::vector<float>& params, uint32_t space, Step step) const {
  const std::vector<float>& main = at(step).main[space];
  return params.size() == main.size() &&
         std::memcmp(params.data(), main.data(), main.size() * sizeof(float)) == 0;
}

}  // namespace optlease
