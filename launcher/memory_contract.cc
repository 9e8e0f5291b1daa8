#include "launcher/memory_contract.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shm/control_build.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;

// Estimates, on the safe side, for what a plan cannot know exactly.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kProcessBytes = 128ull << 20;  // the runtime's shadow memory and quarantine, too
#else
constexpr uint64_t kProcessBytes = 24ull << 20;  // code, heap, stacks, sockets' buffers
#endif
constexpr uint64_t kCudaProcessBytes = 512ull << 20;  // of host memory, with a CUDA context
constexpr uint64_t kDescriptorsFixed = 64;            // log, sockets, epoll, libraries
// Of the launcher a child: pidfd, lifeline, log, connection; of the store a rank: arena,
// connection.
constexpr uint64_t kDescriptorsPerChild = 6;
// HBM is given in pieces of this; a context with its kernels, and NCCL's buffers, take the rest.
constexpr uint64_t kDeviceGranularityBytes = 2ull << 20;
constexpr uint64_t kContextBytes = 640ull << 20;
constexpr uint64_t kCollectivesBytes = 384ull << 20;

uint64_t device_rounded(uint64_t bytes) {
  return (bytes + kDeviceGranularityBytes - 1) / kDeviceGranularityBytes * kDeviceGranularityBytes;
}

void add_device_needs(const JobPlan& plan, Rank rank, RankNeeds* needs) {
  needs->pinned_bytes = needs->arena_bytes;
  for (const SpaceSpec& space : plan.segment.spaces) {
    const int member = member_index(space, rank);
    if (member < 0) continue;
    const ElementRange shard = shard_range(space, static_cast<uint32_t>(member));
    const uint64_t shard_bytes = shard.size() * sizeof(float);
    needs->device_shard_bytes += shard_bytes;
    needs->device_bytes += device_rounded(space.elements * bytes_of(space.param_dtype)) +
                           device_rounded(space.elements * bytes_of(space.grad_dtype)) +
                           device_rounded(shard_bytes);
  }
  if (needs->resident_bytes > 0) {
    needs->device_bytes += device_rounded(needs->resident_bytes - kResidentSlotsOffset);
  }
  needs->device_bytes += device_rounded(needs->staging_bytes);
  const uint64_t processes = plan.gradients.source == GradientSource::kTrainer ? 2 : 1;
  needs->device_headroom_bytes =
      processes * kContextBytes + (plan.segment.world_size > 1 ? kCollectivesBytes : 0);
}

RankNeeds needs_of_rank(const JobPlan& plan, Rank rank) {
  const ArenaSpec arena = arena_of(plan.segment, rank);
  RankNeeds needs;
  needs.state_bytes = arena.state_bytes;
  needs.arena_bytes = arena_bytes_of(arena);
  needs.shadow_bytes = (arena.slot_count - arena.chunks.size()) * arena.slot_bytes;
  needs.staging_bytes = plan.staging_budget_bytes(rank);
  if (arena.split.has_resident()) {
    needs.resident_bytes = kResidentSlotsOffset + arena.resident_slot_bytes * arena.slot_count;
  }
  for (const SpaceSpec& space : plan.segment.spaces) {
    const int member = member_index(space, rank);
    if (member < 0) continue;
    const ElementRange shard = shard_range(space, static_cast<uint32_t>(member));
    needs.gradient_shard_bytes += array_stride_bytes(shard.size());
    needs.parameter_bytes += space.elements * bytes_of(space.param_dtype);
    needs.gradient_bytes += space.elements * bytes_of(space.grad_dtype);
  }
  if (plan.device == "cpu") return needs;
  // The segment saves the shards behind a header.
  if (needs.gradient_shard_bytes > 0) needs.gradient_shard_bytes += kSavedShardsOffset;
  add_device_needs(plan, rank, &needs);
  return needs;
}

// The launcher holds every shared buffer's descriptor, so it needs the most.
uint64_t descriptors_of(const JobPlan& plan) {
  uint64_t buffers = 0;
  const uint64_t a_space = plan.device == "cpu" ? 2 : 3;
  if (plan.segment.split.has_resident()) buffers += plan.segment.world_size;
  for (const SpaceSpec& space : plan.segment.spaces) buffers += a_space * space.members.size();
  const uint64_t children =
      1 + uint64_t{plan.segment.world_size} * (plan.trainer.command.empty() ? 1 : 2);
  return kDescriptorsFixed + kDescriptorsPerChild * children + buffers;
}

std::string amount_text(const MemoryRow& row, uint64_t amount) {
  if (amount == kNoLimit) return row.change.empty() ? "not asked" : "no limit";
  return row.is_bytes ? bytes_text(amount) : std::to_string(amount);
}

uint64_t plus(uint64_t free, uint64_t held) { return free == kNoLimit ? kNoLimit : free + held; }

Json limit_json(uint64_t value) { return value == kNoLimit ? Json(nullptr) : Json(value); }

}  // namespace

uint64_t MemoryNeeds::shared_memory_bytes() const {
  uint64_t bytes = control_bytes;
  for (const RankNeeds& rank : ranks) {
    bytes += rank.arena_bytes + rank.resident_bytes + rank.gradient_shard_bytes;
  }
  return bytes;
}

uint64_t MemoryNeeds::memory_bytes() const {
  uint64_t bytes = shared_memory_bytes() + process_bytes;
  if (uses_gpus) return bytes;
  for (const RankNeeds& rank : ranks) {
    bytes += rank.parameter_bytes + rank.gradient_bytes + rank.staging_bytes;
  }
  return bytes;
}

uint64_t MemoryNeeds::pinned_bytes() const {
  uint64_t most = 0;  // the limit is a process's, and each rank's actor pins its own arena
  for (const RankNeeds& rank : ranks) most = std::max(most, rank.pinned_bytes);
  return most;
}

uint64_t MemoryNeeds::device_bytes(uint64_t gpu_count) const {
  if (!uses_gpus) return 0;
  // Where none is seen, each rank is counted on the GPU of its own that it needs.
  std::vector<uint64_t> gpus(gpu_count == 0 ? ranks.size()
                                            : std::min<uint64_t>(gpu_count, ranks.size()));
  for (size_t r = 0; r < ranks.size(); ++r) {
    gpus[r % gpus.size()] += ranks[r].device_bytes + ranks[r].device_headroom_bytes;
  }
  return *std::max_element(gpus.begin(), gpus.end());
}

MemoryNeeds needs_of(const JobPlan& plan) {
  MemoryNeeds needs;
  needs.uses_gpus = plan.device != "cpu";
  std::vector<ArenaSpec> arenas;
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    arenas.push_back(arena_of(plan.segment, Rank(r)));
    needs.ranks.push_back(needs_of_rank(plan, Rank(r)));
  }
  needs.control_bytes = control_shape(plan.segment, arenas).total_bytes;
  const uint64_t processes = 2 + uint64_t{plan.segment.world_size} * 2;
  needs.process_bytes = processes * kProcessBytes;
  if (needs.uses_gpus) {
    const uint64_t a_rank = plan.gradients.source == GradientSource::kTrainer ? 2 : 1;
    needs.process_bytes += a_rank * plan.segment.world_size * kCudaProcessBytes;
  }
  needs.descriptors = descriptors_of(plan);
  return needs;
}

namespace {

void add_gpu_rows(const MemoryNeeds& needs, const MachineFacts& facts,
                  std::vector<MemoryRow>* rows) {
  rows->push_back({"GPUs (CUDA_VISIBLE_DEVICES of /dev/nvidia<n>)", needs.ranks.size(),
                   facts.gpu_count, false,
                   "each rank needs a GPU of its own: lower ranks.world_size, run on a machine "
                   "that has them (in a container: --gpus all), let CUDA_VISIBLE_DEVICES "
                   "name more of them, or set ranks.device = \"cpu\""});
  rows->push_back({"HBM of the fullest GPU", needs.device_bytes(facts.gpu_count), kNoLimit, true,
                   "", "asked by each actor at its start, which refuses with a table"});
}

}  // namespace

std::vector<MemoryRow> memory_rows(const MemoryNeeds& needs, const MachineFacts& facts) {
  const char* less =
      "lower offload.prefetch_windows, window_chunks or chunk_size_mb (shadow slots), or run fewer "
      "parameters on this node";
  std::vector<MemoryRow> rows;
  rows.push_back({"shared memory (/dev/shm)", needs.shared_memory_bytes(),
                  plus(facts.shm_free_bytes, facts.shm_held_bytes), true,
                  std::string("enlarge it (mount -o remount,size=... /dev/shm; in a container "
                              "--shm-size=...), run `optlease clean`, or ") +
                      less});
  const std::string file = facts.cgroup_limit_file;
  rows.push_back({"memory of this cgroup", needs.memory_bytes(),
                  plus(facts.cgroup_free_bytes, facts.shm_held_bytes), true,
                  "raise the container's memory limit" + (file.empty() ? "" : " (" + file + ")") +
                      ", or " + less});
  rows.push_back({"memory of this node", needs.memory_bytes(),
                  plus(facts.host_free_bytes, facts.shm_held_bytes), true,
                  std::string("end other programs, or ") + less});
  rows.push_back({"pinned memory a process (RLIMIT_MEMLOCK)", needs.pinned_bytes(),
                  facts.memlock_limit_bytes, true, "raise it: ulimit -l, or --ulimit memlock=-1",
                  "CUDA drivers do not count it; where pinning is refused all the same, copies go "
                  "through pinned bounce buffers"});
  rows.push_back({"open files a process (RLIMIT_NOFILE)", needs.descriptors, facts.descriptor_limit,
                  false, "raise it: ulimit -n, or --ulimit nofile=...; or lower ranks.world_size"});
  if (needs.uses_gpus) add_gpu_rows(needs, facts, &rows);
  return rows;
}

Status check(const std::vector<MemoryRow>& rows) {
  std::string text;
  for (const MemoryRow& row : rows) {
    if (row.fits() || !row.note.empty()) continue;
    text += (text.empty() ? "" : "\n") + row.name + ": the job needs " +
            amount_text(row, row.needed) + ", available are " + amount_text(row, row.available) +
            "; " + row.change;
  }
  return text.empty() ? Status::ok() : Status(StatusCode::kNoSpace, text);
}

namespace {

std::string verdict_of(const MemoryRow& row) {
  if (!row.note.empty()) return row.note;
  return row.fits() ? "fits" : "DOES NOT FIT: " + row.change;
}

// On the cuda device parameters, gradients, shards and staging are HBM; the shard column above is
// where shards are saved.
std::string device_text(const MemoryNeeds& needs) {
  std::string text = format("%-6s %12s %12s %12s %12s %12s %12s\n", "HBM", "parameters",
                            "gradients", "grad shard", "staging", "(headroom)", "in all");
  for (size_t r = 0; r < needs.ranks.size(); ++r) {
    const RankNeeds& n = needs.ranks[r];
    text +=
        format("%-6zu %12s %12s %12s %12s %12s %12s\n", r, bytes_text(n.parameter_bytes).c_str(),
               bytes_text(n.gradient_bytes).c_str(), bytes_text(n.device_shard_bytes).c_str(),
               bytes_text(n.staging_bytes).c_str(), bytes_text(n.device_headroom_bytes).c_str(),
               bytes_text(n.device_bytes + n.device_headroom_bytes).c_str());
  }
  return text;
}

}  // namespace

std::string memory_text(const MemoryNeeds& needs, const std::vector<MemoryRow>& rows) {
  std::string text = format("%-6s %12s %12s %12s %12s %12s %12s %12s\n", "rank", "state", "arena",
                            "(shadow)", "grad shard", "parameters", "gradients", "staging");
  for (size_t r = 0; r < needs.ranks.size(); ++r) {
    const RankNeeds& n = needs.ranks[r];
    text +=
        format("%-6zu %12s %12s %12s %12s %12s %12s %12s\n", r, bytes_text(n.state_bytes).c_str(),
               bytes_text(n.arena_bytes).c_str(), bytes_text(n.shadow_bytes).c_str(),
               bytes_text(n.gradient_shard_bytes).c_str(), bytes_text(n.parameter_bytes).c_str(),
               bytes_text(n.gradient_bytes).c_str(), bytes_text(n.staging_bytes).c_str());
  }
  for (size_t r = 0; r < needs.ranks.size(); ++r) {
    if (needs.ranks[r].resident_bytes == 0) continue;
    text += format("rank %zu: %s of resident slots, %s\n", r,
                   bytes_text(needs.ranks[r].resident_bytes).c_str(),
                   needs.uses_gpus ? "on the device and as much in shared memory to save them in"
                                   : "in shared memory");
  }
  if (needs.uses_gpus) text += device_text(needs);
  text += format("control segment %s, processes about %s\n\n",
                 bytes_text(needs.control_bytes).c_str(), bytes_text(needs.process_bytes).c_str());
  text += format("%-42s %12s %12s  %s\n", "limit", "needed", "available", "");
  for (const MemoryRow& row : rows) {
    const std::string verdict = verdict_of(row);
    text += format("%-42s %12s %12s  %s\n", row.name.c_str(), amount_text(row, row.needed).c_str(),
                   amount_text(row, row.available).c_str(), verdict.c_str());
  }
  return text;
}

std::string shared_memory_text(const MemoryNeeds& needs) {
  uint64_t arenas = 0, state = 0, shards = 0, resident = 0;
  for (const RankNeeds& rank : needs.ranks) {
    arenas += rank.arena_bytes;
    state += rank.state_bytes;
    shards += rank.gradient_shard_bytes;
    resident += rank.resident_bytes;
  }
  std::string text =
      format("%s of shared memory: arenas %s (of it state %s), gradient shards %s, control %s",
             bytes_text(needs.shared_memory_bytes()).c_str(), bytes_text(arenas).c_str(),
             bytes_text(state).c_str(), bytes_text(shards).c_str(),
             bytes_text(needs.control_bytes).c_str());
  if (resident != 0) text += ", resident slots " + bytes_text(resident);
  return text;
}

std::string memory_json(const MemoryNeeds& needs, const std::vector<MemoryRow>& rows) {
  Json json{{"ranks", Json::array()},
            {"control_bytes", needs.control_bytes},
            {"process_bytes", needs.process_bytes},
            {"shared_memory_bytes", needs.shared_memory_bytes()},
            {"memory_bytes", needs.memory_bytes()},
            {"limits", Json::array()}};
  for (const RankNeeds& n : needs.ranks) {
    json["ranks"].push_back({{"rank", json["ranks"].size()},
                             {"device_bytes", n.device_bytes},
                             {"device_headroom_bytes", n.device_headroom_bytes},
                             {"state_bytes", n.state_bytes},
                             {"arena_bytes", n.arena_bytes},
                             {"shadow_bytes", n.shadow_bytes},
                             {"resident_bytes", n.resident_bytes},
                             {"gradient_shard_bytes", n.gradient_shard_bytes},
                             {"parameter_bytes", n.parameter_bytes},
                             {"gradient_bytes", n.gradient_bytes},
                             {"staging_bytes", n.staging_bytes},
                             {"pinned_bytes", n.pinned_bytes}});
  }
  for (const MemoryRow& row : rows) {
    json["limits"].push_back({{"name", row.name},
                              {"unit", row.is_bytes ? "bytes" : "count"},
                              {"needed", row.needed},
                              {"available", limit_json(row.available)},
                              {"fits", row.fits()},
                              {"change", row.change},
                              {"note", row.note}});
  }
  return json.dump(2) + "\n";
}

std::string bytes_text(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return format("%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, kUnits[unit]);
}

}  // namespace optlease
