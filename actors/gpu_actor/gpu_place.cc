#include "actors/gpu_actor/gpu_place.h"

#include <algorithm>
#include <cctype>
#include <fstream>

#include "shm/contract/status.h"

namespace optlease {

std::string numa_mismatch(const std::string& pci_address, int64_t planned_node,
                          const std::string& root) {
  if (pci_address.empty() || planned_node < 0) return {};
  std::string name = pci_address;  // sysfs writes hexadecimal digits in lower case
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file(root + "/sys/bus/pci/devices/" + name + "/numa_node");
  int64_t node = -1;
  if (!(file >> node) || node < 0 || node == planned_node) return {};
  return format(
      "this rank's GPU %s is on NUMA node %lld, its arena was placed for node %lld: copies cross "
      "the sockets and are slower. CUDA numbers GPUs fastest first and the plan goes by PCI "
      "address: set CUDA_DEVICE_ORDER=PCI_BUS_ID for launcher and trainers, or name the nodes in "
      "ranks.numa",
      name.c_str(), static_cast<long long>(node), static_cast<long long>(planned_node));
}

}  // namespace optlease
