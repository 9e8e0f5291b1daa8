#include <cmath>
#include <filesystem>

#include "launcher/config_check.h"
#include "launcher/config_schema.h"

namespace optlease {
namespace {

// One table of the document, with the schema's default for every key that it does not have.
class Section {
 public:
  Section(const char* name, const ConfigValue* table) : name_(name), table_(table) {}

  bool given(const char* key) const { return table_ != nullptr && table_->find(key) != nullptr; }

  // Null where neither the file nor the schema has a value.
  ConfigValue value(const char* key) const {
    if (given(key)) return *table_->find(key);
    const KeyRule* rule = find_key(name_, key);
    OPTLEASE_CHECK(rule != nullptr, "no key %s.%s in the schema", name_, key);
    const bool has_default = rule->fallback != nullptr && *rule->fallback != '\0';
    return has_default ? parse_toml_value(rule->fallback, "default") : ConfigValue{};
  }
  int64_t integer(const char* key) const { return value(key).integer; }
  uint32_t count(const char* key) const { return static_cast<uint32_t>(integer(key)); }
  double number(const char* key) const { return value(key).number; }
  bool boolean(const char* key) const { return value(key).boolean; }
  std::string text(const char* key) const { return value(key).string; }
  uint64_t ms_of_seconds(const char* key) const {
    return static_cast<uint64_t>(std::llround(number(key) * 1000));
  }
  DType dtype(const char* key) const {
    DType dtype = DType::kF32;
    OPTLEASE_CHECK(parse_dtype(text(key), &dtype), "%s.%s was checked", name_, key);
    return dtype;
  }
  // The enum constant that the text names; the schema's choices are exactly those.
  template <class Enum>
  Enum choice(const char* key, Enum if_absent) const {
    const std::string name = text(key);
    Enum result = if_absent;
    OPTLEASE_CHECK(name.empty() || parse(name, &result), "%s.%s: '%s' is a choice of the schema",
                   name_, key, name.c_str());
    return result;
  }

 private:
  const char* name_;
  const ConfigValue* table_;
};

std::vector<Section> sections_of(const ConfigValue* array, const char* name) {
  std::vector<Section> sections;
  if (array == nullptr) return sections;
  for (const ConfigValue& item : array->items) sections.emplace_back(name, &item);
  return sections;
}

std::string path_from(const std::string& directory, const std::string& path) {
  if (path.empty()) return path;
  return (std::filesystem::path(directory) / path).lexically_normal().string();
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

std::vector<Rank> ranks_of(const ConfigValue& value, uint32_t world_size) {
  std::vector<Rank> ranks;
  if (value.kind == ValueKind::kArray) {
    for (const ConfigValue& item : value.items) {
      ranks.push_back(Rank(static_cast<uint32_t>(item.integer)));
    }
  } else {
    for (uint32_t r = 0; r < world_size; ++r) ranks.push_back(Rank(r));
  }
  return ranks;
}

void bind_spaces(const ConfigValue& root, Config* config) {
  const Section model("model", root.find("model"));
  const Section optimizer("optimizer", root.find("optimizer"));
  std::vector<Section> sections = sections_of(root.find("spaces"), "spaces");
  const bool implicit = sections.empty();
  if (implicit) sections.emplace_back("spaces", nullptr);
  for (const Section& section : sections) {
    SpaceConfig space;
    space.name = implicit ? "dense" : section.text("name");
    space.ranks = ranks_of(section.value("ranks"), config->world_size);
    space.param_dtype = (section.given("param_dtype") ? section : model).dtype("param_dtype");
    space.grad_dtype = (section.given("grad_dtype") ? section : model).dtype("grad_dtype");
    space.lr_scale = section.number("lr_scale");
    space.weight_decay =
        (section.given("weight_decay") ? section : optimizer).number("weight_decay");
    config->spaces.push_back(std::move(space));
  }
}

void bind_model(const ConfigValue& root, const std::string& directory, Config* config) {
  const ConfigValue* table = root.find("model");
  const Section model("model", table);
  config->model_source = path_from(directory, model.text("source"));
  config->model_seed = static_cast<uint64_t>(model.integer("seed"));
  const std::string& first_space = config->spaces.front().name;
  const ConfigValue* parameters = table == nullptr ? nullptr : table->find("parameters");
  for (const Section& section : sections_of(parameters, "model.parameters")) {
    ParameterConfig parameter;
    parameter.name = section.text("name");
    for (const ConfigValue& dim : section.value("shape").items) {
      parameter.shape.push_back(static_cast<uint64_t>(dim.integer));
    }
    parameter.space = section.given("space") ? section.text("space") : first_space;
    parameter.init.kind = section.choice("init", InitKind::kNormal);
    parameter.init.std_dev = section.number("std");
    config->parameters.push_back(std::move(parameter));
  }
  if (model.given("elements") && config->parameters.empty()) {
    ParameterConfig flat;
    flat.name = "flat";
    flat.shape = {static_cast<uint64_t>(model.integer("elements"))};
    flat.space = first_space;
    config->parameters.push_back(std::move(flat));
  }
}

void bind_optimizer(const ConfigValue& root, Config* config) {
  const Section optimizer("optimizer", root.find("optimizer"));
  const ConfigValue betas = optimizer.value("betas");
  config->optimizer.lr = optimizer.number("lr");
  config->optimizer.beta1 = betas.items[0].number;
  config->optimizer.beta2 = betas.items[1].number;
  config->optimizer.eps = optimizer.number("eps");
  config->optimizer.weight_decay = optimizer.number("weight_decay");
  config->optimizer.rule =
      static_cast<uint32_t>(optimizer.text("rule") == "adam" ? Rule::kAdam : Rule::kAdamW);
  config->gradients.max_norm = optimizer.number("max_norm");
  const Section offload("offload", root.find("offload"));
  // A name that is none was refused already.
  (void)parse_main_form(optimizer.text("main"), &config->split.main);
  config->split.resident_millionths =
      kMillion - static_cast<uint32_t>(std::llround(offload.number("fraction") * kMillion));
  config->chunk_size_bytes =
      static_cast<uint64_t>(std::llround(offload.number("chunk_size_mb") * (1 << 20)));
  config->in_flight_bytes =
      static_cast<uint64_t>(std::llround(offload.number("in_flight_mb") * (1 << 20)));
  config->staging_buffers = offload.count("staging_buffers");
  config->window_chunks = offload.count("window_chunks");
  config->prefetch_windows = offload.count("prefetch_windows");
}

void bind_gradients(const ConfigValue& root, const std::string& directory, Config* config) {
  const Section section("gradients", root.find("gradients"));
  GradientPlan& gradients = config->gradients;
  gradients.source = section.choice("source", GradientSource::kTrainer);
  gradients.replay_path = path_from(directory, section.text("replay_path"));
  gradients.synthetic_seed = static_cast<uint64_t>(section.integer("seed"));
  for (const ConfigValue& step : section.value("nonfinite_steps").items) {
    gradients.synthetic_nonfinite_steps.push_back(step.integer);
  }
  gradients.average = section.boolean("average");
  gradients.collective_timeout_ms = section.ms_of_seconds("collective_timeout_s");
  gradients.durable =
      section.given("durable") ? section.boolean("durable") : config->device == "cpu";
}

void bind_trainer(const ConfigValue& root, const std::string& directory, Config* config) {
  const Section section("trainer", root.find("trainer"));
  for (const ConfigValue& word : section.value("command").items) {
    config->trainer.command.push_back(replaced(word.string, "{config_dir}", directory));
  }
  for (const ConfigMember& member : section.value("environment").members) {
    config->trainer.environment.push_back(member.key + "=" + member.value.string);
  }
  config->trainer.attach_timeout_ms = section.ms_of_seconds("attach_timeout_s");
}

void bind_supervision(const ConfigValue& root, Config* config) {
  const Section section("restart", root.find("restart"));
  RestartPlan& restart = config->restart;
  restart.intensity = section.count("intensity");
  restart.period_ms = section.ms_of_seconds("period_s");
  restart.backoff_ms = static_cast<uint64_t>(section.integer("backoff_ms"));
  restart.backoff_ms_max = static_cast<uint64_t>(section.integer("backoff_max_ms"));
  restart.start_timeout_ms = section.ms_of_seconds("start_timeout_s");
  restart.heartbeat_timeout_ms = section.ms_of_seconds("heartbeat_timeout_s");
  restart.lease_ms = static_cast<uint64_t>(section.integer("lease_ms"));
  restart.quarantine_grace_ms = static_cast<uint64_t>(section.integer("quarantine_grace_ms"));
  restart.stop_timeout_ms = section.ms_of_seconds("stop_timeout_s");
  const Section telemetry("telemetry", root.find("telemetry"));
  config->telemetry.interval_ms = static_cast<uint64_t>(telemetry.integer("interval_ms"));
  config->telemetry.step_log = telemetry.boolean("step_log");
}

void bind_rehearsals(const ConfigValue& root, Config* config) {
  for (const Section& section : sections_of(root.find("rehearse"), "rehearse")) {
    Rehearsal rehearsal;
    rehearsal.role = section.choice("role", Role::kGpuActor);
    rehearsal.rank = section.count("rank");
    rehearsal.step = section.given("step") ? section.integer("step") : 1;
    rehearsal.phase = section.choice("phase", RehearsePhase::kCopyOut);
    rehearsal.at_rank = section.given("at_rank") ? section.count("at_rank") : rehearsal.rank;
    config->rehearsals.push_back(rehearsal);
  }
}

}  // namespace

void bind_config(const ConfigValue& root, const std::string& directory, Config* config) {
  const Section job("job", root.find("job"));
  config->job_name = job.text("name");
  // Missing values that must be given are errors already: these offend no further rule.
  config->steps = job.given("steps") ? job.integer("steps") : INT64_MAX;
  config->keep_state = job.boolean("keep_state");
  const Section ranks("ranks", root.find("ranks"));
  config->world_size = ranks.given("world_size") ? ranks.count("world_size") : kRankCountMax;
  config->device = ranks.text("device");
  const ConfigValue numa = ranks.value("numa");
  config->numa_auto = numa.string == "auto";
  for (const ConfigValue& node : numa.items) config->numa_nodes.push_back(node.integer);
  bind_spaces(root, config);
  bind_model(root, directory, config);
  bind_optimizer(root, config);
  bind_gradients(root, directory, config);
  bind_trainer(root, directory, config);
  bind_supervision(root, config);
  bind_rehearsals(root, config);
}

}  // namespace optlease
