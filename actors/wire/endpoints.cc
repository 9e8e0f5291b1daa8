#include "actors/wire/endpoints.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "shm/contract/job_name.h"
#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr int kMakeAttempts = 8;
constexpr uid_t kOverflowUid = 65534;

// What is at `path`, which somebody else may have prepared: their directory, or a symlink to one,
// would let them see and replace the job's sockets and files.
Status check_private_directory(const std::string& path, const struct stat& found) {
  if (S_ISLNK(found.st_mode)) {
    return Status(StatusCode::kPermission,
                  format("%s is a symbolic link; remove it: a run directory must be a real one",
                         path.c_str()));
  }
  if (!S_ISDIR(found.st_mode)) {
    return Status(StatusCode::kPermission,
                  format("%s is not a directory; remove it", path.c_str()));
  }
  if (found.st_uid != ::geteuid()) {
    return Status(StatusCode::kPermission,
                  format("%s belongs to user %u, not to user %u; remove it, or set XDG_RUNTIME_DIR",
                         path.c_str(), found.st_uid, ::geteuid()));
  }
  if ((found.st_mode & 0777) != 0700) {
    return Status(StatusCode::kPermission,
                  format("%s has mode %03o; others could reach the job: chmod 700 it", path.c_str(),
                         found.st_mode & 0777));
  }
  return Status::ok();
}

// Makes `path` where it is missing, then checks what is really there.
Status make_private_directory(const std::string& path) {
  struct stat found {};
  int made = 0, looked = 0;
  // A cleaner may remove the directory between the two calls, and again.
  for (int attempt = 0; attempt < kMakeAttempts; ++attempt) {
    made = ::mkdir(path.c_str(), 0700);
    if (made != 0 && errno != EEXIST) break;
    looked = ::lstat(path.c_str(), &found);
    if (looked == 0 || errno != ENOENT) {
      made = 0;
      break;
    }
  }
  if (made != 0) {
    const int error = errno;
    const StatusCode code = error == ENOENT   ? StatusCode::kIo
                            : error == ENOSPC ? StatusCode::kNoSpace
                                              : StatusCode::kPermission;
    return Status(code, format("the run directory %s cannot be made: %s; set XDG_RUNTIME_DIR to a "
                               "directory of yours, or unset it to use /tmp",
                               path.c_str(), std::strerror(error)));
  }
  if (looked != 0) {
    return Status(StatusCode::kIo, format("lstat of %s: %s", path.c_str(), std::strerror(errno)));
  }
  return check_private_directory(path, found);
}

// NotFound: nothing is there.
Status look_at_private_directory(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) == 0) return check_private_directory(path, found);
  const bool absent = errno == ENOENT || errno == ENOTDIR;
  return Status(absent ? StatusCode::kNotFound : StatusCode::kPermission,
                format("%s: %s", path.c_str(), std::strerror(errno)));
}

bool is_of_unmapped_user(uid_t uid) {
  std::ifstream uid_map("/proc/self/uid_map");
  return is_unmapped(uid, uid_map);
}

// Whoever may rename what lies in the folder of the run root can put a directory in its place. One
// that is not there is found out by those who use it.
Status check_folder_of(const std::string& root) {
  const size_t slash = root.rfind('/');
  const std::string folder = slash == 0 ? "/" : root.substr(0, slash);
  struct stat found {};
  if (::stat(folder.c_str(), &found) != 0) return Status::ok();
  const char* const advice = "set XDG_RUNTIME_DIR to a directory of yours, or unset it to use /tmp";
  if (found.st_uid != 0 && found.st_uid != ::geteuid() && !is_of_unmapped_user(found.st_uid)) {
    return Status(
        StatusCode::kPermission,
        format("%s belongs to user %u, who could put another run directory in the place of %s: %s",
               folder.c_str(), found.st_uid, root.c_str(), advice));
  }
  if ((found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0) {
    return Status(StatusCode::kPermission,
                  format("everybody may write in %s (mode %04o, no sticky bit), and put another "
                         "run directory in the place of %s: chmod +t it, or %s",
                         folder.c_str(), found.st_mode & 07777, root.c_str(), advice));
  }
  return Status::ok();
}

}  // namespace

bool is_unmapped(uid_t uid, std::istream& uid_map) {
  if (uid != kOverflowUid) return false;
  bool has_ranges = false;
  uint64_t inside = 0, outside = 0, count = 0;
  while (uid_map >> inside >> outside >> count) {
    if (uid >= inside && uid - inside < count) return false;
    has_ranges = true;
  }
  return has_ranges && uid_map.eof();
}

std::string why_invalid_job_name(const std::string& name) {
  if (name.empty()) return "a job name is empty";
  if (name.size() > kJobNameBytesMax) {
    return format("the job name has %zu bytes; at most %u are allowed", name.size(),
                  kJobNameBytesMax);
  }
  if (name[0] == '-') return "a job name starts with '-', as an option does";
  for (const char c : name) {
    if (!is_job_name_byte(c)) {
      return format("the job name holds the byte 0x%02x; allowed are letters, digits, '_' and '-'",
                    static_cast<unsigned char>(c));
    }
  }
  return {};
}

std::string run_root() { return run_root_under(std::getenv("XDG_RUNTIME_DIR")); }

std::string run_root_under(const char* runtime) {
  // The XDG specification has relative paths ignored.
  if (runtime != nullptr && runtime[0] == '/') {
    std::string root = runtime;
    while (root.size() > 1 && root.back() == '/') root.pop_back();
    return root + "/optlease";
  }
  return format("/tmp/optlease-%u", ::geteuid());
}

Result<RunDirectory> RunDirectory::of(const std::string& job_name) {
  if (const std::string broken_rule = why_invalid_job_name(job_name); !broken_rule.empty()) {
    return Status(StatusCode::kInvalidArgument, broken_rule);
  }
  RunDirectory directory;
  directory.job_name_ = job_name;
  directory.path_ = run_root() + "/" + job_name;
  // The longest of all socket paths: the highest rank's telemetry.
  const std::string longest = directory.telemetry_socket(Rank(kRankCountMax - 1));
  if (longest.size() > kSocketPathBytesMax) {
    return Status(
        StatusCode::kInvalidArgument,
        format("the socket path %s has %zu bytes; Unix sockets allow %u: choose a shorter job name "
               "or XDG_RUNTIME_DIR",
               longest.c_str(), longest.size(), kSocketPathBytesMax));
  }
  return directory;
}

Status RunDirectory::create() const {
  const std::string root = run_root();
  OPTLEASE_TRY(check_folder_of(root));
  OPTLEASE_TRY(make_private_directory(root));
  return make_private_directory(path_);
}

Status RunDirectory::check() const {
  const std::string root = run_root();
  OPTLEASE_TRY(check_folder_of(root));
  OPTLEASE_TRY(look_at_private_directory(root));
  return look_at_private_directory(path_);
}

std::string RunDirectory::job_file() const { return path_ + "/job.json"; }
std::string RunDirectory::kept_file() const { return path_ + "/kept.json"; }
std::string RunDirectory::store_socket() const { return path_ + "/store.sock"; }
std::string RunDirectory::launcher_socket() const { return path_ + "/launcher.sock"; }
std::string RunDirectory::vault_socket() const { return path_ + "/vault.sock"; }
std::string RunDirectory::actor_socket(Rank rank) const {
  return path_ + format("/actor.%u.sock", rank.value);
}
std::string RunDirectory::telemetry_socket(Rank rank) const {
  return path_ + format("/telemetry.%u.sock", rank.value);
}
std::string RunDirectory::snapshot_socket(Rank rank) const {
  return path_ + format("/snapshot.%u.sock", rank.value);
}
std::string RunDirectory::group_directory() const { return path_ + "/group"; }
std::string RunDirectory::log_file(const std::string& process) const {
  return path_ + "/" + process + ".log";
}

std::string RunDirectory::control_segment() const {
  return "/" + segment_prefix() + job_name_ + ".ctl";
}
std::string RunDirectory::arena_segment(Rank rank) const {
  return "/" + segment_prefix() + job_name_ + format(".r%u", rank.value);
}
std::string RunDirectory::resident_segment(Rank rank) const {
  return "/" + segment_prefix() + job_name_ + format(".d%u", rank.value);
}
std::string RunDirectory::gradient_segment(Rank rank) const {
  return "/" + segment_prefix() + job_name_ + format(".g%u", rank.value);
}
std::string RunDirectory::lock_segment() const {
  return "/" + segment_prefix() + job_name_ + ".lock";
}

std::string segment_prefix() { return format("optlease.%u.", ::geteuid()); }

}  // namespace optlease
