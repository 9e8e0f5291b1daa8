#include <algorithm>
#include <set>

#include "actors/wire/endpoints.h"
#include "launcher/config_check.h"
#include "launcher/config_schema.h"

namespace optlease {
namespace {

// The rules between keys, over a Config whose single values are sound. Items of `root`'s arrays and
// of `config` correspond by index.
class Rules {
 public:
  Rules(const std::string& file, const ConfigValue& root, const Config& config,
        std::vector<ConfigError>* errors)
      : file_(file), root_(root), config_(config), errors_(errors) {}

  void check_job();
  void check_model();
  void check_parameters();
  void check_spaces();
  void check_space_use();
  void check_learning_rate();
  void check_numa();
  void check_main_form();
  void check_gradients();
  void check_trainer();
  void check_restart();
  void check_rehearsals();

 private:
  const ConfigValue* find(const char* section, const char* key) const {
    const ConfigValue* table = root_.find(section);
    return table == nullptr ? nullptr : table->find(key);
  }
  bool given(const char* section, const char* key) const { return find(section, key) != nullptr; }
  // Adds an error at the nearest thing that the file has: key, section, file.
  void refuse(const char* section, const char* key, std::string text) {
    const ConfigValue* value = find(section, key);
    if (value == nullptr) value = root_.find(section);
    add(value, std::string(section) + "." + key, std::move(text));
  }
  // The same for element `index` of an array of tables at `array`.
  void refuse_item(const ConfigValue* array, const std::string& path, size_t index, const char* key,
                   std::string text) {
    const ConfigValue* at = item(array, index);
    if (at != nullptr && at->find(key) != nullptr) at = at->find(key);
    add(at, path + "." + std::to_string(index) + "." + key, std::move(text));
  }
  static const ConfigValue* item(const ConfigValue* array, size_t index) {
    return array != nullptr && index < array->items.size() ? &array->items[index] : nullptr;
  }
  static bool item_given(const ConfigValue* array, size_t index, const char* key) {
    const ConfigValue* at = item(array, index);
    return at != nullptr && at->find(key) != nullptr;
  }
  void add(const ConfigValue* at, const std::string& path, std::string text) {
    errors_->push_back({at == nullptr ? file_ + ":1:1" : at->place, path, std::move(text)});
  }
  // True while nothing is wrong in any of the sections.
  bool is_sound(std::initializer_list<std::string_view> sections) const {
    return std::none_of(errors_->begin(), errors_->end(), [&](const ConfigError& error) {
      const std::string_view section = std::string_view(error.key).substr(0, error.key.find('.'));
      return std::find(sections.begin(), sections.end(), section) != sections.end();
    });
  }
  void check_parameter(size_t index, const ConfigValue* array);
  void check_parameter_space(size_t index, const ConfigValue* array);
  void check_space_ranks(size_t index, const ConfigValue* array);
  void check_replay();

  const std::string& file_;
  const ConfigValue& root_;
  const Config& config_;
  std::vector<ConfigError>* errors_;
};

void Rules::check_job() {
  if (given("job", "name")) {
    const std::string why = why_invalid_job_name(config_.job_name);
    if (!why.empty()) refuse("job", "name", "found \"" + config_.job_name + "\": " + why);
  }
  if (config_.device == "cuda" && !cuda_is_built_in()) {
    refuse("ranks", "device",
           "found \"cuda\", but this build has no CUDA device; set it to \"cpu\", or build where "
           "nvcc is found");
  }
}

void Rules::check_model() {
  const bool elements = given("model", "elements");
  const bool source = !config_.model_source.empty();
  if (elements && given("model", "parameters")) {
    refuse("model", "elements", "give elements or [[model.parameters]], not both");
  }
  if (elements && source) {
    refuse("model", "elements",
           "give elements or source, not both: a source has its own tensor table");
  }
  // A table that was refused as a whole is not reported a second time.
  if (!elements && !source && config_.parameters.empty() && is_sound({"model"})) {
    refuse("model", "parameters",
           "the model is empty: give [[model.parameters]], model.elements or model.source");
  }
}

void Rules::check_parameter(size_t index, const ConfigValue* array) {
  const ParameterConfig& parameter = config_.parameters[index];
  const auto refuse_key = [&](const char* key, std::string text) {
    refuse_item(array, "model.parameters", index, key, std::move(text));
  };
  const size_t bytes = parameter.name.size();
  if (item_given(array, index, "name") && (bytes == 0 || bytes >= kTensorNameBytes)) {
    refuse_key("name", format("found %zu bytes, allowed: 1 to %u", bytes, kTensorNameBytes - 1));
  }
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(parameter.name.begin(), parameter.name.end(), is_control)) {
    refuse_key("name", "found a control character (a zero byte, a line break or the like)");
  }
  if (parameter.name == "__metadata__")
    refuse_key("name", "found \"__metadata__\", which safetensors files keep for themselves");
  if (parameter.shape.size() > kTensorDimsMax) {
    refuse_key("shape", format("found %zu dimensions, allowed: at most %u", parameter.shape.size(),
                               kTensorDimsMax));
  }
  uint64_t elements = 1;
  for (const uint64_t dim : parameter.shape) {
    if (dim != 0 && elements > (1ull << 46) / dim) {
      refuse_key("shape", "the product of the dimensions is above 2^46 elements");
      break;
    }
    elements *= dim;
  }
  if (item_given(array, index, "std") && parameter.init.kind != InitKind::kNormal) {
    refuse_key("std", std::string("init is \"") + name_of(parameter.init.kind) +
                          "\": std belongs to init = \"normal\"");
  }
  for (const char* key : {"init", "std"}) {
    if (!config_.model_source.empty() && item_given(array, index, key)) {
      refuse_key(key, "first values come from model.source: remove this key or the source");
    }
  }
}

void Rules::check_parameter_space(size_t index, const ConfigValue* array) {
  const std::string& wanted = config_.parameters[index].space;
  std::vector<std::string> names;
  for (const SpaceConfig& space : config_.spaces) names.push_back(space.name);
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return;
  std::string text = "found \"" + wanted + "\", but no [[spaces]] has that name; there are:";
  for (const std::string& name : names) text += " " + name;
  const std::string nearest = nearest_name(wanted, names);
  if (!nearest.empty()) text += "; did you mean '" + nearest + "'?";
  refuse_item(array, "model.parameters", index, "space", std::move(text));
}

void Rules::check_parameters() {
  const ConfigValue* array = find("model", "parameters");
  if (array == nullptr) return;
  if (config_.parameters.size() > kTensorCountMax) {
    refuse("model", "parameters",
           format("found %zu parameters, allowed: at most %u", config_.parameters.size(),
                  kTensorCountMax));
    return;
  }
  std::set<std::pair<std::string, std::string>> seen;
  for (size_t i = 0; i < config_.parameters.size(); ++i) {
    check_parameter(i, array);
    check_parameter_space(i, array);
    const ParameterConfig& parameter = config_.parameters[i];
    if (item_given(array, i, "name") && !seen.insert({parameter.space, parameter.name}).second) {
      refuse_item(
          array, "model.parameters", i, "name",
          "space '" + parameter.space + "' has a parameter '" + parameter.name + "' already");
    }
  }
}

void Rules::check_space_ranks(size_t index, const ConfigValue* array) {
  const std::vector<Rank>& ranks = config_.spaces[index].ranks;
  const auto refuse_ranks = [&](std::string text) {
    refuse_item(array, "spaces", index, "ranks", std::move(text));
  };
  if (ranks.empty()) refuse_ranks("found no rank, allowed: at least one, or \"all\"");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].value >= config_.world_size) {
      return refuse_ranks(format("found rank %u, but ranks.world_size is %u: the last rank is %u",
                                 ranks[i].value, config_.world_size, config_.world_size - 1));
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return refuse_ranks(format("found rank %u after rank %u, allowed: ascending, each once",
                                 ranks[i].value, ranks[i - 1].value));
    }
  }
}

void Rules::check_spaces() {
  const ConfigValue* array = root_.find("spaces");
  if (array == nullptr) return;
  if (config_.spaces.size() > kSpaceCountMax) {
    return add(
        array, "spaces",
        format("found %zu spaces, allowed: at most %u", config_.spaces.size(), kSpaceCountMax));
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < config_.spaces.size(); ++i) {
    const std::string& name = config_.spaces[i].name;
    check_space_ranks(i, array);
    if (!item_given(array, i, "name")) continue;
    const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '-';
    });
    if (name.empty() || name.size() >= kNameBytes || !plain) {
      refuse_item(array, "spaces", i, "name",
                  "found \"" + name + "\", allowed: 1 to 63 letters, digits, '_' and '-'");
    } else if (!seen.insert(name).second) {
      refuse_item(array, "spaces", i, "name", "there is a space '" + name + "' already");
    }
  }
}

// Needs the tensor table and everything named in it to exist.
void Rules::check_space_use() {
  if (!is_sound({"model", "spaces", "ranks"})) return;
  const ConfigValue* array = root_.find("spaces");
  std::vector<bool> used(config_.world_size, false);
  for (size_t i = 0; i < config_.spaces.size(); ++i) {
    const SpaceConfig& space = config_.spaces[i];
    for (const Rank rank : space.ranks) used[rank.value] = true;
    const bool filled =
        std::any_of(config_.parameters.begin(), config_.parameters.end(),
                    [&](const ParameterConfig& p) { return p.space == space.name; });
    if (!filled && !config_.parameters.empty()) {
      refuse_item(array, "spaces", i, "name",
                  "no parameter is in space '" + space.name + "': name it in model.parameters");
    } else if (!filled && config_.spaces.size() > 1) {
      refuse_item(array, "spaces", i, "name",
                  "several spaces need [[model.parameters]] that say which parameter of the "
                  "source is in which space");
    }
  }
  for (uint32_t r = 0; r < config_.world_size; ++r) {
    if (!used[r]) add(array, "spaces", format("rank %u is in no space", r));
  }
}

// A trainer's learning rate is scaled by the quotient of the configured ones.
void Rules::check_learning_rate() {
  const ConfigValue* array = root_.find("spaces");
  if (config_.optimizer.lr > 0) return;
  for (size_t i = 0; i < config_.spaces.size(); ++i) {
    if (config_.spaces[i].lr_scale == 1) continue;
    refuse_item(array, "spaces", i, "lr_scale",
                "optimizer.lr is 0, which no scale changes; set it to the peak learning rate, also "
                "where a trainer gives one with each step");
  }
}

void Rules::check_numa() {
  const size_t named = config_.numa_nodes.size();
  const ConfigValue* numa = given("ranks", "numa") ? find("ranks", "numa") : nullptr;
  if (numa == nullptr || numa->kind != ValueKind::kArray || named == config_.world_size) return;
  refuse(
      "ranks", "numa",
      format("found %zu nodes, allowed: one for each of the %u ranks", named, config_.world_size));
}

// The parameter is the upper half of the main weight: there is nowhere else to keep it.
void Rules::check_main_form() {
  if (config_.split.main != MainForm::kBf16Remainder) return;
  const ConfigValue* array = root_.find("spaces");
  for (size_t i = 0; i < config_.spaces.size(); ++i) {
    const SpaceConfig& space = config_.spaces[i];
    if (space.param_dtype == DType::kBF16) continue;
    const std::string why = "main = \"bf16+remainder\" needs BF16 parameters: those of space '" +
                            space.name + "' are " + name_of(space.param_dtype) + "; set ";
    const bool own = item_given(array, i, "param_dtype");
    if (!own) return refuse("optimizer", "main", why + "model.param_dtype = \"BF16\"");
    refuse_item(array, "spaces", i, "param_dtype", why + "it to \"BF16\"");
  }
}

void Rules::check_replay() {
  const bool replay = config_.gradients.source == GradientSource::kReplay;
  const std::string& path = config_.gradients.replay_path;
  if (replay && path.empty()) {
    refuse("gradients", "replay_path",
           "missing; gradients.source = \"replay\" needs it: \"gradients/{step}.safetensors\"");
  } else if (!replay && !path.empty()) {
    refuse("gradients", "replay_path",
           std::string("gradients.source is \"") + name_of(config_.gradients.source) +
               "\": replay_path belongs to \"replay\"");
  } else if (replay && config_.steps > 1 && path.find("{step}") == std::string::npos) {
    refuse("gradients", "replay_path",
           "found \"" + path + "\", which names no {step}: every step would replay one file");
  }
}

void Rules::check_gradients() {
  check_replay();
  if (config_.device == "cpu" && !config_.gradients.durable) {
    refuse("gradients", "durable",
           "found false, but ranks.device is \"cpu\", whose shards always lie in shared memory; "
           "remove the key");
  }
  const std::vector<int64_t>& steps = config_.gradients.synthetic_nonfinite_steps;
  if (!steps.empty() && config_.gradients.source != GradientSource::kSynthetic) {
    refuse("gradients", "nonfinite_steps",
           std::string("gradients.source is \"") + name_of(config_.gradients.source) +
               "\": nonfinite_steps belongs to \"synthetic\"");
  }
  for (const int64_t step : steps) {
    if (step <= config_.steps) continue;
    refuse("gradients", "nonfinite_steps",
           format("found step %lld, but job.steps is %lld", static_cast<long long>(step),
                  static_cast<long long>(config_.steps)));
  }
}

void Rules::check_trainer() {
  const std::vector<std::string>& command = config_.trainer.command;
  if (!command.empty() && config_.gradients.source != GradientSource::kTrainer) {
    refuse("trainer", "command",
           std::string("gradients.source is \"") + name_of(config_.gradients.source) +
               "\": this trainer would never be asked; set it to \"trainer\" or remove the "
               "command");
  }
  if (!command.empty() && command[0].empty()) {
    refuse("trainer", "command", "the first word, the program, is empty");
  }
  const ConfigValue* environment = find("trainer", "environment");
  if (environment == nullptr) return;
  if (command.empty() && !environment->members.empty()) {
    refuse("trainer", "environment", "there is no trainer.command that would get it");
  }
  for (const ConfigMember& member : environment->members) {
    if (!member.key.empty() && member.key.find('=') == std::string::npos) continue;
    add(&member.value, "trainer.environment." + member.key,
        "a variable's name is not empty and has no '='");
  }
}

void Rules::check_restart() {
  const RestartPlan& restart = config_.restart;
  if (restart.backoff_ms > restart.backoff_ms_max) {
    refuse("restart", given("restart", "backoff_ms") ? "backoff_ms" : "backoff_max_ms",
           format("backoff_ms is %llu, but backoff_max_ms is %llu: the first wait may not be "
                  "longer than the longest",
                  static_cast<unsigned long long>(restart.backoff_ms),
                  static_cast<unsigned long long>(restart.backoff_ms_max)));
  }
}

void Rules::check_rehearsals() {
  const ConfigValue* array = root_.find("rehearse");
  for (size_t i = 0; i < config_.rehearsals.size(); ++i) {
    const Rehearsal& rehearsal = config_.rehearsals[i];
    const auto check_rank = [&](const char* key, uint32_t rank) {
      if (rank < config_.world_size || !item_given(array, i, key)) return;
      refuse_item(array, "rehearse", i, key,
                  format("found rank %u, but ranks.world_size is %u", rank, config_.world_size));
    };
    check_rank("rank", rehearsal.rank);
    check_rank("at_rank", rehearsal.at_rank);
    if (rehearsal.step > config_.steps) {
      refuse_item(
          array, "rehearse", i, "step",
          format("found step %lld, but job.steps is %lld", static_cast<long long>(rehearsal.step),
                 static_cast<long long>(config_.steps)));
    }
    if (item_given(array, i, "role") && rehearsal.role == Role::kTrainer &&
        config_.trainer.command.empty()) {
      refuse_item(array, "rehearse", i, "role",
                  "found \"trainer\", but there is no trainer.command: the launcher has no "
                  "trainer to kill");
    }
  }
}

}  // namespace

void check_rules(const std::string& file, const ConfigValue& root, const Config& config,
                 std::vector<ConfigError>* errors) {
  Rules rules(file, root, config, errors);
  rules.check_job();
  rules.check_model();
  rules.check_spaces();
  rules.check_parameters();
  rules.check_learning_rate();
  rules.check_numa();
  rules.check_main_form();
  rules.check_gradients();
  rules.check_trainer();
  rules.check_restart();
  rules.check_rehearsals();
  rules.check_space_use();
}

}  // namespace optlease
