// What this machine allows: the reading half of memory_contract.h.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "launcher/memory_contract.h"
#include "launcher/numa_nodes.h"

namespace optlease {
namespace {

constexpr const char* kShmDirectory = "/dev/shm";

// The number in a one-line file; `fallback` where there is none ("max", or no such file).
uint64_t read_number(const std::string& path, uint64_t fallback) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : fallback;
}

// The number after `key` in a file of "key number" lines.
uint64_t read_field(const std::string& path, const std::string& key, uint64_t fallback) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return fallback;
}

// One cgroup version's names.
struct CgroupFiles {
  std::string root;
  const char* limit;
  const char* usage;
  const char* reclaimable;  // in memory.stat: cache that the kernel gives up before it kills
};

// This process's cgroup below `root`: the line "0::<path>" (v2) or "<n>:memory:<path>" (v1).
std::string cgroup_path(bool v2) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool wanted =
        v2 ? controllers == ",," : controllers.find(",memory,") != std::string::npos;
    if (wanted) return line.substr(second + 1);
  }
  return "/";
}

// Lowers the facts to what this cgroup and each of its parents still allow. Within a container the
// path of the host is not there, and the root of the mount is the container's own.
void apply_cgroup(const CgroupFiles& files, std::string path, MachineFacts* facts) {
  while (true) {
    const std::string directory = files.root + (path == "/" ? "" : path);
    const std::string limit_file = directory + "/" + files.limit;
    const uint64_t limit = read_number(limit_file, kNoLimit);
    // v1 says "no limit" with a number near 2^63.
    if (limit < (1ull << 60)) {
      const uint64_t used = read_number(directory + "/" + files.usage, 0);
      const uint64_t cache = read_field(directory + "/memory.stat", files.reclaimable, 0);
      const uint64_t held = used - std::min(used, cache);
      const uint64_t free = limit - std::min(limit, held);
      if (free < facts->cgroup_free_bytes) {
        facts->cgroup_free_bytes = free;
        facts->cgroup_limit_file = limit_file;
      }
    }
    if (path.empty() || path == "/") return;
    path.resize(path.rfind('/'));
    if (path.empty()) path = "/";
  }
}

uint64_t limit_of(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return kNoLimit;
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : limit.rlim_cur;
}

// Bytes that a named segment really occupies.
uint64_t held_bytes(const std::string& segment_name) {
  struct stat info {};
  if (stat((kShmDirectory + segment_name).c_str(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

// Device files of GPUs; opening none of them, this makes no context. A virtual machine that passes
// its GPU through /dev/dxg does not tell how many.
uint64_t count_gpus() {
  std::error_code error;
  if (std::filesystem::exists("/dev/dxg", error)) return kNoLimit;
  uint64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    const std::string number = name.starts_with("nvidia") ? name.substr(6) : "";
    count += !number.empty() && number.find_first_not_of("0123456789") == std::string::npos ? 1 : 0;
  }
  return count;
}

}  // namespace

MachineFacts read_machine_facts(const RunDirectory& run, uint32_t world_size) {
  MachineFacts facts;
  struct statvfs shm {};
  if (statvfs(kShmDirectory, &shm) == 0) {
    facts.shm_free_bytes = static_cast<uint64_t>(shm.f_bavail) * shm.f_frsize;
  }
  facts.shm_held_bytes = held_bytes(run.control_segment());
  for (uint32_t r = 0; r < world_size; ++r) {
    facts.shm_held_bytes += held_bytes(run.arena_segment(Rank(r)));
    facts.shm_held_bytes += held_bytes(run.gradient_segment(Rank(r)));
    facts.shm_held_bytes += held_bytes(run.resident_segment(Rank(r)));
  }
  apply_cgroup({"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
               cgroup_path(true), &facts);
  apply_cgroup({"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                "total_inactive_file"},
               cgroup_path(false), &facts);
  const uint64_t free_kib = read_field("/proc/meminfo", "MemAvailable:", kNoLimit / 1024);
  facts.host_free_bytes = free_kib == kNoLimit / 1024 ? kNoLimit : free_kib * 1024;
  facts.descriptor_limit = limit_of(RLIMIT_NOFILE);
  facts.memlock_limit_bytes = limit_of(RLIMIT_MEMLOCK);
  std::optional<std::string> visible;
  if (const char* list = std::getenv("CUDA_VISIBLE_DEVICES")) visible = list;
  facts.gpu_count = visible_gpu_count(visible, count_gpus());
  return facts;
}

}  // namespace optlease
