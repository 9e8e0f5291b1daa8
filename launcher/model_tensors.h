// The tensor table of a configuration whose model comes from files. Used by load_config() alone; it
// reads headers, never values.
#pragma once

#include "launcher/config_file.h"

namespace optlease {

// Opens config->model_source. Without parameters in the configuration all tensors of the source go,
// by name, into the only space; otherwise each parameter must be there with the same shape. Errors
// name parameter and file; `place` is where the file names the source.
void take_model_tensors(const std::string& place, Config* config, std::vector<ConfigError>* errors);

}  // namespace optlease
