#include "actors/runtime/json_fields.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "shm/contract/status.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

struct JsonFieldWriter::Document {
  Json json = Json::object();
};

JsonFieldWriter::JsonFieldWriter() : document_(std::make_unique<Document>()) {}
JsonFieldWriter::JsonFieldWriter(JsonFieldWriter&&) noexcept = default;
JsonFieldWriter::~JsonFieldWriter() = default;

void JsonFieldWriter::operator()(const char* key, const std::string& value) {
  document_->json[key] = value;
}

void JsonFieldWriter::operator()(const char* key, double value) {
  document_->json[key] = std::isfinite(value) ? Json(value) : Json(nullptr);
}

void JsonFieldWriter::operator()(const char* key, const std::optional<double>& value) {
  (*this)(key, value.value_or(std::nan("")));
}

void JsonFieldWriter::put(const char* key, uint64_t value) { document_->json[key] = value; }

void JsonFieldWriter::put(const char* key, int64_t value) { document_->json[key] = value; }

std::string JsonFieldWriter::text() const {
  return document_->json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> JsonFieldWriter::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : document_->json.items()) keys.push_back(item.key());
  return keys;
}

struct JsonFieldReader::Document {
  Json json;

  // Null after an error, which it may have made.
  const Json* find(const char* key, std::string* error) const {
    if (!error->empty()) return nullptr;
    const auto found = json.find(key);
    if (found != json.end()) return &*found;
    *error = format("'%s' is missing", key);
    return nullptr;
  }
};

JsonFieldReader::JsonFieldReader(std::string_view text, Nulls nulls)
    : document_(std::make_unique<Document>()), nulls_(nulls) {
  document_->json = Json::parse(text, nullptr, false);
  if (!document_->json.is_object()) error_ = "it is no JSON object";
}
JsonFieldReader::~JsonFieldReader() = default;

void JsonFieldReader::refuse(const char* key) {
  if (error_.empty()) error_ = format("'%s' has the wrong type or is out of range", key);
}

void JsonFieldReader::operator()(const char* key, std::string& out) {
  const Json* json = document_->find(key, &error_);
  if (json == nullptr) return;
  if (!json->is_string()) return refuse(key);
  out = json->get<std::string>();
}

void JsonFieldReader::operator()(const char* key, double& out) {
  std::optional<double> found;
  (*this)(key, found);
  if (!error_.empty()) return;
  if (!found && nulls_ == Nulls::kRefused) return refuse(key);
  out = found.value_or(std::nan(""));
}

void JsonFieldReader::operator()(const char* key, std::optional<double>& out) {
  const Json* json = document_->find(key, &error_);
  if (json == nullptr) return;
  if (!json->is_number() && !json->is_null()) return refuse(key);
  out.reset();
  if (json->is_number()) out = json->get<double>();
}

std::optional<JsonFieldReader::Integer> JsonFieldReader::integer(const char* key) {
  const Json* json = document_->find(key, &error_);
  if (json == nullptr) return std::nullopt;
  if (json->is_number_unsigned()) return Integer{false, json->get<uint64_t>()};
  if (!json->is_number_integer()) {
    refuse(key);
    return std::nullopt;
  }
  const auto value = json->get<int64_t>();
  return Integer{value < 0, static_cast<uint64_t>(value)};
}

}  // namespace optlease
