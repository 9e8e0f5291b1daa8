#include <nlohmann/json.hpp>

#include "launcher/memory_contract.h"
#include "launcher/run_plan.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;

std::string name_of_process(const ProcessPlan& process) {
  std::string name = name_of(process.role);
  if (process.role != Role::kHostStore) name += " " + std::to_string(process.rank);
  return name;
}

std::string ranks_text(const std::vector<Rank>& ranks, uint32_t world_size) {
  if (ranks.size() == world_size) return "all ranks";
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const Rank rank : ranks) text += " " + std::to_string(rank.value);
  return text;
}

// As a shell would need it, so that a line can be copied and run.
std::string quoted(const std::string& word) {
  const bool plain =
      !word.empty() &&
      word.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%") ==
          std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string spaces_text(const SegmentPlan& segment) {
  std::string text;
  for (const SpaceSpec& space : segment.spaces) {
    text += format(
        "  space %s: %zu parameters, %llu elements over %s; shards of %llu, chunks of "
        "%llu elements; parameters %s, gradients %s; group %u\n",
        space.name.c_str(), space.tensors.size(), static_cast<unsigned long long>(space.elements),
        ranks_text(space.members, segment.world_size).c_str(),
        static_cast<unsigned long long>(space.shard_elements),
        static_cast<unsigned long long>(space.chunk_elements), name_of(space.param_dtype),
        name_of(space.grad_dtype), space.group);
  }
  return text;
}

std::string groups_text(const OptimizerPlan& optimizer) {
  std::string text;
  for (size_t i = 0; i < optimizer.groups.size(); ++i) {
    const GroupParams& g = optimizer.groups[i];
    text +=
        format("  group %zu: %s, lr %g, betas %g %g, eps %g, weight decay %g\n", i,
               name_of(static_cast<Rule>(g.rule)), g.lr, g.beta1, g.beta2, g.eps, g.weight_decay);
  }
  return text;
}

int64_t numa_node(const JobPlan& plan, uint32_t rank) {
  return rank < plan.numa.nodes.size() ? plan.numa.nodes[rank] : -1;
}

std::string arenas_text(const JobPlan& plan) {
  std::string text;
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    const ArenaSpec arena = arena_of(plan.segment, Rank(r));
    const size_t windows =
        (arena.chunks.size() + plan.segment.window_chunks - 1) / plan.segment.window_chunks;
    text += format(
        "  rank %u: %s of state in %zu chunks (%zu windows of %u); %u slots of %s; "
        "staging %s%s\n",
        r, bytes_text(arena.state_bytes).c_str(), arena.chunks.size(), windows,
        plan.segment.window_chunks, arena.slot_count, bytes_text(arena.slot_bytes).c_str(),
        bytes_text(plan.staging_budget_bytes(Rank(r))).c_str(),
        numa_node(plan, r) < 0
            ? ""
            : format("; NUMA node %lld", static_cast<long long>(numa_node(plan, r))).c_str());
    if (!arena.split.has_resident()) continue;
    text += format("    %s of each slot stay on the device\n",
                   bytes_text(arena.resident_slot_bytes).c_str());
  }
  return text;
}

Json group_json(const GroupParams& group) {
  return {{"rule", name_of(static_cast<Rule>(group.rule))},
          {"lr", group.lr},
          {"betas", {group.beta1, group.beta2}},
          {"eps", group.eps},
          {"weight_decay", group.weight_decay}};
}

Json space_json(const SpaceSpec& space) {
  Json ranks = Json::array();
  for (const Rank rank : space.members) ranks.push_back(rank.value);
  return {{"name", space.name},
          {"ranks", ranks},
          {"parameters", space.tensors.size()},
          {"elements", space.elements},
          {"shard_elements", space.shard_elements},
          {"chunk_elements", space.chunk_elements},
          {"param_dtype", name_of(space.param_dtype)},
          {"grad_dtype", name_of(space.grad_dtype)},
          {"group", space.group}};
}

Json rank_json(const JobPlan& plan, Rank rank) {
  const ArenaSpec arena = arena_of(plan.segment, rank);
  return {{"rank", rank.value},
          {"state_bytes", arena.state_bytes},
          {"chunks", arena.chunks.size()},
          {"slots", arena.slot_count},
          {"slot_bytes", arena.slot_bytes},
          {"resident_slot_bytes", arena.resident_slot_bytes},
          {"staging_bytes", plan.staging_budget_bytes(rank)},
          {"numa_node",
           numa_node(plan, rank.value) < 0 ? Json(nullptr) : Json(numa_node(plan, rank.value))}};
}

Json process_json(const ProcessPlan& process) {
  Json json{{"role", name_of(process.role)}};
  if (process.role != Role::kHostStore) json["rank"] = process.rank;
  json["argv"] = process.argv;
  json["environment"] = process.environment;
  json["log_file"] = process.log_file;
  return json;
}

}  // namespace

std::string plan_text(const JobPlan& plan, const std::vector<ProcessPlan>& processes,
                      const std::vector<std::string>& notes) {
  const SegmentPlan& segment = plan.segment;
  std::string text =
      format("job %s: %lld steps on %u ranks (%s), gradients from %s, layout %016llx\n",
             segment.job_name.c_str(), static_cast<long long>(plan.steps), segment.world_size,
             plan.device.c_str(), name_of(plan.gradients.source),
             static_cast<unsigned long long>(layout_hash(segment)));
  text += "\nmodel\n" + spaces_text(segment) + "\noptimizer\n" + groups_text(plan.optimizer) +
          "\nstate\n" + arenas_text(plan) + "\nprocesses\n";
  for (const ProcessPlan& process : processes) {
    text += "  " + name_of_process(process) + ":";
    for (const std::string& variable : process.environment) text += " " + quoted(variable);
    for (const std::string& word : process.argv) text += " " + quoted(word);
    text += "\n";
  }
  if (!plan.rehearsals.empty()) text += "\nrehearsed kills\n";
  for (const Rehearsal& rehearsal : plan.rehearsals) {
    const bool store = rehearsal.role == Role::kHostStore;
    text += format("  step %lld, when rank %u reaches %s: kill %s%s\n",
                   static_cast<long long>(rehearsal.step), rehearsal.at_rank,
                   name_of(rehearsal.phase), name_of(rehearsal.role),
                   store ? "" : (" " + std::to_string(rehearsal.rank)).c_str());
  }
  if (!notes.empty()) text += "\nnotes\n";
  for (const std::string& note : notes) text += "  " + note + "\n";
  return text;
}

std::string plan_json(const JobPlan& plan, const std::vector<ProcessPlan>& processes,
                      const std::vector<std::string>& notes) {
  Json json{{"job", plan.segment.job_name},
            {"steps", plan.steps},
            {"world_size", plan.segment.world_size},
            {"device", plan.device},
            {"in_flight_bytes", plan.in_flight_bytes},
            {"gradient_source", name_of(plan.gradients.source)},
            {"layout_hash",
             format("%016llx", static_cast<unsigned long long>(layout_hash(plan.segment)))}};
  for (const char* list : {"spaces", "groups", "ranks", "processes"}) json[list] = Json::array();
  for (const SpaceSpec& space : plan.segment.spaces) json["spaces"].push_back(space_json(space));
  for (const GroupParams& group : plan.optimizer.groups) {
    json["groups"].push_back(group_json(group));
  }
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    json["ranks"].push_back(rank_json(plan, Rank(r)));
  }
  for (const ProcessPlan& process : processes) {
    json["processes"].push_back(process_json(process));
  }
  json["notes"] = notes;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace optlease
