#include "launcher/model_tensors.h"

#include <algorithm>

#include "actors/tensor_files/model_source.h"
#include "launcher/config_schema.h"

namespace optlease {
namespace {

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (const uint64_t dim : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(dim);
  return text + "]";
}

// What main weights are made from; anything else in a model file is no parameter.
std::string why_no_parameter(const FileTensor& tensor) {
  DType dtype;
  if (!parse_dtype(tensor.dtype, &dtype)) {
    return "has dtype " + tensor.dtype + ", allowed: F32, BF16, F16";
  }
  if (tensor.name.empty() || tensor.name.size() >= kTensorNameBytes) {
    return format("has a name of %zu bytes, allowed: 1 to %u", tensor.name.size(),
                  kTensorNameBytes - 1);
  }
  if (tensor.shape.size() > kTensorDimsMax) {
    return format("has %zu dimensions, allowed: at most %u", tensor.shape.size(), kTensorDimsMax);
  }
  return {};
}

}  // namespace

void take_model_tensors(const std::string& place, Config* config,
                        std::vector<ConfigError>* errors) {
  const Result<ModelSource> opened = ModelSource::open(config->model_source);
  if (!opened.is_ok()) {
    errors->push_back({place, "model.source", opened.status().message()});
    return;
  }
  const ModelSource& source = opened.value();
  const std::vector<std::string> names = source.names();
  if (config->parameters.empty()) {
    for (const std::string& name : names) {
      config->parameters.push_back({name, source.find(name)->shape, config->spaces[0].name, {}});
    }
    if (names.empty()) {
      errors->push_back({place, "model.source", config->model_source + " holds no tensor"});
    }
  }
  for (const ParameterConfig& parameter : config->parameters) {
    const FileTensor* tensor = source.find(parameter.name);
    std::string why;
    if (tensor == nullptr) {
      const std::string nearest = nearest_name(parameter.name, names);
      why = "is not there" + (nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
    } else if (tensor->shape != parameter.shape) {
      why = "has shape " + shape_text(tensor->shape) + ", the configuration says " +
            shape_text(parameter.shape);
    } else {
      why = why_no_parameter(*tensor);
    }
    if (why.empty()) continue;
    errors->push_back(
        {place, "model.source",
         "parameter '" + parameter.name + "' of " + source.file_of(parameter.name) + " " + why});
  }
}

}  // namespace optlease
