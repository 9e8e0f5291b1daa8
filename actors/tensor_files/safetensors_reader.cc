#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "actors/tensor_files/safetensors.h"

namespace optlease {
namespace {

constexpr uint64_t kReadBytesMax = 1u << 30;  // one pread moves at most about 2 GiB

Status io_error(const std::string& path, const char* what) {
  const int error = errno;
  const StatusCode code = error == ENOENT   ? StatusCode::kNotFound
                          : error == EACCES ? StatusCode::kPermission
                                            : StatusCode::kIo;
  return Status(code, format("%s: %s: %s", path.c_str(), what, std::strerror(error)));
}

Status read_at(int fd, const std::string& path, uint64_t offset, uint64_t bytes, void* out) {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, to, std::min(bytes, kReadBytesMax), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path, "cannot read");
    if (got == 0)
      return Status(StatusCode::kIo,
                    format("%s: ends at byte %llu, %llu bytes short: it shrank after it was opened",
                           path.c_str(), static_cast<unsigned long long>(offset),
                           static_cast<unsigned long long>(bytes)));
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return Status::ok();
}

}  // namespace

SafetensorsReader::SafetensorsReader(SafetensorsReader&& other) noexcept {
  *this = std::move(other);
}

SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(data_offset_, other.data_offset_);
  std::swap(tensors_, other.tensors_);
  std::swap(index_, other.index_);
  std::swap(metadata_, other.metadata_);
  return *this;
}

SafetensorsReader::~SafetensorsReader() {
  if (fd_ >= 0) ::close(fd_);
}

Result<SafetensorsReader> SafetensorsReader::open(const std::string& path) {
  SafetensorsReader reader;
  reader.path_ = path;
  // Non-blocking: a pipe put in a file's place must not hang the job.
  reader.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (reader.fd_ < 0) return io_error(path, "cannot open");
  struct stat info {};
  if (::fstat(reader.fd_, &info) != 0) return io_error(path, "cannot stat");
  if (!S_ISREG(info.st_mode))
    return Status(StatusCode::kInvalidArgument, path + ": is no regular file");
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  if (file_bytes < 8)
    return Status(StatusCode::kCorrupt,
                  format("%s: %llu bytes are too few for a safetensors file", path.c_str(),
                         static_cast<unsigned long long>(file_bytes)));
  unsigned char length[8];
  OPTLEASE_TRY(read_at(reader.fd_, path, 0, sizeof length, length));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > kSafetensorsHeaderBytesMax || header_bytes > file_bytes - 8)
    return Status(StatusCode::kCorrupt,
                  format("%s: says its header has %llu bytes; the file has %llu, and at most %llu "
                         "are accepted: not a safetensors file, or cut short",
                         path.c_str(), static_cast<unsigned long long>(header_bytes),
                         static_cast<unsigned long long>(file_bytes),
                         static_cast<unsigned long long>(kSafetensorsHeaderBytesMax)));
  std::string header(header_bytes, '\0');
  OPTLEASE_TRY(read_at(reader.fd_, path, 8, header_bytes, header.data()));
  reader.data_offset_ = 8 + header_bytes;
  if (Status status = parse_safetensors_header(header, file_bytes - reader.data_offset_,
                                               &reader.tensors_, &reader.metadata_);
      !status)
    return Status(status.code(), path + ": " + status.message());
  for (size_t i = 0; i < reader.tensors_.size(); ++i) reader.index_[reader.tensors_[i].name] = i;
  return reader;
}

const FileTensor* SafetensorsReader::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

Status SafetensorsReader::read(const FileTensor& tensor, uint64_t first, uint64_t bytes,
                               void* out) const {
  OPTLEASE_CHECK(find(tensor.name) == &tensor, "'%s' is no tensor of %s", tensor.name.c_str(),
                 path_.c_str());
  if (first > tensor.bytes() || bytes > tensor.bytes() - first)
    return Status(
        StatusCode::kInvalidArgument,
        format("%s: tensor '%s' has %llu bytes; %llu at %llu were asked for", path_.c_str(),
               tensor.name.c_str(), static_cast<unsigned long long>(tensor.bytes()),
               static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(first)));
  return read_at(fd_, path_, data_offset_ + tensor.begin + first, bytes, out);
}

}  // namespace optlease
