#include "launcher/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "shm/eintr.h"
#include "shm/shared_buffer.h"

namespace optlease {
namespace {

Status io_error(const std::string& what, const std::string& path) {
  const auto code = errno == ENOENT   ? StatusCode::kNotFound
                    : errno == EACCES ? StatusCode::kPermission
                    : errno == ENOSPC ? StatusCode::kNoSpace
                                      : StatusCode::kIo;
  return {code, what + " " + path + ": " + strerror(errno)};
}

Status write_bytes(int fd, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t put =
        retry_eintr([&] { return write(fd, text.data() + done, text.size() - done); });
    if (put <= 0) return io_error("cannot write", path);
    done += static_cast<size_t>(put);
  }
  return Status::ok();
}

Status write_all(int fd, const std::string& text, const std::string& path) {
  OPTLEASE_TRY(write_bytes(fd, text, path));
  if (retry_eintr([&] { return fsync(fd); }) != 0) return io_error("cannot sync", path);
  return Status::ok();
}

// A device, pipe or socket is written into: a rename would put a regular file in its place.
Status write_into(const std::string& path, const std::string& text) {
  const UniqueFd fd(retry_eintr([&] { return open(path.c_str(), O_WRONLY | O_CLOEXEC); }));
  if (!fd) return io_error("cannot open", path);
  return write_bytes(fd.get(), text, path);
}

}  // namespace

Status write_file_atomically(const std::string& named, const std::string& text) {
  struct stat found {};
  const bool exists = stat(named.c_str(), &found) == 0;
  if (exists && S_ISDIR(found.st_mode)) {
    return {StatusCode::kInvalidArgument, named + " is a directory: name a file"};
  }
  if (exists && !S_ISREG(found.st_mode)) return write_into(named, text);
  // A link stays a link: what it points to is replaced.
  std::error_code unresolved;
  const std::string path = exists ? std::filesystem::canonical(named, unresolved).string() : named;
  if (unresolved) return {StatusCode::kIo, named + ": " + unresolved.message()};
  const std::string temporary = path + format(".%d.tmp", static_cast<int>(getpid()));
  Status status;
  {
    const UniqueFd fd(retry_eintr([&] {
      return open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    }));
    if (!fd) return io_error("cannot create", temporary);
    status = write_all(fd.get(), text, temporary);
  }
  if (status.is_ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = io_error("cannot rename a finished file to", path);
  }
  if (!status.is_ok()) unlink(temporary.c_str());
  return status;
}

Status check_writable(const std::string& path) {
  struct stat found {};
  const bool exists = stat(path.c_str(), &found) == 0;
  if (exists && S_ISDIR(found.st_mode)) {
    return {StatusCode::kInvalidArgument, path + " is a directory: name a file"};
  }
  if (exists && !S_ISREG(found.st_mode)) {
    return access(path.c_str(), W_OK) == 0 ? Status::ok() : io_error("cannot write", path);
  }
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string directory = parent.empty() ? "." : parent;
  if (access(directory.c_str(), W_OK | X_OK) == 0) {
    if (stat(directory.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return Status::ok();
    errno = ENOTDIR;
  }
  return io_error("cannot write in", directory);
}

Result<std::string> read_whole_file(const std::string& path, uint64_t bytes_max) {
  const UniqueFd fd(retry_eintr([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!fd) return io_error("cannot open", path);
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = retry_eintr([&] { return read(fd.get(), buffer, sizeof buffer); });
    if (got < 0) return io_error("cannot read", path);
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > bytes_max) {
      return Status(StatusCode::kIo, format("%s is larger than %llu bytes", path.c_str(),
                                            static_cast<unsigned long long>(bytes_max)));
    }
  }
}

}  // namespace optlease
