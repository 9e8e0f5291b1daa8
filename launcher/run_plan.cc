#include "launcher/run_plan.h"

#include <algorithm>
#include <map>

#include "actors/runtime/child_args.h"
#include "launcher/config_schema.h"

namespace optlease {
namespace {

using Notes = std::vector<std::string>;

bool same(const GroupParams& a, const GroupParams& b) {
  return a.lr == b.lr && a.beta1 == b.beta1 && a.beta2 == b.beta2 && a.eps == b.eps &&
         a.weight_decay == b.weight_decay && a.rule == b.rule;
}

// The index of the group with these parameters, made where there is none.
uint32_t group_of(const GroupParams& params, std::vector<GroupParams>* groups) {
  const auto found = std::find_if(groups->begin(), groups->end(),
                                  [&](const GroupParams& g) { return same(g, params); });
  const auto index = static_cast<uint32_t>(found - groups->begin());
  if (found == groups->end()) groups->push_back(params);
  return index;
}

// Why there is no plan: the key, and what was found and is allowed. Its place is the loader's.
using Problem = std::optional<ConfigError>;

Problem problem(std::string key, std::string text) {
  return ConfigError{"", std::move(key), std::move(text)};
}

std::string space_key(size_t space, const char* key) {
  return "spaces." + std::to_string(space) + "." + key;
}

SpaceSpec space_of(const Config& config, const SpaceConfig& wanted, std::vector<TensorInit>* init) {
  SpaceSpec space;
  space.name = wanted.name;
  space.members = wanted.ranks;
  space.param_dtype = wanted.param_dtype;
  space.grad_dtype = wanted.grad_dtype;
  for (const ParameterConfig& parameter : config.parameters) {
    if (parameter.space != wanted.name) continue;
    TensorSpec tensor;
    tensor.name = parameter.name;
    tensor.shape = parameter.shape;
    space.tensors.push_back(std::move(tensor));
    init->push_back(parameter.init);
  }
  return space;
}

Problem plan_spaces(const Config& config, JobPlan* plan) {
  Problem found;
  for (size_t s = 0; s < config.spaces.size(); ++s) {
    const SpaceConfig& wanted = config.spaces[s];
    GroupParams params = config.optimizer;
    params.lr *= wanted.lr_scale;
    params.weight_decay = wanted.weight_decay;
    std::vector<TensorInit> init;
    SpaceSpec space = space_of(config, wanted, &init);
    space.group = group_of(params, &plan->optimizer.groups);
    plan->segment.spaces.push_back(std::move(space));
    plan->model.init.push_back(std::move(init));
    if (!found && !(params.lr <= kFp32Max)) {
      return problem(space_key(s, "lr_scale"),
                     format("%g times optimizer.lr, %g, is above %g, which the update in FP32 does "
                            "not hold; lower either",
                            wanted.lr_scale, config.optimizer.lr, kFp32Max));
    }
    if (found || plan->optimizer.groups.size() <= kGroupCountMax) continue;
    found = problem(space_key(s, wanted.lr_scale != 1 ? "lr_scale" : "weight_decay"), "");
  }
  if (!found) return found;
  found->text = format(
      "lr_scale and weight_decay of all spaces make %zu different hyper-parameter groups, allowed: "
      "at most %u; this space's is the first too many",
      plan->optimizer.groups.size(), kGroupCountMax);
  return found;
}

// The key that makes parameter `index` as large as it is.
std::string shape_key(const Config& config, size_t index) {
  if (!config.model_source.empty()) return "model.source";
  return "model.parameters." + std::to_string(index) + ".shape";
}

// Of each space, and of all together: neither too many nor none.
Problem check_elements(const Config& config) {
  std::map<std::string, uint64_t> totals;
  bool any = false;
  for (size_t i = 0; i < config.parameters.size(); ++i) {
    const ParameterConfig& parameter = config.parameters[i];
    uint64_t elements = 1;
    for (const uint64_t dim : parameter.shape) {
      // Past the limit it stays there: what follows may be a zero.
      elements =
          dim != 0 && elements > kTensorElementsMax / dim ? kTensorElementsMax + 1 : elements * dim;
    }
    any = any || elements > 0;
    uint64_t& total = totals[parameter.space];
    total += std::min(elements, kTensorElementsMax + 1);
    if (total <= kTensorElementsMax) continue;
    return problem(shape_key(config, i), "with parameter '" + parameter.name + "' space '" +
                                             parameter.space + "' has more than 2^46 elements");
  }
  if (any) return {};
  return problem(shape_key(config, 0), "the model is empty: no space has any element");
}

uint64_t divide_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit; }

// Refuses before anything counts chunks one by one.
Problem check_chunk_count(const SegmentPlan& segment) {
  for (uint32_t r = 0; r < segment.world_size; ++r) {
    uint64_t chunks = 0;
    for (const SpaceSpec& space : segment.spaces) {
      if (member_index(space, Rank(r)) < 0) continue;
      chunks += divide_up(space.shard_elements, space.chunk_elements);
    }
    if (chunks <= kRankChunkCountMax) continue;
    return problem("offload.chunk_size_mb",
                   format("rank %u would have %llu chunks, allowed: at most %llu; raise it", r,
                          static_cast<unsigned long long>(chunks),
                          static_cast<unsigned long long>(kRankChunkCountMax)));
  }
  return {};
}

// What a rank reaches in a step of which it streams windows; the others come in every step.
bool is_of_a_window(RehearsePhase phase) {
  return phase != RehearsePhase::kBetweenSteps && phase != RehearsePhase::kAnswered;
}

// A kill at a moment that never comes is none: the run could not say that it survived it. The first
// window may be prefetched before anybody knows that its step will be skipped.
Problem check_rehearsals(const Config& config, const SegmentPlan& segment) {
  const std::vector<int64_t>& skipped = config.gradients.synthetic_nonfinite_steps;
  for (size_t i = 0; i < config.rehearsals.size(); ++i) {
    const Rehearsal& rehearsal = config.rehearsals[i];
    if (!is_of_a_window(rehearsal.phase)) continue;
    const std::string key = "rehearse." + std::to_string(i);
    const bool skips = std::find(skipped.begin(), skipped.end(), rehearsal.step) != skipped.end();
    if (skips && rehearsal.phase != RehearsePhase::kPrepared) {
      return problem(key + ".step",
                     format("found step %lld, which gradients.nonfinite_steps makes a skipped one: "
                            "no window of it reaches %s; allowed in it: prepared, answered, "
                            "between_steps",
                            static_cast<long long>(rehearsal.step), name_of(rehearsal.phase)));
    }
    if (arena_of(segment, Rank(rehearsal.at_rank)).chunks.empty()) {
      return problem(key + (rehearsal.at_rank != rehearsal.rank ? ".at_rank" : ".rank"),
                     format("rank %u owns no element: it never reaches %s", rehearsal.at_rank,
                            name_of(rehearsal.phase)));
    }
  }
  return {};
}

// Everything but what is only copied.
Problem lay_out_plan(const Config& config, JobPlan* plan) {
  plan->segment.job_name = config.job_name;
  plan->segment.world_size = config.world_size;
  plan->segment.window_chunks = config.window_chunks;
  plan->segment.prefetch_windows = config.prefetch_windows;
  plan->segment.split = config.split;
  if (Problem found = plan_spaces(config, plan)) return found;
  if (Problem found = check_elements(config)) return found;
  const Status laid_out = lay_out(&plan->segment, config.chunk_size_bytes);
  if (!laid_out.is_ok()) return problem(shape_key(config, 0), laid_out.message());
  if (Problem found = check_chunk_count(plan->segment)) return found;
  if (const std::string why = why_invalid(plan->segment); !why.empty()) {
    return problem("", "the plan is invalid: " + why);
  }
  return check_rehearsals(config, plan->segment);
}

void note_chunk_size(const Config& config, const SegmentPlan& segment, Notes* notes) {
  uint64_t smallest = UINT64_MAX, largest = 0, chunk = 0, longest_shard = 0;
  for (const SpaceSpec& space : segment.spaces) {
    chunk = space.chunk_elements;
    longest_shard = std::max(longest_shard, space.shard_elements);
    for (const TensorSpec& tensor : space.tensors) {
      smallest = std::min(smallest, tensor.elements);
      largest = std::max(largest, tensor.elements);
    }
  }
  const auto number = [](uint64_t value) { return std::to_string(value); };
  if (config.chunk_size_bytes == 0) {
    notes->push_back(
        "offload.chunk_size_mb is 0: one chunk a shard, so a staging buffer holds a "
        "whole shard's state and nothing overlaps");
  } else if (chunk >= longest_shard) {
    notes->push_back("offload.chunk_size_mb holds a rank's longest shard (" +
                     number(longest_shard) +
                     " elements): nothing overlaps; a smaller chunk needs less staging");
  } else if (chunk > largest) {
    notes->push_back("a chunk (" + number(chunk) +
                     " elements) is larger than the largest "
                     "parameter (" +
                     number(largest) + "): several parameters share a chunk");
  }
  if (chunk < smallest) {
    notes->push_back("a chunk (" + number(chunk) +
                     " elements) is smaller than the smallest "
                     "parameter (" +
                     number(smallest) +
                     "): every parameter is cut; the results "
                     "are the same bits");
  }
}

void note_ranks(const SegmentPlan& segment, Notes* notes) {
  for (uint32_t r = 0; r < segment.world_size; ++r) {
    const ArenaSpec arena = arena_of(segment, Rank(r));
    if (arena.chunks.empty()) {
      notes->push_back(format("rank %u owns no element: the model is too small for its ranks", r));
    } else if (arena.slot_count == 2 * arena.chunks.size() && arena.chunks.size() > 1) {
      notes->push_back(
          format("rank %u has as many shadow slots as chunks (%zu): its arena is "
                 "twice its state; lower offload.window_chunks, prefetch_windows or "
                 "chunk_size_mb to need less",
                 r, arena.chunks.size()));
    }
  }
}

void note_in_flight(const JobPlan& plan, Notes* notes) {
  uint64_t windows = 0, pipelines = 0;
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    const ArenaSpec arena = arena_of(plan.segment, Rank(r));
    const auto chunks = static_cast<uint64_t>(arena.chunks.size());
    const uint64_t window = std::min<uint64_t>(plan.segment.window_chunks, chunks);
    windows += window * arena.slot_bytes;
    pipelines += std::min(window * (plan.segment.prefetch_windows + 1), chunks) * arena.slot_bytes;
  }
  const auto mib = [](uint64_t bytes) {
    return format("%.6g MiB", static_cast<double>(bytes) / (1 << 20));
  };
  if (plan.in_flight_bytes == 0) return;
  if (plan.in_flight_bytes < windows) {
    notes->push_back(
        "offload.in_flight_mb is less than one window of each rank, which a rank may "
        "always have: " +
        mib(windows) + " may be in flight");
  } else if (plan.in_flight_bytes >= pipelines) {
    notes->push_back("offload.in_flight_mb never binds: all ranks together lease at most " +
                     mib(pipelines));
  }
}

void note_running(const Config& config, Notes* notes) {
  if (config.gradients.source == GradientSource::kTrainer && config.trainer.command.empty()) {
    notes->push_back(
        "there is no trainer.command: start one trainer a rank yourself; each "
        "attaches through the client library");
  }
  if (config.steps == 0) notes->push_back("job.steps is 0: the state is initialised, no step runs");
  if (config.optimizer.lr == 0 && config.gradients.source != GradientSource::kTrainer) {
    notes->push_back("optimizer.lr is 0 and no trainer gives another: weights will not change");
  }
  if (config.restart.intensity == 0) {
    notes->push_back("restart.intensity is 0: the first death ends the job");
  }
}

// A saving must be over before a process that was asked to stop is killed.
void note_resident(const JobPlan& plan, Notes* notes) {
  constexpr uint64_t kBytesASecond = 1ull << 30;
  if (plan.device == "cpu" || !plan.segment.split.has_resident()) return;
  uint64_t most = 0;
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    const ArenaSpec arena = arena_of(plan.segment, Rank(r));
    most = std::max(most, arena.resident_slot_bytes * arena.slot_count);
  }
  notes->push_back(
      "a part of the state stays on the device: it survives every process but a death of all of "
      "them at once, which leaves what was last saved");
  const uint64_t wanted_ms = most / kBytesASecond * 1000;
  if (wanted_ms > plan.restart.stop_timeout_ms) {
    notes->push_back(
        format("restart.stop_timeout_s may be too short to save a rank's resident "
               "slots at 1 GiB/s: give it %llu s",
               static_cast<unsigned long long>(wanted_ms / 1000 + 1)));
  }
}

ProcessPlan child_process(const RunDirectory& run, const std::string& directory, Role role,
                          uint32_t rank) {
  ProcessPlan process;
  process.role = role;
  process.rank = rank;
  ChildProgram program;
  program.has_rank = role == Role::kGpuActor;
  program.name = program.has_rank ? "optlease-gpu-actor" : "optlease-host-store";
  ChildArgs args;
  args.job = run.job_name();
  args.rank = rank;
  process.argv = to_argv(directory + "/" + program.name, program, args);
  const std::string log = program.has_rank ? "gpu_actor." + std::to_string(rank) : "host_store";
  process.log_file = run.log_file(log);
  return process;
}

ProcessPlan trainer_process(const JobPlan& plan, const RunDirectory& run,
                            const std::string& directory, uint32_t rank) {
  ProcessPlan process;
  process.role = Role::kTrainer;
  process.rank = rank;
  for (const std::string& word : plan.trainer.command) {
    process.argv.push_back(expand(word, run.job_name(), rank));
  }
  const std::string& program = process.argv[0];
  if (program.starts_with("optlease-") && program.find('/') == std::string::npos) {
    process.argv[0] = directory + "/" + program;
  }
  process.environment = {"OPTLEASE_JOB=" + run.job_name(), "OPTLEASE_RANK=" + std::to_string(rank),
                         "OPTLEASE_WORLD_SIZE=" + std::to_string(plan.segment.world_size)};
  for (const std::string& variable : plan.trainer.environment) {
    process.environment.push_back(expand(variable, run.job_name(), rank));
  }
  process.log_file = run.log_file("trainer." + std::to_string(rank));
  return process;
}

}  // namespace

std::optional<ConfigError> why_no_plan(const Config& config) {
  JobPlan plan;
  return lay_out_plan(config, &plan);
}

Result<JobPlan> make_plan(const Config& config, Notes* notes) {
  JobPlan plan;
  plan.steps = config.steps;
  plan.device = config.device;
  plan.keep_state = config.keep_state;
  plan.staging_buffers = config.staging_buffers;
  plan.in_flight_bytes = config.in_flight_bytes;
  plan.model.source = config.model_source;
  plan.model.seed = config.model_seed;
  plan.optimizer.lr = config.optimizer.lr;
  plan.gradients = config.gradients;
  plan.trainer = config.trainer;
  plan.restart = config.restart;
  plan.telemetry = config.telemetry;
  plan.rehearsals = config.rehearsals;
  if (const Problem found = lay_out_plan(config, &plan)) {
    return Status(StatusCode::kInvalidArgument,
                  (found->key.empty() ? "" : found->key + ": ") + found->text);
  }
  if (notes != nullptr) {
    note_chunk_size(config, plan.segment, notes);
    note_ranks(plan.segment, notes);
    note_in_flight(plan, notes);
    note_running(config, notes);
    note_resident(plan, notes);
  }
  return plan;
}

std::string expand(std::string text, const std::string& job_name, uint32_t rank) {
  const std::pair<std::string, std::string> words[] = {{"{job}", job_name},
                                                       {"{rank}", std::to_string(rank)}};
  for (const auto& [word, value] : words) {
    for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += value.size()) {
      text.replace(at, word.size(), value);
    }
  }
  return text;
}

std::vector<ProcessPlan> make_process_plan(const JobPlan& plan, const RunDirectory& run,
                                           const std::string& program_directory) {
  std::vector<ProcessPlan> processes;
  processes.push_back(child_process(run, program_directory, Role::kHostStore, 0));
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    processes.push_back(child_process(run, program_directory, Role::kGpuActor, r));
  }
  if (plan.trainer.command.empty()) return processes;
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    processes.push_back(trainer_process(plan, run, program_directory, r));
  }
  return processes;
}

}  // namespace optlease
