#include "actors/gpu_actor/nccl_rendezvous.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>

namespace optlease {
namespace {

constexpr uint32_t kPresenceMagic = 0x50434e4c;  // "LNCP"
constexpr uint32_t kIdMagic = 0x49434e4c;        // "LNCI"

struct PresenceFile {
  uint32_t magic;
  uint32_t rank;
  uint64_t group_epoch;
  uint32_t world;
  uint32_t reserved_zero;
  unsigned char gpu[16];
};
static_assert(sizeof(PresenceFile) == 40 && std::is_trivially_copyable_v<PresenceFile>);

struct IdFile {
  uint32_t magic;
  uint32_t world;
  uint64_t group_epoch;
  char id[128];
};
static_assert(sizeof(IdFile) == 144 && std::is_trivially_copyable_v<IdFile>);

template <class File>
std::string bytes_of_file(const File& file) {
  return {reinterpret_cast<const char*>(&file), sizeof file};
}

constexpr const char* kIdName = "nccl_id";

std::string presence_name(uint32_t rank) { return "gpu_rank_" + std::to_string(rank); }

}  // namespace

NcclRendezvous::NcclRendezvous(GroupPlace place)
    : place_(std::move(place)), peers_(place_.world), gpus_(place_.world) {}

Status NcclRendezvous::announce(const GpuUuid& gpu) {
  PresenceFile file{kPresenceMagic, place_.rank, place_.group_epoch, place_.world, 0, {}};
  std::memcpy(file.gpu, gpu.data(), gpu.size());
  gpus_[place_.rank] = gpu;
  Result<UniqueFd> published =
      publish_file(place_, presence_name(place_.rank), bytes_of_file(file));
  if (!published) return published.status();
  presence_ = std::move(published).value();
  return Status::ok();
}

void NcclRendezvous::leave() {
  presence_ = UniqueFd();
  for (UniqueFd& peer : peers_) peer = UniqueFd();
}

Result<uint32_t> NcclRendezvous::first_missing() {
  for (uint32_t rank = 0; rank < place_.world; ++rank) {
    if (rank == place_.rank || peers_[rank]) continue;
    const Status met = meet(rank);
    if (met.code() == StatusCode::kBusy) return rank;
    if (!met.is_ok()) return met;
  }
  return place_.world;
}

Status NcclRendezvous::meet(uint32_t peer) {
  const std::string path = folder_of(place_) + "/" + presence_name(peer);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return Status(StatusCode::kBusy, path + ": not there yet");
  if (!fd)
    return Status(StatusCode::kIo, format("%s: cannot open: %s", path.c_str(), strerror(errno)));
  const Result<std::string> bytes = read_rendezvous_file(path);
  if (!bytes) return bytes.status();
  PresenceFile file{};
  if (bytes.value().size() == sizeof file) std::memcpy(&file, bytes.value().data(), sizeof file);
  if (file.magic != kPresenceMagic || file.rank != peer || file.group_epoch != place_.group_epoch ||
      file.world != place_.world)
    return Status(StatusCode::kCorrupt, path + ": is no presence file of this group epoch");
  std::memcpy(gpus_[peer].data(), file.gpu, sizeof file.gpu);
  if (gpus_[peer] == gpus_[place_.rank])
    return Status(StatusCode::kUnsupported,
                  format("ranks %u and %u both use one GPU, and NCCL needs a GPU a rank: run as "
                         "many ranks as the machine has GPUs, or make more of them visible "
                         "(CUDA_VISIBLE_DEVICES)",
                         std::min(peer, place_.rank), std::max(peer, place_.rank)));
  peers_[peer] = std::move(fd);
  return Status::ok();
}

uint32_t NcclRendezvous::first_gone() const {
  for (uint32_t rank = 0; rank < place_.world; ++rank) {
    if (!peers_[rank]) continue;
    // Whoever belongs to the epoch holds the lock exclusively.
    if (::flock(peers_[rank].get(), LOCK_SH | LOCK_NB) != 0) continue;
    ::flock(peers_[rank].get(), LOCK_UN);
    return rank;
  }
  return place_.world;
}

Status NcclRendezvous::publish_id(const NcclIdBytes& id) {
  IdFile file{kIdMagic, place_.world, place_.group_epoch, {}};
  std::memcpy(file.id, id.data(), id.size());
  return publish_file(place_, kIdName, bytes_of_file(file)).status();
}

Result<NcclIdBytes> NcclRendezvous::read_id() const {
  const std::string path = folder_of(place_) + "/" + kIdName;
  const Result<std::string> bytes = read_rendezvous_file(path);
  if (!bytes) return bytes.status();
  IdFile file{};
  if (bytes.value().size() == sizeof file) std::memcpy(&file, bytes.value().data(), sizeof file);
  if (file.magic != kIdMagic || file.group_epoch != place_.group_epoch ||
      file.world != place_.world)
    return Status(StatusCode::kCorrupt, path + ": holds no NCCL id of this group epoch");
  NcclIdBytes id;
  std::memcpy(id.data(), file.id, id.size());
  return id;
}

}  // namespace optlease
