// A job's TOML file, read strictly: every unknown key, wrong type and impossible value of the file
// is reported with file, line and column before anything starts. Used by every command of the
// launcher; it knows nothing of processes or memory. The keys are in config_schema.cc and, for
// people, in configs/README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/runtime/job_plan.h"
#include "shm/contract/geometry.h"
#include "shm/contract/optimizer_params.h"
#include "shm/contract/status.h"

namespace optlease {

// Whether the cuda device is part of this build.
bool cuda_is_built_in();

struct ParameterConfig {
  std::string name;
  std::vector<uint64_t> shape;
  std::string space;
  TensorInit init;
};

struct SpaceConfig {
  std::string name;
  std::vector<Rank> ranks;  // ascending
  DType param_dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  double lr_scale = 1;
  double weight_decay = 0;
};

// What the file says, defaults filled in, every rule of the schema and between keys checked.
struct Config {
  std::string job_name;
  int64_t steps = 0;
  bool keep_state = false;
  uint32_t world_size = 0;
  std::string device;
  bool numa_auto = true;            // the node of each rank's GPU
  std::vector<int64_t> numa_nodes;  // by rank, where the file names them; -1: none
  std::string model_source;         // absolute, or empty: seeded
  uint64_t model_seed = 0;
  std::vector<ParameterConfig> parameters;  // never empty after load_config
  std::vector<SpaceConfig> spaces;          // never empty
  GroupParams optimizer{};                  // before lr_scale and weight_decay of a space
  StateSplit split;                         // optimizer.main, offload.fraction
  uint64_t chunk_size_bytes = 0;            // 0: one chunk a shard
  uint32_t staging_buffers = 0;
  uint32_t window_chunks = 0;
  uint32_t prefetch_windows = 0;
  uint64_t in_flight_bytes = 0;  // 0: no ceiling
  GradientPlan gradients;        // with optimizer.max_norm
  TrainerPlan trainer;
  RestartPlan restart;
  TelemetryPlan telemetry;
  std::vector<Rehearsal> rehearsals;
};

struct LoadedConfig {
  Config config;
  std::string path;
  std::vector<std::string> overrides;  // "section.key=value", as given to --set
  std::string replay_place;            // of gradients.replay_path, for errors about its files
};

// One thing that is wrong. `place` is "file:line:column", or "--set section.key=value".
struct ConfigError {
  std::string place;
  std::string key;   // "optimizer.lr", "spaces.1.name"; empty for a syntax error
  std::string text;  // what was found and what is allowed
};

// "job.toml:3:8: optimizer.lr: found ..., allowed: ..."; one line an error.
std::string text_of(const std::vector<ConfigError>& errors);

// The file at `path` with `overrides` ("section.key=value") applied before validation. Where
// model.source is set its tensor table is read and compared as well, and a plan is made, for what
// only its arithmetic shows. The status of a refused file
// is InvalidArgument and its message is text_of() all errors; NotFound or Io where it cannot be
// read.
Result<LoadedConfig> load_config(const std::string& path,
                                 const std::vector<std::string>& overrides = {});

// The same for text in memory, without reading model.source and without a plan: `file` names it in
// errors, relative paths are resolved against `directory`. Returns true when `errors` stays empty.
bool parse_config(const std::string& text, const std::string& file, const std::string& directory,
                  const std::vector<std::string>& overrides, Config* config,
                  std::vector<ConfigError>* errors);

}  // namespace optlease
