#include "shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/shared_memory_object.hpp>

#include "shm/eintr.h"
#include "shm/kill_point.h"
#include "shm/reserve.h"
#include "shm/shared_buffer.h"

namespace optlease {

namespace bip = boost::interprocess;

struct Segment::Impl {
  std::string name;
  bip::shared_memory_object object;
  bip::mapped_region region;
  uint64_t bytes = 0;
  HugePages pages;

  int fd() const { return object.get_mapping_handle().handle; }
};

namespace {

Status bad_name(const std::string& name) {
  return {StatusCode::kInvalidArgument,
          "a segment's name is '/' and 1..254 bytes without another '/', not '" + name + "'"};
}

bool is_name(const std::string& name) {
  return name.size() >= 2 && name.size() <= 255 && name[0] == '/' &&
         name.find('/', 1) == std::string::npos && name.find('\0') == std::string::npos &&
         name != "/." && name != "/..";
}

Status from_errno(int error, const std::string& what, const std::string& name) {
  const std::string text = what + " " + Segment::path_of(name) + ": " + ::strerror(error);
  switch (error) {
    case ENOENT:
      return {StatusCode::kNotFound, text};
    case EEXIST:
      return {StatusCode::kAlreadyExists, text + "; `optlease clean` removes leftovers"};
    case EACCES:
    case EPERM:
      return {StatusCode::kPermission, text};
    case ELOOP:
      return {StatusCode::kPermission, text + "; a symbolic link is never followed"};
    case ENOSPC:
    case ENOMEM:
      return {StatusCode::kNoSpace, text};
    default:
      return {StatusCode::kIo, text};
  }
}

// Null, or why the open file may not be trusted as a segment of this user.
Status check_file(int fd, const std::string& name, uint64_t* bytes) {
  struct stat info {};
  if (retry_eintr([&] { return ::fstat(fd, &info); }) != 0) return from_errno(errno, "fstat", name);
  const std::string path = Segment::path_of(name);
  if (!S_ISREG(info.st_mode)) return {StatusCode::kPermission, path + " is no regular file"};
  if (info.st_uid != ::geteuid()) {
    return {StatusCode::kPermission,
            format("%s belongs to uid %u, this process runs as uid %u", path.c_str(),
                   static_cast<unsigned>(info.st_uid), static_cast<unsigned>(::geteuid()))};
  }
  if ((info.st_mode & 07777) != 0600) {
    return {StatusCode::kPermission, format("%s has mode %04o, not 0600", path.c_str(),
                                            static_cast<unsigned>(info.st_mode & 07777))};
  }
  if (info.st_size == 0) {
    return {StatusCode::kCorrupt, path + " has no bytes: its creation was never finished"};
  }
  *bytes = static_cast<uint64_t>(info.st_size);
  return Status::ok();
}

// shm_open through Boost, which throws: repeated while signals interrupt it.
template <class Open>
Status open_object(const std::string& name, const char* what, Open open) {
  for (;;) {
    try {
      open();
      return Status::ok();
    } catch (const bip::interprocess_exception& e) {
      if (e.get_native_error() == EINTR) continue;
      return from_errno(e.get_native_error(), what, name);
    }
  }
}

Status map_object(const bip::shared_memory_object& object, bip::mode_t mode, uint64_t bytes,
                  const std::string& name, bip::mapped_region* region) {
  try {
    AddressRange range(bytes);
    *region = bip::mapped_region(object, mode, 0, bytes, range.at(),
                                 range.at() != nullptr ? MAP_FIXED : bip::default_map_options);
    range.release();
    return Status::ok();
  } catch (const bip::interprocess_exception& e) {
    return from_errno(e.get_native_error(),
                      format("mmap of %llu bytes of", static_cast<unsigned long long>(bytes)),
                      name);
  }
}

}  // namespace

Segment::Segment(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;
Segment::~Segment() = default;

Result<Segment> Segment::create(const std::string& name, uint64_t bytes) {
  if (!is_name(name)) return bad_name(name);
  if (bytes == 0) {
    return Status{StatusCode::kInvalidArgument, "segment " + name + " would have no bytes"};
  }
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  impl->bytes = bytes;
  // Boost sets the mode with fchmod after shm_open, so the umask does not narrow or widen it.
  OPTLEASE_TRY(open_object(name, "shm_open(O_CREAT | O_EXCL)", [&] {
    bip::shared_memory_object made(bip::create_only, name.c_str(), bip::read_write,
                                   bip::permissions(0600));
    impl->object.swap(made);
  }));
  KILL_POINT("segment.created");
  // Boost's truncate() would only set a length; the space itself is taken here.
  Status made = reserve_space(impl->fd(), bytes, path_of(name), &impl->pages);
  KILL_POINT("segment.reserved");
  if (made.is_ok()) made = map_object(impl->object, bip::read_write, bytes, name, &impl->region);
  KILL_POINT("segment.mapped");
  if (!made.is_ok()) {
    unlink(name);
    return made;
  }
  return Segment(std::move(impl));
}

Result<Segment> Segment::open(const std::string& name, Access access) {
  if (!is_name(name)) return bad_name(name);
  const bip::mode_t mode = access == Access::kReadOnly ? bip::read_only : bip::read_write;
  // Looked at before it is opened: opening a FIFO would wait for its other end. What was opened is
  // looked at again below, so a swap in between is caught.
  struct stat info {};
  if (retry_eintr([&] { return ::lstat(path_of(name).c_str(), &info); }) != 0) {
    return from_errno(errno, "open", name);
  }
  if (S_ISLNK(info.st_mode)) return from_errno(ELOOP, "open", name);
  if (!S_ISREG(info.st_mode)) {
    return Status{StatusCode::kPermission, path_of(name) + " is no regular file"};
  }
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  // glibc's shm_open adds O_NOFOLLOW and O_CLOEXEC.
  OPTLEASE_TRY(open_object(name, "shm_open", [&] {
    bip::shared_memory_object opened(bip::open_only, name.c_str(), mode);
    impl->object.swap(opened);
  }));
  OPTLEASE_TRY(check_file(impl->fd(), name, &impl->bytes));
  OPTLEASE_TRY(map_object(impl->object, mode, impl->bytes, name, &impl->region));
  return Segment(std::move(impl));
}

void* Segment::data() const { return impl_->region.get_address(); }
uint64_t Segment::bytes() const { return impl_->bytes; }
HugePages Segment::huge_pages() const { return impl_->pages; }
void Segment::unmap() { impl_->region = bip::mapped_region(); }
int Segment::fd() const { return impl_->fd(); }
const std::string& Segment::name() const { return impl_->name; }

bool Segment::name_still_ours() const {
  struct stat ours {
  }, named{};
  if (retry_eintr([&] { return ::fstat(impl_->fd(), &ours); }) != 0) return false;
  if (retry_eintr([&] { return ::lstat(path_of(impl_->name).c_str(), &named); }) != 0) return false;
  return ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

Status Segment::mark_in_use() {
  if (retry_eintr([&] { return ::flock(impl_->fd(), LOCK_EX | LOCK_NB); }) == 0) {
    return Status::ok();
  }
  if (errno != EWOULDBLOCK) return from_errno(errno, "flock", impl_->name);
  return {StatusCode::kBusy, path_of(impl_->name) + " is served by another process"};
}

bool Segment::in_use(const std::string& name) {
  // Without a mapping: only the open file counts.
  const UniqueFd fd(retry_eintr([&] {
    return ::open(path_of(name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  }));
  uint64_t bytes = 0;
  if (!is_name(name) || !fd || !check_file(fd.get(), name, &bytes).is_ok()) return false;
  return retry_eintr([&] { return ::flock(fd.get(), LOCK_SH | LOCK_NB); }) != 0 &&
         errno == EWOULDBLOCK;
}

bool Segment::exists(const std::string& name) {
  struct stat info {};
  return is_name(name) && retry_eintr([&] { return ::lstat(path_of(name).c_str(), &info); }) == 0;
}

void Segment::unlink(const std::string& name) {
  if (is_name(name)) bip::shared_memory_object::remove(name.c_str());
}

std::string Segment::path_of(const std::string& name) { return "/dev/shm" + name; }

Result<uint64_t> Segment::free_bytes() {
  struct statfs info {};
  if (retry_eintr([&] { return ::statfs("/dev/shm", &info); }) != 0) {
    return Status{StatusCode::kIo, format("statfs of /dev/shm: %s", ::strerror(errno))};
  }
  // A tmpfs mounted without a size reports no blocks: memory is its only limit.
  if (info.f_blocks == 0) return static_cast<uint64_t>(INT64_MAX);
  return static_cast<uint64_t>(info.f_bavail) * static_cast<uint64_t>(info.f_bsize);
}

}  // namespace optlease
