#include "actors/client/space_buffers.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "shm/kill_point.h"

namespace optlease {

namespace {

constexpr int kVaultRetryMs = 20;
constexpr int kVaultCallMs = 2000;

// False where another try would end the same way.
bool retry_can_help(StatusCode code) {
  return code != StatusCode::kPermission && code != StatusCode::kInvalidArgument &&
         code != StatusCode::kCorrupt && code != StatusCode::kWrongVersion &&
         code != StatusCode::kUnsupported;
}

Result<VaultEntry> get_when_there(const std::string& socket, const std::string& key,
                                  Deadline deadline) {
  for (;;) {
    const auto call_ms = static_cast<uint64_t>(std::max(deadline.remaining_ms(kVaultCallMs), 1));
    auto entry = vault_get(socket, key, call_ms);
    if (entry || !retry_can_help(entry.status().code())) return entry;
    if (deadline.passed())
      return Status{
          StatusCode::kTimeout,
          format("the shared buffer '%s' did not appear in time at %s (%s): the actor makes "
                 "it when it starts; check that `optlease run` still runs, and its logs",
                 key.c_str(), socket.c_str(), entry.status().text().c_str())};
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline.remaining_ms(kVaultRetryMs)));
  }
}

Result<MappedDeviceBuffer> map_buffer(const DeviceMemory& memory, const std::string& socket,
                                      const std::string& key, uint64_t bytes_needed,
                                      Deadline deadline) {
  auto entry = get_when_there(socket, key, deadline);
  if (!entry) return entry.status();
  if (entry.value().bytes < bytes_needed)
    return Status{
        StatusCode::kCorrupt,
        format("the shared buffer '%s' has %llu bytes, the job's plan needs %llu: it belongs "
               "to another plan",
               key.c_str(), static_cast<unsigned long long>(entry.value().bytes),
               static_cast<unsigned long long>(bytes_needed))};
  KILL_POINT("client.fd_received");
  auto mapped = memory.map(entry.value().fd.get(), bytes_needed);
  if (!mapped)
    return Status{mapped.status().code(), format("the shared buffer '%s' cannot be mapped: %s",
                                                 key.c_str(), mapped.status().message().c_str())};
  return mapped;
}

}  // namespace

Result<std::vector<ClientSpaceBuffers>> map_space_buffers(const SegmentPlan& plan, uint32_t rank,
                                                          DevicePlace place,
                                                          const std::string& vault_socket,
                                                          Deadline deadline) {
  const Result<DeviceMemory> memory = DeviceMemory::open(place);
  if (!memory) return memory.status();
  std::vector<ClientSpaceBuffers> buffers(plan.spaces.size());
  for (size_t i = 0; i < plan.spaces.size(); ++i) {
    const SpaceSpec& space = plan.spaces[i];
    buffers[i].is_member = member_index(space, Rank{rank}) >= 0;
    if (!buffers[i].is_member || space.elements == 0) continue;
    auto params = map_buffer(memory.value(), vault_socket, vault_key("param", rank, space.name),
                             space.elements * bytes_of(space.param_dtype), deadline);
    if (!params) return params.status();
    auto grads = map_buffer(memory.value(), vault_socket, vault_key("grad", rank, space.name),
                            space.elements * bytes_of(space.grad_dtype), deadline);
    if (!grads) return grads.status();
    buffers[i].params = std::move(params.value());
    buffers[i].grads = std::move(grads.value());
  }
  return buffers;
}

}  // namespace optlease
