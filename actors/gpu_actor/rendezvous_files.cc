#include "actors/gpu_actor/rendezvous_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <vector>

namespace optlease {
namespace {

Status io_error(const std::string& path, const char* what) {
  return Status(StatusCode::kIo, format("%s: %s: %s", path.c_str(), what, std::strerror(errno)));
}

Status make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return Status::ok();
  return io_error(path, "cannot create the folder");
}

Status write_all(int fd, const std::string& path, const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno != EINTR) return io_error(path, "cannot write");
    if (put > 0) done += static_cast<size_t>(put);
  }
  return Status::ok();
}

}  // namespace

std::string folder_of(const GroupPlace& place) {
  return place.directory + "/" + std::to_string(place.group_epoch);
}

Result<UniqueFd> publish_file(const GroupPlace& place, const std::string& name,
                              const std::string& bytes) {
  OPTLEASE_TRY(make_directory(place.directory));
  OPTLEASE_TRY(make_directory(folder_of(place)));
  const std::string path = folder_of(place) + "/" + name;
  const std::string temporary = path + "." + std::to_string(::getpid());
  UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return io_error(temporary, "cannot create");
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return io_error(temporary, "cannot lock");
  OPTLEASE_TRY(write_all(fd.get(), temporary, bytes));
  if (::rename(temporary.c_str(), path.c_str()) != 0) return io_error(path, "cannot rename to");
  return fd;
}

Result<std::string> read_rendezvous_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
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
