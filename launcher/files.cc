#include "launcher/files.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "actors/runtime/clock.h"
#include "shm/eintr.h"
#include "shm/kill_point.h"
#include "shm/segment.h"
#include "shm/shared_buffer.h"

namespace optlease {
namespace {

constexpr int kStreamMsMax = 10'000;
constexpr int kStreamRetryMs = 20;

Status io_error(const std::string& what, const std::string& path) {
  const auto code = errno == ENOENT   ? StatusCode::kNotFound
                    : errno == EACCES ? StatusCode::kPermission
                    : errno == ENOSPC ? StatusCode::kNoSpace
                                      : StatusCode::kIo;
  return {code, what + " " + path + ": " + strerror(errno)};
}

Status write_bytes(int fd, const std::string& text, const std::string& path, Deadline deadline) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t put =
        retry_eintr([&] { return write(fd, text.data() + done, text.size() - done); });
    if (put > 0) {
      done += static_cast<size_t>(put);
      continue;
    }
    if (put < 0 && errno != EAGAIN) return io_error("cannot write", path);
    if (deadline.passed()) {
      return {StatusCode::kTimeout, format("%s took %zu of %zu bytes in %d ms", path.c_str(), done,
                                           text.size(), kStreamMsMax)};
    }
    pollfd waiting{fd, POLLOUT, 0};
    (void)poll(&waiting, 1, deadline.remaining_ms(kStreamRetryMs));
  }
  return Status::ok();
}

Status write_all(int fd, const std::string& text, const std::string& path) {
  OPTLEASE_TRY(write_bytes(fd, text, path, Deadline::after_ms(kStreamMsMax)));
  if (retry_eintr([&] { return fsync(fd); }) != 0) return io_error("cannot sync", path);
  return Status::ok();
}

// A device or pipe is written into: a rename would put a regular file in its place. A pipe that
// nobody reads, or reads too slowly, ends in words.
Status write_into(const std::string& path, const std::string& text) {
  const Deadline deadline = Deadline::after_ms(kStreamMsMax);
  while (true) {
    const UniqueFd fd(retry_eintr([&] {
      return open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }));
    if (fd) return write_bytes(fd.get(), text, path, deadline);
    if (errno != ENXIO) return io_error("cannot open", path);
    if (deadline.passed()) {
      return {StatusCode::kTimeout,
              format("nobody reads %s: waited %d ms", path.c_str(), kStreamMsMax)};
    }
    poll(nullptr, 0, kStreamRetryMs);
  }
}

// Where the bytes for a name go. A link stays a link: what it points to is replaced.
struct Target {
  std::string path;
  bool is_stream = false;  // a device, a pipe, or a file that this process has open
};

// Whether this process has the file open, by whatever name: a regular file behind /dev/stdout is
// one that somebody else (a shell's redirection) opened; it is written to, as they meant it, not
// replaced.
bool is_open_here(const struct stat& file) {
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", unreadable)) {
    struct stat open {};
    if (stat(entry.path().c_str(), &open) != 0) continue;  // the iterator's own, gone by now
    if (open.st_dev == file.st_dev && open.st_ino == file.st_ino) return true;
  }
  return false;
}

// A file of shared memory that is a job's by its name, or would be.
Status check_is_no_segment(const std::string& named, const std::string& path) {
  if (!path.starts_with(Segment::path_of("/optlease."))) return Status::ok();
  return {StatusCode::kInvalidArgument, named + " is shared memory of a job: name another file"};
}

// `named` does not exist. Where its folder does not either, the writer will say so.
Result<Target> target_of_new(const std::string& named) {
  const std::filesystem::path name(named);
  std::error_code unresolved;
  const auto folder = std::filesystem::canonical(
      name.has_parent_path() ? name.parent_path() : std::filesystem::path("."), unresolved);
  if (unresolved) return Target{named, false};
  const std::string path = (folder / name.filename()).string();
  OPTLEASE_TRY(check_is_no_segment(named, path));
  return Target{path, false};
}

Result<Target> target_of(const std::string& named) {
  struct stat found {};
  if (stat(named.c_str(), &found) != 0) {
    const int error = errno;
    if (lstat(named.c_str(), &found) != 0) return target_of_new(named);
    errno = error;
    if (error != ENOENT) return io_error("cannot follow the link", named);
    return Status(StatusCode::kInvalidArgument,
                  named + " is a link to nothing: name the file, or remove the link");
  }
  if (S_ISDIR(found.st_mode)) {
    return Status(StatusCode::kInvalidArgument, named + " is a directory: name a file");
  }
  if (S_ISSOCK(found.st_mode)) {
    return Status(StatusCode::kInvalidArgument, named + " is a socket: name a file or a pipe");
  }
  if (!S_ISREG(found.st_mode) || is_open_here(found)) return Target{named, true};
  std::error_code unresolved;
  const std::string path = std::filesystem::canonical(named, unresolved).string();
  if (unresolved) return Status(StatusCode::kIo, named + ": " + unresolved.message());
  OPTLEASE_TRY(check_is_no_segment(named, path));
  return Target{path, false};
}

std::string temporary_beside(const std::string& path) {
  return path + format(".%d.tmp", static_cast<int>(getpid()));
}

// Always a new file: nobody else has one open, or linked, that lay under the name before. Where
// that one cannot be removed (another user's, in a folder such as /tmp), there is none. Whatever
// happens, the name does not outlive this but by the rename.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)) {
    unlink(path_.c_str());
    fd_ = UniqueFd(retry_eintr(
        [&] { return open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600); }));
    is_there_ = static_cast<bool>(fd_);
  }
  ~Temporary() {
    if (is_there_) unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  explicit operator bool() const { return is_there_; }
  const std::string& path() const { return path_; }
  Status fill(const std::string& text) {
    const UniqueFd fd = std::move(fd_);
    return write_all(fd.get(), text, path_);
  }
  Status rename_to(const std::string& path) {
    if (rename(path_.c_str(), path.c_str()) != 0) {
      return io_error("cannot rename a finished file to", path);
    }
    is_there_ = false;
    return Status::ok();
  }

 private:
  std::string path_;
  UniqueFd fd_;
  bool is_there_ = false;
};

// Whether the pipe's last writer is gone: one that no writer has opened yet has not lost it.
bool has_lost_its_writers(int pipe) {
  pollfd looked_at{pipe, POLLIN, 0};
  return retry_eintr([&] { return poll(&looked_at, 1, 0); }) == 1 &&
         (looked_at.revents & POLLHUP) != 0;
}

// To its end. A pipe may take its time, as long as something comes: `(a slow command)` is one.
Result<std::string> read_to_end(int fd, bool is_pipe, const std::string& path, uint64_t bytes_max) {
  Deadline deadline = Deadline::after_ms(kStreamMsMax);
  std::string text;
  std::vector<char> buffer(1 << 16);
  while (true) {
    const ssize_t got = retry_eintr([&] { return read(fd, buffer.data(), buffer.size()); });
    const bool is_early =
        (got < 0 && errno == EAGAIN) || (got == 0 && is_pipe && !has_lost_its_writers(fd));
    if (is_early && !deadline.passed()) {
      poll(nullptr, 0, kStreamRetryMs);
      continue;
    }
    if (is_early) {
      return Status(StatusCode::kTimeout, format("%s gave %zu bytes, and then none for %d ms",
                                                 path.c_str(), text.size(), kStreamMsMax));
    }
    if (got < 0) return io_error("cannot read", path);
    if (got == 0) return text;
    deadline = Deadline::after_ms(kStreamMsMax);
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > bytes_max) {
      return Status(StatusCode::kIo, format("%s is larger than %llu bytes", path.c_str(),
                                            static_cast<unsigned long long>(bytes_max)));
    }
  }
}

}  // namespace

Status write_file_atomically(const std::string& named, const std::string& text) {
  Result<Target> target = target_of(named);
  if (!target.is_ok()) return target.status();
  if (target.value().is_stream) return write_into(named, text);
  const std::string& path = target.value().path;
  Temporary temporary(temporary_beside(path));
  if (!temporary) return io_error("cannot create", temporary.path());
  Status status = temporary.fill(text);
  KILL_POINT("file.written");
  if (status.is_ok()) status = temporary.rename_to(path);
  KILL_POINT("file.renamed");
  return status;
}

// Does what the writer will do, short of the bytes and the rename.
Status check_writable(const std::string& named) {
  Result<Target> target = target_of(named);
  if (!target.is_ok()) return target.status();
  if (target.value().is_stream) {
    return access(named.c_str(), W_OK) == 0 ? Status::ok() : io_error("cannot write", named);
  }
  const std::string& path = target.value().path;
  {
    const Temporary temporary(temporary_beside(path));
    if (!temporary) return io_error("cannot create", temporary.path());
  }
  // In a sticky directory only the owner of a file, or of the directory, may replace it.
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  struct stat file {
  }, directory{};
  const bool replaces = stat(path.c_str(), &file) == 0;
  if (!replaces || stat(parent.empty() ? "." : parent.c_str(), &directory) != 0) {
    return Status::ok();
  }
  const uid_t me = geteuid();
  if ((directory.st_mode & S_ISVTX) != 0 && me != 0 && file.st_uid != me &&
      directory.st_uid != me) {
    return {
        StatusCode::kPermission,
        format("%s belongs to user %u and lies in a sticky directory: user %u cannot replace it",
               path.c_str(), file.st_uid, me)};
  }
  return Status::ok();
}

Result<std::string> replaceable_path(const std::string& named) {
  const Result<Target> target = target_of(named);
  if (!target.is_ok()) return target.status();
  if (target.value().is_stream) {
    return Status(StatusCode::kInvalidArgument,
                  named +
                      " is no regular file, or it is open here, and the whole file is put in "
                      "its place: name another");
  }
  OPTLEASE_TRY(check_writable(named));
  return target.value().path;
}

Result<std::string> read_whole_file(const std::string& path, uint64_t bytes_max) {
  // A pipe without a writer would otherwise hold whoever opens it.
  const UniqueFd fd(
      retry_eintr([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd) return io_error("cannot open", path);
  struct stat found {};
  const bool is_pipe = fstat(fd.get(), &found) == 0 && S_ISFIFO(found.st_mode);
  return read_to_end(fd.get(), is_pipe, path, bytes_max);
}

Result<std::string> read_regular_file(const std::string& path, uint64_t bytes_max) {
  const UniqueFd fd(retry_eintr(
      [&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }));
  if (!fd) return io_error("cannot open", path);
  struct stat found {};
  if (fstat(fd.get(), &found) != 0) return io_error("cannot look at", path);
  if (!S_ISREG(found.st_mode)) {
    return Status(StatusCode::kInvalidArgument, path + " is no regular file");
  }
  return read_to_end(fd.get(), false, path, bytes_max);
}

Status remove_entries(const std::string& directory,
                      const std::function<bool(const std::string& path)>& kept) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(directory, error))) return Status::ok();
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (!kept(entry.path().string())) entries.push_back(entry.path());
  }
  if (error) return {StatusCode::kIo, "cannot read " + directory + ": " + error.message()};
  for (const fs::path& entry : entries) {
    fs::remove_all(entry, error);
    if (error) return {StatusCode::kIo, "cannot remove " + entry.string() + ": " + error.message()};
  }
  return Status::ok();
}

}  // namespace optlease
