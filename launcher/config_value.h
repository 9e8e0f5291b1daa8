// A parsed TOML document as plain values that remember where they were written, and the --set
// overrides laid over it. Used by the configuration reader alone; config_value.cc is the only file
// that includes toml++. It knows no key: config_check.h does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/config_file.h"

namespace optlease {

enum class ValueKind { kString, kInteger, kNumber, kBool, kDate, kArray, kTable };

struct ConfigMember;

struct ConfigValue {
  ValueKind kind = ValueKind::kTable;
  std::string place;   // "job.toml:3:8", or "--set optimizer.lr=fast"
  std::string string;  // kString; of a kDate its text
  int64_t integer = 0;
  double number = 0;  // kNumber and kInteger
  // What is written is not 0, and `number` is: too small for a double.
  bool underflows = false;
  bool boolean = false;
  std::vector<ConfigValue> items;     // kArray
  std::vector<ConfigMember> members;  // kTable, in the order of the file

  const ConfigValue* find(std::string_view key) const;  // null unless a table that has it
  bool is_number() const { return kind == ValueKind::kInteger || kind == ValueKind::kNumber; }
};

struct ConfigMember {
  std::string key;
  std::string key_place;
  ConfigValue value;
};

// What was found, for people: "the string \"fast\"", "the number 1.5", "an array of 3", "a table".
std::string found_text(const ConfigValue& value);

// False, with an error, where `text` is no TOML. `file` names it in places.
bool parse_toml(const std::string& text, const std::string& file, ConfigValue* root,
                std::vector<ConfigError>* errors);

// A value as TOML writes it, "[1, 2]". For defaults of the schema. REQUIRES: it parses.
ConfigValue parse_toml_value(const std::string& text, const std::string& place);

// Lays "a.b.c=value" over `root`, making tables on the way; a number in the path is an element of
// an array. A value that is no TOML is taken as a string unless it starts like a TOML collection or
// quoted string.
void apply_override(const std::string& override_text, ConfigValue* root,
                    std::vector<ConfigError>* errors);

}  // namespace optlease
