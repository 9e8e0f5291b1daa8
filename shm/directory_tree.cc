#include "shm/directory_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "shm/eintr.h"

namespace optlease {
namespace {

constexpr int kDepthMax = 16;

Status failed(const char* what, const std::string& path) {
  const StatusCode code = errno == ENOENT ? StatusCode::kNotFound
                          : errno == EACCES || errno == EPERM || errno == ELOOP
                              ? StatusCode::kPermission
                              : StatusCode::kIo;
  return {code, format("%s %s: %s", what, path.c_str(), ::strerror(errno))};
}

// One walk; its device is that of the tree's root.
class Walk {
 public:
  Walk(bool remove, std::vector<TreeEntry>* entries) : remove_(remove), entries_(entries) {}

  Status visit(int parent, const std::string& name, const std::string& shown, int depth) {
    struct stat info {};
    if (::fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      return errno == ENOENT ? Status::ok() : failed("fstatat", shown);  // somebody was faster
    }
    if (info.st_uid != ::geteuid()) {
      return {StatusCode::kPermission, format("%s belongs to uid %u and stays", shown.c_str(),
                                              static_cast<unsigned>(info.st_uid))};
    }
    if (S_ISDIR(info.st_mode)) OPTLEASE_TRY(visit_inside(parent, name, shown, info.st_dev, depth));
    if (remove_ &&
        ::unlinkat(parent, name.c_str(), S_ISDIR(info.st_mode) ? AT_REMOVEDIR : 0) != 0 &&
        errno != ENOENT) {
      return failed("unlink", shown);
    }
    const bool has_bytes = S_ISREG(info.st_mode);
    entries_->push_back({shown, has_bytes ? static_cast<uint64_t>(info.st_blocks) * 512 : 0});
    return Status::ok();
  }

 private:
  Status visit_inside(int parent, const std::string& name, const std::string& shown, dev_t device,
                      int depth) {
    if (depth >= kDepthMax) {
      return {StatusCode::kUnsupported,
              format("%s is deeper than %d folders", shown.c_str(), kDepthMax)};
    }
    if (depth == 0) device_ = device;
    if (device != device_) {
      return {StatusCode::kUnsupported, shown + " is on another file system and stays"};
    }
    Result<UniqueFd> inside = open_own_directory(parent, name);
    if (!inside.is_ok()) return inside.status();
    Result<std::vector<std::string>> names = names_in(inside.value().get());
    if (!names.is_ok()) return names.status();
    for (const std::string& entry : names.value()) {
      OPTLEASE_TRY(visit(inside.value().get(), entry, shown + "/" + entry, depth + 1));
    }
    return Status::ok();
  }

  bool remove_;
  std::vector<TreeEntry>* entries_;
  dev_t device_ = 0;
};

}  // namespace

Result<UniqueFd> open_own_directory(int parent, const std::string& path) {
  UniqueFd fd(retry_eintr([&] {
    return ::openat(parent, path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  }));
  if (!fd) return failed("open", path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failed("fstat", path);
  if (info.st_uid != ::geteuid()) {
    return Status{StatusCode::kPermission,
                  format("%s belongs to uid %u", path.c_str(), static_cast<unsigned>(info.st_uid))};
  }
  return fd;
}

Result<std::vector<std::string>> names_in(int directory) {
  // fdopendir takes its descriptor over; the caller keeps its own.
  const int own = ::fcntl(directory, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return failed("dup", "a directory");
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(own), ::closedir);
  if (stream == nullptr) {
    ::close(own);
    return failed("fdopendir", "a directory");
  }
  ::rewinddir(stream.get());
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) return failed("readdir", "a directory");
  std::sort(names.begin(), names.end());
  return names;
}

Status walk_tree(int parent, const std::string& name, const std::string& shown, bool remove,
                 std::vector<TreeEntry>* entries) {
  return Walk(remove, entries).visit(parent, name, shown, 0);
}

}  // namespace optlease
