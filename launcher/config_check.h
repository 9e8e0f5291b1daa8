// The steps between a parsed document and a Config: the schema's rules for single keys, the filling
// in of values and defaults, and the rules between keys. Used by config_file.cc alone. Each step
// adds to one list of errors and goes on, so that a file's errors are all reported at once.
#pragma once

#include <string>
#include <vector>

#include "launcher/config_value.h"

namespace optlease {

// Reports unknown sections and keys, missing required keys, wrong types, values out of range or not
// among the choices. What is wrong is taken out of `root`, so that the next steps see only sound
// values and report nothing twice. `file` is the place of what is missing altogether.
void check_against_schema(const std::string& file, ConfigValue* root,
                          std::vector<ConfigError>* errors);

// Fills in `config` from sound values and the schema's defaults. `directory`: where relative paths
// start. Required keys that are missing get values that offend no rule.
void bind_config(const ConfigValue& root, const std::string& directory, Config* config);

// The nearest thing of the document to a dotted key ("spaces.1.lr_scale"): it, what it lies in, or
// the file.
std::string place_of(const std::string& file, const ConfigValue& root, const std::string& key);

// The rules of [[rehearse]]; a part of check_rules.
void check_rehearsals(const std::string& file, const ConfigValue& root, const Config& config,
                      std::vector<ConfigError>* errors);

// Rules that no single key shows: names that must exist, keys that exclude or need each other.
// `root` gives the places. Leaves alone what needs model.source to be read.
void check_rules(const std::string& file, const ConfigValue& root, const Config& config,
                 std::vector<ConfigError>* errors);

}  // namespace optlease
