#include "actors/gpu_actor/gloo_rendezvous.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

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

Status io_error(const std::string& path, const char* what) {
  return Status(StatusCode::kIo, format("%s: %s: %s", path.c_str(), what, std::strerror(errno)));
}

std::string folder_of(const GroupPlace& place) {
  return place.directory + "/" + std::to_string(place.group_epoch);
}

std::string file_of(const GroupPlace& place, uint32_t rank) {
  return folder_of(place) + "/" + std::to_string(rank);
}

Status make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return Status::ok();
  return io_error(path, "cannot create the folder");
}

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

Status write_file(const std::string& path, const std::string& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return io_error(path, "cannot create");
  size_t done = 0;
  Status status;
  while (done < bytes.size() && status.is_ok()) {
    const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (put >= 0)
      done += static_cast<size_t>(put);
    else if (errno != EINTR)
      status = io_error(path, "cannot write");
  }
  ::close(fd);
  return status;
}

Result<std::string> read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT) return Status(StatusCode::kBusy, path + ": not there yet");
  if (fd < 0) return io_error(path, "cannot open");
  std::string bytes;
  char piece[4096];
  ssize_t got = 0;
  do {
    got = ::read(fd, piece, sizeof piece);
    if (got > 0) bytes.append(piece, static_cast<size_t>(got));
  } while (got > 0 || (got < 0 && errno == EINTR));
  const Status status = got == 0 ? Status::ok() : io_error(path, "cannot read");
  ::close(fd);
  if (!status) return status;
  return bytes;
}

}  // namespace

Status publish_addresses(const GroupPlace& place, const PeerAddresses& addresses) {
  OPTLEASE_CHECK(addresses.size() == place.world, "%zu addresses for %u ranks", addresses.size(),
                 place.world);
  OPTLEASE_TRY(make_directory(place.directory));
  OPTLEASE_TRY(make_directory(folder_of(place)));
  const std::string path = file_of(place, place.rank);
  const std::string temporary = path + "." + std::to_string(::getpid());
  OPTLEASE_TRY(write_file(temporary, serialize(place, addresses)));
  if (::rename(temporary.c_str(), path.c_str()) != 0) return io_error(path, "cannot rename to");
  return Status::ok();
}

Result<std::string> read_address(const GroupPlace& place, uint32_t peer) {
  const std::string path = file_of(place, peer);
  Result<std::string> file = read_file(path);
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

void remove_earlier_epochs(const GroupPlace& place) {
  std::error_code error;
  std::filesystem::directory_iterator at(place.directory, error);
  std::vector<std::filesystem::path> earlier;
  for (const std::filesystem::directory_iterator end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    uint64_t epoch = 0;
    const auto [rest, failure] = std::from_chars(name.data(), name.data() + name.size(), epoch);
    // Only names that an epoch would have; whatever else lies here is not ours to remove.
    if (failure == std::errc() && rest == name.data() + name.size() && epoch < place.group_epoch)
      earlier.push_back(at->path());
  }
  for (const std::filesystem::path& folder : earlier) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
}

}  // namespace optlease
