// A model's tensors wherever they lie: one safetensors file, or a directory as Hugging Face writes
// it (model.safetensors.index.json with a weight_map, or else every *.safetensors in it). Used for
// initial weights. It hands out raw elements and never follows an index out of its directory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "actors/tensor_files/safetensors.h"
#include "shm/contract/status.h"

namespace optlease {

// Thread-safe once opened.
class ModelSource {
 public:
  // Opens and checks every file of the model. A tensor that is in two files, or that the index
  // names but its file lacks, is refused.
  static Result<ModelSource> open(const std::string& path);

  const std::string& path() const { return path_; }
  // Sorted.
  std::vector<std::string> names() const;
  // Null where the model has no such tensor.
  const FileTensor* find(std::string_view name) const;
  // The file that holds it, for messages; the model's own path where it has no such tensor.
  const std::string& file_of(std::string_view name) const;

  // Copies elements [first, first + count) of a tensor, in the file's dtype, to `out`. NotFound
  // where there is no such tensor; Unsupported for dtypes of less than a byte.
  Status read_elements(std::string_view name, uint64_t first, uint64_t count, void* out) const;

 private:
  struct Place {
    size_t file = 0;
    size_t tensor = 0;
  };
  ModelSource() = default;
  Status open_file(const std::string& path);
  Status open_directory();
  Status open_indexed(const std::string& index_path);
  Status take_all(size_t file);
  const Place* place_of(std::string_view name) const;

  std::string path_;
  std::vector<SafetensorsReader> files_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace optlease
