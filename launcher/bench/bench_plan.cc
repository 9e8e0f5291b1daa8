// bench_plan and parse_count of bench.h.
#include <charconv>

#include "launcher/bench/bench.h"
#include "launcher/config_file.h"
#include "launcher/replay_files.h"
#include "launcher/run_plan.h"
#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr const char* kNameSuffix = "-bench";
constexpr const char* kBuiltInPlace = "the built-in job";
// What the step times of docs/PERFORMANCE.md were taken with.
constexpr const char* kBuiltInJob = R"(
[job]
name = "optlease"
steps = 1
[ranks]
world_size = 1
[model]
seed = 1
param_dtype = "BF16"
grad_dtype = "BF16"
[optimizer]
lr = 1e-3
betas = [0.9, 0.95]
weight_decay = 0.1
max_norm = 1.0
[offload]
chunk_size_mb = 16
prefetch_windows = 5
staging_buffers = 4
[gradients]
source = "synthetic"
seed = 2
[telemetry]
interval_ms = 100
)";
constexpr uint64_t kCudaParameters = 512ull << 20;
constexpr uint64_t kCpuParameters = 16ull << 20;

struct Suffix {
  const char* text;
  uint64_t factor;
};
constexpr Suffix kSuffixes[] = {
    {"", 1},
    {"Ki", 1ull << 10},
    {"Mi", 1ull << 20},
    {"Gi", 1ull << 30},
    {"Ti", 1ull << 40},
    {"K", 1000},
    {"M", 1000'000},
    {"G", 1000'000'000},
    {"T", 1000'000'000'000},
};

bool overrides_key(const BenchOptions& options, const std::string& key) {
  for (const std::string& each : options.overrides) {
    if (each.starts_with(key + "=")) return true;
  }
  return false;
}

// The flags as --set has them, then the user's own.
std::vector<std::string> all_overrides(const BenchOptions& options, bool has_gpu) {
  std::vector<std::string> out;
  const bool built_in = options.config_path.empty();
  std::string device = options.device;
  if (device.empty() && built_in) device = has_gpu && cuda_is_built_in() ? "cuda" : "cpu";
  if (!device.empty()) out.push_back("ranks.device=" + device);
  if (options.world_size) out.push_back("ranks.world_size=" + std::to_string(*options.world_size));
  std::optional<uint64_t> parameters = options.parameters;
  if (!parameters && built_in && !overrides_key(options, "model.parameters") &&
      !overrides_key(options, "model.source")) {
    parameters = device == "cuda" ? kCudaParameters : kCpuParameters;
  }
  if (parameters) out.push_back("model.elements=" + std::to_string(*parameters));
  out.insert(out.end(), options.overrides.begin(), options.overrides.end());
  return out;
}

Result<Config> read_config(const BenchOptions& options, bool has_gpu) {
  const std::vector<std::string> overrides = all_overrides(options, has_gpu);
  if (!options.config_path.empty()) {
    auto loaded = load_config(options.config_path, overrides);
    if (!loaded) return loaded.status();
    OPTLEASE_TRY(check_replay_files(loaded.value(), 1));
    return loaded.value().config;
  }
  Config config;
  std::vector<ConfigError> errors;
  if (!parse_config(kBuiltInJob, kBuiltInPlace, ".", overrides, &config, &errors)) {
    return Status(StatusCode::kInvalidArgument, text_of(errors));
  }
  // Billions of drawn values take minutes, and no step is faster or slower for them.
  if (!overrides_key(options, "model.parameters")) {
    for (ParameterConfig& parameter : config.parameters) parameter.init.kind = InitKind::kOnes;
  }
  if (config.model_source.empty()) return config;
  return Status(StatusCode::kInvalidArgument,
                "model.source needs a job file: give JOB.toml instead of the built-in job");
}

}  // namespace

std::optional<uint64_t> parse_count(const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || number == 0) return std::nullopt;
  for (const Suffix& suffix : kSuffixes) {
    if (std::string(parsed.ptr, end) != suffix.text) continue;
    if (number > UINT64_MAX / suffix.factor) return std::nullopt;
    return number * suffix.factor;
  }
  return std::nullopt;
}

Result<JobPlan> bench_plan(const BenchOptions& options, bool has_gpu) {
  auto read = read_config(options, has_gpu);
  if (!read) return read.status();
  Config config = std::move(read).value();
  config.job_name =
      config.job_name.substr(0, kJobNameBytesMax - std::string(kNameSuffix).size()) + kNameSuffix;
  config.steps = static_cast<int64_t>(options.warm_up + options.steps);
  config.keep_state = false;
  config.rehearsals.clear();
  config.trainer.command.clear();
  config.telemetry.step_log = true;
  if (config.gradients.source == GradientSource::kTrainer) {
    config.gradients.source = GradientSource::kSynthetic;
  }
  config.gradients.synthetic_nonfinite_steps.clear();  // a skipped step streams nothing
  auto plan = make_plan(config);
  if (!plan) return plan;
  std::vector<std::string> notes;  // the host store's log has them
  const Status placed = place_arenas(config, &plan.value(), &notes);
  if (!placed.is_ok()) return placed;
  return plan;
}

}  // namespace optlease
