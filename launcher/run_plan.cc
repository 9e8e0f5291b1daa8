#include "launcher/run_plan.h"

#include <algorithm>

#include "actors/runtime/child_args.h"

namespace optlease {
namespace {

// More chunks a rank than this would make tables larger than what they describe is worth.
constexpr uint64_t kRankChunkCountMax = 1u << 22;

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

// The key that makes space `index` need a group of its own.
std::string group_key(const Config& config, size_t index) {
  const char* key = config.spaces[index].lr_scale != 1 ? "lr_scale" : "weight_decay";
  return "spaces." + std::to_string(index) + "." + key;
}

Status plan_spaces(const Config& config, JobPlan* plan, std::string* key) {
  for (size_t i = 0; i < config.spaces.size(); ++i) {
    const SpaceConfig& wanted = config.spaces[i];
    GroupParams params = config.optimizer;
    params.lr *= wanted.lr_scale;
    params.weight_decay = wanted.weight_decay;
    SpaceSpec space;
    space.name = wanted.name;
    space.members = wanted.ranks;
    space.param_dtype = wanted.param_dtype;
    space.grad_dtype = wanted.grad_dtype;
    space.group = group_of(params, &plan->optimizer.groups);
    if (space.group >= kGroupCountMax && key->empty()) *key = group_key(config, i);
    std::vector<TensorInit> init;
    for (const ParameterConfig& parameter : config.parameters) {
      if (parameter.space != wanted.name) continue;
      TensorSpec tensor;
      tensor.name = parameter.name;
      tensor.shape = parameter.shape;
      space.tensors.push_back(std::move(tensor));
      init.push_back(parameter.init);
    }
    plan->segment.spaces.push_back(std::move(space));
    plan->model.init.push_back(std::move(init));
  }
  if (plan->optimizer.groups.size() <= kGroupCountMax) return Status::ok();
  return {StatusCode::kInvalidArgument,
          format("spaces: lr_scale and weight_decay make %zu different hyper-parameter groups, "
                 "allowed: at most %u",
                 plan->optimizer.groups.size(), kGroupCountMax)};
}

uint64_t divide_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit; }

// Refuses before anything counts chunks one by one.
Status check_chunk_count(const SegmentPlan& segment) {
  for (uint32_t r = 0; r < segment.world_size; ++r) {
    uint64_t chunks = 0;
    for (const SpaceSpec& space : segment.spaces) {
      if (member_index(space, Rank(r)) < 0) continue;
      chunks += divide_up(space.shard_elements, space.chunk_elements);
    }
    if (chunks <= kRankChunkCountMax) continue;
    return {StatusCode::kInvalidArgument,
            format("rank %u would have %llu chunks, allowed: at most %llu; raise "
                   "offload.chunk_size_mb",
                   r, static_cast<unsigned long long>(chunks),
                   static_cast<unsigned long long>(kRankChunkCountMax))};
  }
  return Status::ok();
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

Result<JobPlan> make_plan(const Config& config, Notes* notes, std::string* key) {
  std::string ignored;
  if (key == nullptr) key = &ignored;
  key->clear();
  JobPlan plan;
  plan.segment.job_name = config.job_name;
  plan.segment.world_size = config.world_size;
  plan.segment.window_chunks = config.window_chunks;
  plan.segment.prefetch_windows = config.prefetch_windows;
  plan.segment.split = config.split;
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
  OPTLEASE_TRY(plan_spaces(config, &plan, key));
  *key = "model.parameters";
  OPTLEASE_TRY(lay_out(&plan.segment, config.chunk_size_bytes));
  *key = "offload.chunk_size_mb";
  OPTLEASE_TRY(check_chunk_count(plan.segment));
  *key = "";
  if (const std::string why = why_invalid(plan.segment); !why.empty()) {
    return Status(StatusCode::kInvalidArgument, "the plan is invalid: " + why);
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
