// Whether a rank computes on the GPU beside which its arena was placed. The launcher plans by PCI
// address (launcher/numa_nodes.h), CUDA numbers GPUs as CUDA_DEVICE_ORDER says: by default the
// fastest first, which is another order where they are not all of one kind. Used by the actor at
// its start; it moves nothing.
#pragma once

#include <cstdint>
#include <string>

namespace optlease {

// What is wrong, in words; empty where the GPU is on `planned_node`, none was planned (-1), or the
// GPU's node is not known. `pci_address` as cudaDeviceGetPCIBusId writes it; `root` is for tests.
std::string numa_mismatch(const std::string& pci_address, int64_t planned_node,
                          const std::string& root = "");

}  // namespace optlease
