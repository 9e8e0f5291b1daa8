#include "actors/gpu_actor/gloo_rendezvous.h"

#include <cstring>
#include <type_traits>

namespace optlease {
namespace {

constexpr uint32_t kFileMagic = 0x524f4c47;  // "GLOR"
constexpr uint32_t kAddressBytesMax = 4096;

// Then, for each rank of the world: uint32 bytes, the address.
struct FileHeader {
  uint32_t magic;
  uint32_t rank;
  uint64_t group_epoch;
  uint32_t world;
  uint32_t total_bytes;
};
static_assert(sizeof(FileHeader) == 24 && std::is_trivially_copyable_v<FileHeader>);

std::string serialize(const GroupPlace& place, const PeerAddresses& addresses) {
  std::string entries;
  for (const std::string& address : addresses) {
    const auto bytes = static_cast<uint32_t>(address.size());
    entries.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(address);
  }
  const FileHeader header{kFileMagic, place.rank, place.group_epoch, place.world,
                          static_cast<uint32_t>(sizeof header + entries.size())};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + entries;
}

}  // namespace

Status publish_addresses(const GroupPlace& place, const PeerAddresses& addresses) {
  OPTLEASE_CHECK(addresses.size() == place.world, "%zu addresses for %u ranks", addresses.size(),
                 place.world);
  return publish_file(place, std::to_string(place.rank), serialize(place, addresses)).status();
}

Result<std::string> read_address(const GroupPlace& place, uint32_t peer) {
  const std::string path = folder_of(place) + "/" + std::to_string(peer);
  Result<std::string> file = read_rendezvous_file(path);
  if (!file) return file;
  const std::string& bytes = file.value();
  const Status corrupt(StatusCode::kCorrupt, path + ": is no address file of this group epoch");
  FileHeader header;
  if (bytes.size() < sizeof header) return corrupt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kFileMagic || header.rank != peer ||
      header.group_epoch != place.group_epoch || header.world != place.world ||
      header.total_bytes != bytes.size())
    return corrupt;
  size_t at = sizeof header;
  for (uint32_t rank = 0; rank < place.world; ++rank) {
    uint32_t length = 0;
    if (bytes.size() - at < sizeof length) return corrupt;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    at += sizeof length;
    if (length > kAddressBytesMax || bytes.size() - at < length) return corrupt;
    if (rank == place.rank) return bytes.substr(at, length);
    at += length;
  }
  return corrupt;
}

}  // namespace optlease
