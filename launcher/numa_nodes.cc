#include "launcher/numa_nodes.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "launcher/run_plan.h"
#include "shm/numa_policy.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOnline = "/sys/devices/system/node/online";
constexpr const char* kGpus = "/proc/driver/nvidia/gpus";

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  while (!line.empty() && (line.back() == ' ' || line.back() == '\n')) line.pop_back();
  return line;
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    words.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

Status bad_list(const std::string& text) {
  return {StatusCode::kInvalidArgument, "\"" + text + "\" is no list of NUMA nodes"};
}

// "GPU UUID:   GPU-1f3a..." of the driver's page about a GPU; empty: it does not say.
std::string uuid_of(const std::string& address, const std::string& root) {
  std::ifstream file(root + kGpus + "/" + address + "/information");
  std::string line;
  while (std::getline(file, line)) {
    const size_t at = line.find("GPU-");
    if (line.starts_with("GPU UUID") && at != std::string::npos) {
      return line.substr(at, line.find_first_of(" \t", at) - at);
    }
  }
  return {};
}

// The GPU that one word of CUDA_VISIBLE_DEVICES means; empty: none, and CUDA stops there too.
std::string gpu_named(const std::string& word, const std::vector<std::string>& all,
                      const std::string& root) {
  if (const auto index = number_of<uint32_t>(word)) {
    return *index < all.size() ? all[*index] : std::string();
  }
  for (const std::string& address : all) {
    if (word.size() > 4 && uuid_of(address, root).starts_with(word)) return address;
  }
  return {};
}

bool contains(const std::vector<uint32_t>& online, int64_t node) {
  return std::any_of(online.begin(), online.end(),
                     [&](uint32_t each) { return int64_t{each} == node; });
}

Result<NumaPlan> named_nodes(const NumaWish& wish, const std::vector<uint32_t>& online,
                             const std::string& list) {
  for (size_t r = 0; r < wish.named.size(); ++r) {
    const int64_t node = wish.named[r];
    if (node < 0 || online.empty() || contains(online, node)) continue;
    return Status{StatusCode::kInvalidArgument,
                  format("ranks.numa: node %lld for rank %zu is not online; online are %s",
                         static_cast<long long>(node), r, list.c_str())};
  }
  return NumaPlan{wish.named, ""};
}

NumaPlan unplaced(uint32_t world_size, const std::string& why) {
  return {std::vector<int64_t>(world_size, -1), "no arena is placed on a NUMA node: " + why};
}

// The node of the GPU's PCI device; -1 with a reason where it is not known.
int64_t node_of(const std::string& gpu, const std::vector<uint32_t>& online,
                const std::string& root, std::string* why) {
  const std::string path = root + "/sys/bus/pci/devices/" + gpu + "/numa_node";
  const std::optional<std::string> text = first_line(path);
  const std::optional<int64_t> node = text ? number_of<int64_t>(*text) : std::nullopt;
  if (!text) {
    *why = path + " is not there";
  } else if (!node || *node < 0) {
    *why = path + " says \"" + *text + "\"";
  } else if (!contains(online, *node)) {
    *why = path + " says " + *text + ", and that node is not online";
  } else {
    return *node;
  }
  return -1;
}

NumaPlan nodes_of_gpus(const NumaWish& wish, const std::vector<uint32_t>& online,
                       const std::string& root) {
  const auto gpus = visible_gpus(wish.visible_devices, root);
  if (!gpus) return unplaced(wish.world_size, gpus.status().message());
  NumaPlan plan;
  for (uint32_t r = 0; r < wish.world_size; ++r) {
    const std::string& gpu = gpus.value()[r % gpus.value().size()];
    std::string why;
    plan.nodes.push_back(node_of(gpu, online, root, &why));
    if (why.empty()) continue;
    plan.note += format("%sthe arena of rank %u is not placed on a NUMA node: ",
                        plan.note.empty() ? "" : "; ", r) +
                 why;
  }
  return plan;
}

}  // namespace

Result<std::vector<uint32_t>> parse_node_list(const std::string& text) {
  std::vector<uint32_t> nodes;
  for (const std::string& word : split(text)) {
    const size_t dash = word.find('-');
    const auto first = number_of<uint32_t>(std::string_view(word).substr(0, dash));
    const auto last = dash == std::string::npos
                          ? first
                          : number_of<uint32_t>(std::string_view(word).substr(dash + 1));
    if (!first || !last || *last < *first || *last > kNumaNodeMax) return bad_list(text);
    for (uint32_t node = *first; node <= *last; ++node) nodes.push_back(node);
  }
  if (!std::is_sorted(nodes.begin(), nodes.end())) return bad_list(text);
  return nodes;
}

Result<std::vector<std::string>> visible_gpus(const std::optional<std::string>& visible_devices,
                                              const std::string& root) {
  std::vector<std::string> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root + kGpus, error)) {
    all.push_back(entry.path().filename().string());
  }
  if (all.empty()) {
    return Status{StatusCode::kNotFound, root + kGpus + " names no GPU (is the driver loaded?)"};
  }
  std::sort(all.begin(), all.end());
  if (!visible_devices) return all;
  std::vector<std::string> chosen;
  for (const std::string& word : split(*visible_devices)) {
    if (word.starts_with("MIG-")) {
      return Status{StatusCode::kUnsupported,
                    "CUDA_VISIBLE_DEVICES names a MIG instance, whose GPU it does not say"};
    }
    const std::string gpu = gpu_named(word, all, root);
    if (gpu.empty()) break;
    chosen.push_back(gpu);
  }
  if (!chosen.empty()) return chosen;
  return Status{StatusCode::kNotFound, "CUDA_VISIBLE_DEVICES (\"" + *visible_devices +
                                           "\") names none of the " + std::to_string(all.size()) +
                                           " GPUs here"};
}

uint64_t visible_gpu_count(const std::optional<std::string>& visible_devices, uint64_t gpu_count) {
  if (!visible_devices) return gpu_count;
  uint64_t chosen = 0;
  for (const std::string& word : split(*visible_devices)) {
    const auto number = number_of<uint64_t>(word);
    const bool is_uuid = word.starts_with("GPU-") || word.starts_with("MIG-");
    if (!is_uuid && (!number || *number >= gpu_count)) break;
    ++chosen;
  }
  return chosen;
}

Result<NumaPlan> choose_numa(const NumaWish& wish, const std::string& root) {
  const std::optional<std::string> list = first_line(root + kOnline);
  std::vector<uint32_t> online;
  if (list) {
    auto parsed = parse_node_list(*list);
    if (parsed) online = std::move(parsed).value();
  }
  if (!wish.automatic) return named_nodes(wish, online, list.value_or(""));
  if (wish.device != "cuda")
    return NumaPlan{{}, "arenas are placed by no GPU: ranks.device is " + wish.device};
  if (online.size() == 1) {
    return NumaPlan{
        {}, format("this machine has one NUMA node (%u): no arena needs a place", online[0])};
  }
  if (online.empty()) {
    return unplaced(wish.world_size,
                    root + kOnline + (list ? " says \"" + *list + "\"" : " is not there"));
  }
  return nodes_of_gpus(wish, online, root);
}

Status place_arenas(const Config& config, JobPlan* plan, std::vector<std::string>* notes) {
  NumaWish wish{.automatic = config.numa_auto,
                .named = config.numa_nodes,
                .world_size = config.world_size,
                .device = config.device,
                .visible_devices = {}};
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) wish.visible_devices = visible;
  auto chosen = choose_numa(wish);
  if (!chosen) return chosen.status();
  plan->numa = std::move(chosen).value();
  // Nothing to place is nothing to say: the host store's log has it, at debug level.
  if (!plan->numa.nodes.empty() && !plan->numa.note.empty()) notes->push_back(plan->numa.note);
  return Status::ok();
}

}  // namespace optlease
