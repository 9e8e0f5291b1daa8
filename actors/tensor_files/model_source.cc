#include "actors/tensor_files/model_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "actors/tensor_files/json_depth.h"

namespace optlease {
namespace {

constexpr uint64_t kIndexBytesMax = kSafetensorsHeaderBytesMax;
constexpr int kIndexDepthMax = 16;  // index -> weight_map needs two, metadata may have some
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSuffix = ".safetensors";

bool has_suffix(const std::string& name) {
  const std::string_view suffix = kSuffix;
  return name.size() > suffix.size() &&
         std::string_view(name).substr(name.size() - suffix.size()) == suffix;
}

// An index names files beside itself: anything with a slash could lead elsewhere.
bool is_plain_file_name(const std::string& name) {
  return has_suffix(name) && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos &&
         name.front() != '.' && name.size() <= 255;
}

Status refuse(StatusCode code, const std::string& path, const std::string& why) {
  return Status(code, path + ": " + why);
}

Result<std::string> read_text(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return refuse(StatusCode::kInvalidArgument, path, "is no regular file");
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) return refuse(StatusCode::kIo, path, error.message());
  if (bytes > kIndexBytesMax)
    return refuse(
        StatusCode::kCorrupt, path,
        format("%llu bytes are too many for an index", static_cast<unsigned long long>(bytes)));
  std::ifstream stream(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream.good() && !stream.eof()) return refuse(StatusCode::kIo, path, "cannot read");
  return text;
}

// File name -> the tensors that the index puts there.
using WeightMap = std::map<std::string, std::vector<std::string>>;

Status read_weight_map(const std::string& index_path, WeightMap* out) {
  const Result<std::string> text = read_text(index_path);
  if (!text) return text.status();
  if (json_nests_deeper(text.value(), kIndexDepthMax))
    return refuse(StatusCode::kCorrupt, index_path, "nests deeper than an index does");
  const nlohmann::json json = nlohmann::json::parse(text.value(), nullptr, false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return refuse(StatusCode::kCorrupt, index_path, "is no JSON object with a weight_map");
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>()))
      return refuse(StatusCode::kInvalidArgument, index_path,
                    "tensor '" + tensor + "' is mapped to " + file.dump(-1, ' ', true) +
                        ": only names of *.safetensors files beside the index are accepted");
    (*out)[file.get<std::string>()].push_back(tensor);
  }
  return Status::ok();
}

}  // namespace

Result<ModelSource> ModelSource::open(const std::string& path) {
  ModelSource source;
  source.path_ = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    OPTLEASE_TRY(source.open_directory());
  else
    OPTLEASE_TRY(source.open_file(path));
  return source;
}

Status ModelSource::open_file(const std::string& path) {
  Result<SafetensorsReader> reader = SafetensorsReader::open(path);
  if (!reader) return reader.status();
  files_.push_back(std::move(reader).value());
  return take_all(files_.size() - 1);
}

Status ModelSource::take_all(size_t file) {
  const std::vector<FileTensor>& tensors = files_[file].tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto [at, is_new] = places_.emplace(tensors[i].name, Place{file, i});
    if (!is_new)
      return refuse(StatusCode::kCorrupt, path_,
                    "tensor '" + tensors[i].name + "' is in " + files_[at->second.file].path() +
                        " and in " + files_[file].path());
  }
  return Status::ok();
}

Status ModelSource::open_directory() {
  const std::string index_path = path_ + "/" + kIndexName;
  std::error_code error;
  if (std::filesystem::exists(index_path, error)) return open_indexed(index_path);
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(path_, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (has_suffix(name) && name.front() != '.') names.push_back(name);
  }
  if (error) return refuse(StatusCode::kIo, path_, "cannot list: " + error.message());
  if (names.empty())
    return refuse(StatusCode::kNotFound, path_,
                  std::string("holds neither ") + kIndexName + " nor any *.safetensors file");
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) OPTLEASE_TRY(open_file(path_ + "/" + name));
  return Status::ok();
}

Status ModelSource::open_indexed(const std::string& index_path) {
  WeightMap map;
  OPTLEASE_TRY(read_weight_map(index_path, &map));
  for (const auto& [file, tensors] : map) {
    Result<SafetensorsReader> reader = SafetensorsReader::open(path_ + "/" + file);
    if (!reader) return reader.status();
    for (const std::string& name : tensors) {
      const FileTensor* tensor = reader.value().find(name);
      if (tensor == nullptr)
        return refuse(StatusCode::kCorrupt, index_path,
                      "maps tensor '" + name + "' to " + file + ", which does not hold it");
      const auto position = static_cast<size_t>(tensor - reader.value().tensors().data());
      places_.emplace(name, Place{files_.size(), position});
    }
    files_.push_back(std::move(reader).value());
  }
  return Status::ok();
}

const ModelSource::Place* ModelSource::place_of(std::string_view name) const {
  const auto found = places_.find(std::string(name));
  return found == places_.end() ? nullptr : &found->second;
}

std::vector<std::string> ModelSource::names() const {
  std::vector<std::string> names;
  names.reserve(places_.size());
  for (const auto& [name, place] : places_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const FileTensor* ModelSource::find(std::string_view name) const {
  const Place* place = place_of(name);
  return place == nullptr ? nullptr : &files_[place->file].tensors()[place->tensor];
}

const std::string& ModelSource::file_of(std::string_view name) const {
  const Place* place = place_of(name);
  return place == nullptr ? path_ : files_[place->file].path();
}

Status ModelSource::read_elements(std::string_view name, uint64_t first, uint64_t count,
                                  void* out) const {
  const Place* place = place_of(name);
  if (place == nullptr)
    return refuse(StatusCode::kNotFound, path_, "has no tensor '" + std::string(name) + "'");
  const SafetensorsReader& file = files_[place->file];
  const FileTensor& tensor = file.tensors()[place->tensor];
  const uint32_t bits = safetensors_bits_of(tensor.dtype);
  if (bits % 8 != 0)
    return refuse(
        StatusCode::kUnsupported, file.path(),
        "tensor '" + tensor.name + "' is " + tensor.dtype + ", whose elements are no whole bytes");
  if (first > tensor.elements || count > tensor.elements - first)
    return refuse(
        StatusCode::kInvalidArgument, file.path(),
        format("tensor '%s' has %llu elements; %llu at %llu were asked for", tensor.name.c_str(),
               static_cast<unsigned long long>(tensor.elements),
               static_cast<unsigned long long>(count), static_cast<unsigned long long>(first)));
  return file.read(tensor, first * (bits / 8), count * (bits / 8), out);
}

}  // namespace optlease
