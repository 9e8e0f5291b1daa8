#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "actors/tensor_files/json_depth.h"
#include "actors/tensor_files/safetensors.h"

namespace optlease {
namespace {

using Json = nlohmann::json;

constexpr int kHeaderDepthMax = 4;  // file -> tensor -> shape needs three

struct DTypeBits {
  const char* name;
  uint32_t bits;
};
constexpr DTypeBits kDTypeBits[] = {
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},    {"BF16", 16},
    {"I32", 32},    {"U32", 32}, {"F32", 32}, {"F64", 64},    {"I64", 64},
    {"U64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

Status corrupt(const std::string& what) { return Status(StatusCode::kCorrupt, what); }

// nlohmann keeps the last of two equal keys; a header with two is refused here.
class DuplicateFinder {
 public:
  bool operator()(Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      if (!keys_.empty()) keys_.pop_back();
    } else if (event == Json::parse_event_t::key && !keys_.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second && duplicate_.empty()) duplicate_ = "'" + key + "'";
    }
    return true;
  }
  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::unordered_set<std::string>> keys_;
  std::string duplicate_;
};

Status take_shape(const Json& shape, FileTensor* tensor) {
  if (!shape.is_array()) return corrupt("its shape is no array");
  tensor->elements = 1;
  for (const Json& dim : shape) {
    if (!dim.is_number_unsigned()) return corrupt("its shape holds what is no whole number >= 0");
    tensor->shape.push_back(dim.get<uint64_t>());
    if (__builtin_mul_overflow(tensor->elements, tensor->shape.back(), &tensor->elements))
      return corrupt("the product of its shape passes 2^64");
  }
  return Status::ok();
}

Status take_offsets(const Json& offsets, FileTensor* tensor) {
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    return corrupt("its data_offsets are not two whole numbers >= 0");
  tensor->begin = offsets[0].get<uint64_t>();
  tensor->end = offsets[1].get<uint64_t>();
  if (tensor->end < tensor->begin)
    return corrupt(format("its data_offsets [%llu, %llu) run backwards",
                          static_cast<unsigned long long>(tensor->begin),
                          static_cast<unsigned long long>(tensor->end)));
  return Status::ok();
}

Status check_size(const FileTensor& tensor) {
  const uint32_t bits = safetensors_bits_of(tensor.dtype);
  if (bits == 0)
    return Status(StatusCode::kUnsupported,
                  "its dtype '" + tensor.dtype.substr(0, 32) + "' is none that the format defines");
  uint64_t total_bits = 0;
  if (__builtin_mul_overflow(tensor.elements, static_cast<uint64_t>(bits), &total_bits))
    return corrupt("its size passes 2^64 bits");
  if (total_bits % 8 != 0) return corrupt("its size is no whole number of bytes");
  if (total_bits / 8 != tensor.bytes())
    return corrupt(format("its data_offsets span %llu bytes; %llu elements of %s are %llu",
                          static_cast<unsigned long long>(tensor.bytes()),
                          static_cast<unsigned long long>(tensor.elements), tensor.dtype.c_str(),
                          static_cast<unsigned long long>(total_bits / 8)));
  return Status::ok();
}

Status take_tensor(const std::string& name, const Json& json, FileTensor* tensor) {
  tensor->name = name;
  if (name.find('\0') != std::string::npos) return corrupt("its name holds a zero byte");
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets"))
    return corrupt("it does not have exactly dtype, shape and data_offsets");
  if (!json["dtype"].is_string()) return corrupt("its dtype is no string");
  tensor->dtype = json["dtype"].get<std::string>();
  OPTLEASE_TRY(take_shape(json["shape"], tensor));
  OPTLEASE_TRY(take_offsets(json["data_offsets"], tensor));
  return check_size(*tensor);
}

Status take_metadata(const Json& json, std::map<std::string, std::string>* metadata) {
  if (!json.is_object()) return corrupt("__metadata__ is no object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return corrupt("__metadata__ holds what is no string");
    (*metadata)[key] = value.get<std::string>();
  }
  return Status::ok();
}

// The tensors, in the order of their bytes, cover the data section without gap or overlap.
Status check_cover(const std::vector<FileTensor>& tensors, uint64_t data_bytes) {
  uint64_t expected = 0;
  for (const FileTensor& tensor : tensors) {
    if (tensor.begin != expected)
      return corrupt(format("tensor '%s' begins at byte %llu, %s the end %llu of the one before it",
                            tensor.name.c_str(), static_cast<unsigned long long>(tensor.begin),
                            tensor.begin < expected ? "inside" : "past",
                            static_cast<unsigned long long>(expected)));
    expected = tensor.end;
  }
  if (expected != data_bytes)
    return corrupt(format("the tensors cover %llu bytes but the file holds %llu after its header",
                          static_cast<unsigned long long>(expected),
                          static_cast<unsigned long long>(data_bytes)));
  return Status::ok();
}

Status parse_json(std::string_view header, Json* json) {
  if (header.empty() || header.front() != '{') return corrupt("the header does not begin with '{'");
  if (json_nests_deeper(header, kHeaderDepthMax))
    return corrupt("the header nests deeper than the format does");
  DuplicateFinder finder;
  *json = Json::parse(
      header.begin(), header.end(),
      [&finder](int, Json::parse_event_t event, Json& parsed) { return finder(event, parsed); },
      /*allow_exceptions=*/false);
  if (json->is_discarded()) return corrupt("the header is no JSON in UTF-8");
  if (!finder.duplicate().empty())
    return corrupt("the header names " + finder.duplicate() + " twice");
  if (!json->is_object()) return corrupt("the header is no JSON object");
  return Status::ok();
}

}  // namespace

uint32_t safetensors_bits_of(std::string_view dtype) {
  for (const DTypeBits& known : kDTypeBits)
    if (dtype == known.name) return known.bits;
  return 0;
}

Status parse_safetensors_header(std::string_view header, uint64_t data_bytes,
                                std::vector<FileTensor>* tensors,
                                std::map<std::string, std::string>* metadata) {
  tensors->clear();
  metadata->clear();
  Json json;
  OPTLEASE_TRY(parse_json(header, &json));
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      OPTLEASE_TRY(take_metadata(value, metadata));
      continue;
    }
    FileTensor tensor;
    if (Status status = take_tensor(name, value, &tensor); !status)
      return Status(status.code(), "tensor '" + name + "': " + status.message());
    tensors->push_back(std::move(tensor));
  }
  std::sort(tensors->begin(), tensors->end(), [](const FileTensor& a, const FileTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  return check_cover(*tensors, data_bytes);
}

}  // namespace optlease
