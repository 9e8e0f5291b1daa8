#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "actors/tensor_files/safetensors.h"

namespace optlease {
namespace {

constexpr uint64_t kWriteBytesMax = 1u << 30;

Status io_error(const std::string& path, const char* what) {
  const int error = errno;
  const StatusCode code = error == ENOSPC || error == EDQUOT ? StatusCode::kNoSpace
                          : error == EACCES                  ? StatusCode::kPermission
                                                             : StatusCode::kIo;
  return Status(code, format("%s: %s: %s", path.c_str(), what, std::strerror(error)));
}

Status write_all(int fd, const std::string& path, const void* data, uint64_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(fd, from, std::min(bytes, kWriteBytesMax));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return io_error(path, "cannot write");
    from += put;
    bytes -= static_cast<uint64_t>(put);
  }
  return Status::ok();
}

// Offsets in table order, back to back.
Status lay_out_table(std::vector<FileTensor>* table, uint64_t* data_bytes) {
  std::unordered_set<std::string> names;
  *data_bytes = 0;
  for (FileTensor& tensor : *table) {
    const auto refuse = [&tensor](const char* why) {
      return Status(StatusCode::kInvalidArgument, "tensor '" + tensor.name + "': " + why);
    };
    if (tensor.name == "__metadata__") return refuse("the name is the format's own");
    if (tensor.name.find('\0') != std::string::npos) return refuse("its name holds a zero byte");
    if (!names.insert(tensor.name).second) return refuse("it is there twice");
    const uint32_t bits = safetensors_bits_of(tensor.dtype);
    if (bits == 0) return refuse("its dtype is none that the format defines");
    tensor.elements = 1;
    for (const uint64_t dim : tensor.shape)
      if (__builtin_mul_overflow(tensor.elements, dim, &tensor.elements))
        return refuse("its shape passes 2^64 elements");
    uint64_t total_bits = 0;
    if (__builtin_mul_overflow(tensor.elements, static_cast<uint64_t>(bits), &total_bits) ||
        total_bits % 8 != 0)
      return refuse("its size is no whole number of bytes below 2^61");
    tensor.begin = *data_bytes;
    if (__builtin_add_overflow(*data_bytes, total_bits / 8, data_bytes))
      return refuse("the file would pass 2^64 bytes");
    tensor.end = *data_bytes;
  }
  return Status::ok();
}

Result<std::string> header_text(const std::map<std::string, std::string>& metadata,
                                const std::vector<FileTensor>& table) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  // Names are known to differ, so the linear search of an ordered object is left out.
  auto& items = json.get_ref<nlohmann::ordered_json::object_t&>();
  for (const FileTensor& tensor : table)
    items.emplace_back(tensor.name,
                       nlohmann::ordered_json{{"dtype", tensor.dtype},
                                              {"shape", tensor.shape},
                                              {"data_offsets", {tensor.begin, tensor.end}}});
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception&) {
    return Status(StatusCode::kInvalidArgument, "a name or metadata value is no UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data section starts 8-byte aligned
  if (text.size() > kSafetensorsHeaderBytesMax)
    return Status(StatusCode::kInvalidArgument,
                  format("the header would have %zu bytes; readers accept %llu", text.size(),
                         static_cast<unsigned long long>(kSafetensorsHeaderBytesMax)));
  return text;
}

Status sync(int fd, const std::string& path) {
  while (::fsync(fd) != 0) {
    if (errno != EINTR) return io_error(path, "cannot sync");
  }
  return Status::ok();
}

Status sync_directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "."
                                : slash == 0               ? "/"
                                                           : path.substr(0, slash);
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(directory, "cannot open the directory to sync it");
  Status status = sync(fd, directory);
  ::close(fd);
  return status;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept {
  *this = std::move(other);
}

SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  std::swap(data_bytes_, other.data_bytes_);
  std::swap(written_, other.written_);
  std::swap(tensors_, other.tensors_);
  return *this;
}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

void SafetensorsWriter::discard() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

Result<SafetensorsWriter> SafetensorsWriter::begin(
    const std::string& path, const std::map<std::string, std::string>& metadata,
    std::vector<FileTensor> table) {
  SafetensorsWriter writer;
  writer.path_ = path;
  writer.tensors_ = std::move(table);
  if (Status status = lay_out_table(&writer.tensors_, &writer.data_bytes_); !status)
    return Status(status.code(), path + ": " + status.message());
  const Result<std::string> header = header_text(metadata, writer.tensors_);
  if (!header) return Status(header.status().code(), path + ": " + header.status().message());

  std::string temporary = path + ".XXXXXX";
  writer.fd_ = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (writer.fd_ < 0) return io_error(path, "cannot create a temporary file beside it");
  writer.temporary_ = temporary;
  const mode_t masked = ::umask(077);  // whoever makes a file meanwhile gets a private one
  ::umask(masked);
  if (::fchmod(writer.fd_, 0666 & ~masked) != 0) return io_error(temporary, "cannot set its mode");
  unsigned char length[8];
  for (int i = 0; i < 8; ++i)
    length[i] = static_cast<unsigned char>(static_cast<uint64_t>(header.value().size()) >> (8 * i));
  OPTLEASE_TRY(write_all(writer.fd_, temporary, length, sizeof length));
  OPTLEASE_TRY(write_all(writer.fd_, temporary, header.value().data(), header.value().size()));
  return writer;
}

Status SafetensorsWriter::append(const void* data, uint64_t bytes) {
  OPTLEASE_CHECK(fd_ >= 0, "%s is finished or was never begun", path_.c_str());
  if (bytes > data_bytes_ - written_)
    return Status(StatusCode::kInvalidArgument,
                  format("%s: %llu bytes are one tensor too many: only %llu are left in the table",
                         path_.c_str(), static_cast<unsigned long long>(bytes),
                         static_cast<unsigned long long>(data_bytes_ - written_)));
  OPTLEASE_TRY(write_all(fd_, temporary_, data, bytes));
  written_ += bytes;
  return Status::ok();
}

Status SafetensorsWriter::finish() {
  OPTLEASE_CHECK(fd_ >= 0, "%s is finished or was never begun", path_.c_str());
  if (written_ != data_bytes_)
    return Status(StatusCode::kInvalidArgument,
                  format("%s: %llu of %llu data bytes were appended", path_.c_str(),
                         static_cast<unsigned long long>(written_),
                         static_cast<unsigned long long>(data_bytes_)));
  OPTLEASE_TRY(sync(fd_, temporary_));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return io_error(path_, "cannot rename to");
  temporary_.clear();
  ::close(fd_);
  fd_ = -1;
  return sync_directory_of(path_);
}

}  // namespace optlease
