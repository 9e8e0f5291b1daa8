// Which NUMA node each rank's arena belongs to: that of its GPU, read from /sys and /proc, or what
// the configuration names. Used by the launcher when it plans a run; host stores place the arenas
// (shm/numa_policy.h). It asks no driver and makes no context. Everything it reads lies under
// `root`, so that a test can give it another machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/job_plan.h"
#include "shm/contract/status.h"

namespace optlease {

struct NumaWish {
  bool automatic = true;       // else `named` holds
  std::vector<int64_t> named;  // by rank, -1: none; empty: no rank is to be placed
  uint32_t world_size = 1;
  std::string device;                          // ranks.device
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES, where it is set
};

// The nodes, and in NumaPlan::note why a rank has none. An empty list where there is nothing to
// place: one node, the cpu device, or ranks.numa = "off". InvalidArgument: a named node that is not
// online.
Result<NumaPlan> choose_numa(const NumaWish& wish, const std::string& root = "");

// "0-3,8" as the kernel writes it, ascending; InvalidArgument for anything else.
Result<std::vector<uint32_t>> parse_node_list(const std::string& text);

// The PCI addresses of the GPUs that a process sees, as CUDA numbers GPUs of one kind: by address,
// then as CUDA_VISIBLE_DEVICES (numbers or UUIDs) chooses. NotFound or Unsupported, in words, where
// that cannot be told.
Result<std::vector<std::string>> visible_gpus(const std::optional<std::string>& visible_devices,
                                              const std::string& root);

// Of `gpu_count` GPUs of the machine those that a process sees. As CUDA reads the list: up to its
// first entry that names none. UUIDs are believed.
uint64_t visible_gpu_count(const std::optional<std::string>& visible_devices, uint64_t gpu_count);

}  // namespace optlease
