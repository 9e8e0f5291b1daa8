#include "launcher/replay_files.h"

#include <map>
#include <set>

#include "actors/tensor_files/safetensors.h"

namespace optlease {
namespace {

std::string with_number(std::string text, const std::string& word, int64_t number) {
  const std::string digits = std::to_string(number);
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += digits.size()) {
    text.replace(at, word.size(), digits);
  }
  return text;
}

// The spaces whose gradients are read from each file: one file may be that of several ranks.
std::map<std::string, std::set<std::string>> spaces_by_file(const Config& config, Step step) {
  std::map<std::string, std::set<std::string>> files;
  const std::string of_step = with_number(config.gradients.replay_path, "{step}", step);
  for (const SpaceConfig& space : config.spaces) {
    for (const Rank rank : space.ranks) {
      files[with_number(of_step, "{rank}", rank.value)].insert(space.name);
    }
  }
  return files;
}

std::string why_unfit(const SafetensorsReader& file, const ParameterConfig& parameter) {
  const FileTensor* tensor = file.find(parameter.name);
  if (tensor == nullptr) return "is not there";
  if (tensor->shape != parameter.shape) return "has another shape than the parameter";
  DType dtype;
  if (parse_dtype(tensor->dtype, &dtype)) return "";
  return "is " + tensor->dtype + "; only F32, BF16 and F16 can be converted";
}

}  // namespace

Status check_replay_files(const LoadedConfig& loaded, Step next) {
  const Config& config = loaded.config;
  if (config.gradients.source != GradientSource::kReplay || next > config.steps) {
    return Status::ok();
  }
  const auto refuse = [&](const std::string& text) {
    return Status(StatusCode::kInvalidArgument,
                  text_of({{loaded.replay_place, "gradients.replay_path",
                            format("step %lld: ", static_cast<long long>(next)) + text}}));
  };
  for (const auto& [path, spaces] : spaces_by_file(config, next)) {
    const auto file = SafetensorsReader::open(path);
    if (!file) return refuse(file.status().message());
    for (const ParameterConfig& parameter : config.parameters) {
      if (!spaces.contains(parameter.space)) continue;
      const std::string why = why_unfit(file.value(), parameter);
      if (!why.empty()) return refuse(path + ": tensor '" + parameter.name + "' " + why);
    }
  }
  return Status::ok();
}

}  // namespace optlease
