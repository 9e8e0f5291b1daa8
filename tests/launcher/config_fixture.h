// A small language for configuration tests: a minimal job, text added to it, and the errors as
// one string. Used by the config tests of this folder.
#pragma once

#include <string>
#include <vector>

#include "launcher/config_file.h"

namespace optlease {

// Lines 1 to 4. Tests add text from line 5 on.
inline const std::string kJobText =
    "[job]\n"
    "name = \"a\"\n"
    "steps = 10\n"
    "[ranks]\n";

// Lines 1 to 8: a whole job of synthetic gradients.
inline const std::string kWholeJob =
    "job = { name = \"a\", steps = 10 }\n"
    "\n"
    "[ranks]\n"
    "world_size = 2\n"
    "[model]\n"
    "elements = 1000\n"
    "[gradients]\n"
    "source = \"synthetic\"\n";

struct Parsed {
  bool ok = false;
  Config config;
  std::vector<ConfigError> errors;
  std::string text;  // all errors
};

inline Parsed parse_text(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Parsed parsed;
  parsed.ok = parse_config(text, "job.toml", "/jobs", overrides, &parsed.config, &parsed.errors);
  parsed.text = text_of(parsed.errors);
  return parsed;
}

// kWholeJob with `added` from line 9 on.
inline Parsed parse_whole(const std::string& added, const std::vector<std::string>& set = {}) {
  return parse_text(kWholeJob + added, set);
}

}  // namespace optlease
