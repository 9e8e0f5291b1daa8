// One safetensors file: an 8-byte little-endian header length, a JSON header, then the tensors'
// bytes. Used for initial weights, replayed gradients and exported checkpoints. It hands out raw
// bytes and dtype names; converting elements is the caller's business.
//
// Nothing in a file is trusted: every offset is checked at open, and bytes are read with pread, so
// a file that shrinks later gives an error, never a signal.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shm/contract/status.h"

namespace optlease {

// The most bytes of JSON header that are accepted; the format's reference reader has the same
// limit.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

struct FileTensor {
  std::string name;
  std::string dtype;            // "F32", "BF16", "I64", "F8_E4M3", ...
  std::vector<uint64_t> shape;  // empty = scalar
  uint64_t elements = 0;        // product of shape
  uint64_t begin = 0;           // bytes from the start of the data section; [begin, end)
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

// Bits an element of a dtype that the format defines; 0 for any other name.
uint32_t safetensors_bits_of(std::string_view dtype);

// Thread-safe once opened: reads share nothing but the descriptor.
class SafetensorsReader {
 public:
  static Result<SafetensorsReader> open(const std::string& path);
  SafetensorsReader(SafetensorsReader&& other) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&& other) noexcept;
  ~SafetensorsReader();

  const std::string& path() const { return path_; }
  // In the order of their bytes.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  // Null where the file has no such tensor.
  const FileTensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Copies bytes [first, first + bytes) of one of this file's tensors to `out`.
  Status read(const FileTensor& tensor, uint64_t first, uint64_t bytes, void* out) const;

 private:
  SafetensorsReader() = default;

  std::string path_;
  int fd_ = -1;
  uint64_t data_offset_ = 0;  // bytes from the file's start
  std::vector<FileTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// Parses `header` (the JSON alone) of a file whose data section has `data_bytes`. Tensors come back
// in the order of their bytes. Separate from open() so that it can be tested byte by byte.
Status parse_safetensors_header(std::string_view header, uint64_t data_bytes,
                                std::vector<FileTensor>* tensors,
                                std::map<std::string, std::string>* metadata);

// Writes one file in one pass. The file appears under its name only at finish(): whole, on disk, or
// not at all. Not thread-safe.
class SafetensorsWriter {
 public:
  // Writes the header to a temporary name beside `path`. Only name, dtype and shape of `table` are
  // read; the bytes follow in this order.
  static Result<SafetensorsWriter> begin(const std::string& path,
                                         const std::map<std::string, std::string>& metadata,
                                         std::vector<FileTensor> table);
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  // Removes the temporary file where finish() has not succeeded.
  ~SafetensorsWriter();

  // The table with elements, begin and end filled in.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  // The next bytes of the data section; cuts need not fall on tensors.
  Status append(const void* data, uint64_t bytes);
  // Syncs, renames over `path` and syncs the directory. InvalidArgument where bytes are missing.
  Status finish();

 private:
  SafetensorsWriter() = default;
  void discard();

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  uint64_t data_bytes_ = 0;
  uint64_t written_ = 0;  // of the data section
  std::vector<FileTensor> tensors_;
};

}  // namespace optlease
