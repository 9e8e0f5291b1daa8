// Every key of a job file in one table: from it the file is validated, defaults are taken and
// configs/README.md is checked. No I/O and no TOML library here.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace optlease {

enum class KeyType {
  kString,
  kInteger,
  kNumber,  // an integer is taken too; never nan or inf
  kBool,
  kStrings,      // array of strings
  kStringTable,  // name = "value"
  kIntegers,     // array of integers
  kNumberPair,   // [a, b]
  kRanks,        // "all", or an array of ranks
  kNuma,         // "auto", "off", or an array of node numbers
  kDType,        // a string, in any case
  kTables,       // array of tables with a section of its own
};

// The update is made in FP32: above the one a number would be infinite there, below the other 0.
inline constexpr double kFp32Max = 1e38;
inline constexpr double kFp32Min = 1e-45;

struct KeyRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;  // min itself is not allowed
  bool open_max = false;
  // A value is kept as a whole number of this many parts of its unit; 0: as it is.
  double parts = 0;
  bool contains(double value) const;
  // True of a value other than 0 that would be kept as 0, which means something else.
  bool rounds_to_zero(double value) const;
};

struct KeyRule {
  const char* section;
  const char* key;
  KeyType type;
  const char* unit;      // "" = none
  const char* fallback;  // as TOML; "" = absent unless given; nullptr = required
  KeyRange range;        // numbers, and the elements of arrays of numbers
  const char* choices;   // "adamw|adam"; "" = any
  const char* help;
};

struct SectionRule {
  const char* name;  // "optimizer"; "model.parameters" lies within model
  bool is_array;     // [[name]]
  const char* help;
};

std::span<const SectionRule> schema_sections();
std::span<const KeyRule> schema_keys();
std::vector<const KeyRule*> keys_of(std::string_view section);
// Null where there is no such key or section.
const KeyRule* find_key(std::string_view section, std::string_view key);
const SectionRule* find_section(std::string_view name);

std::vector<std::string> choices_of(const KeyRule& rule);
// What a value of the key must be, for people: "a number above 0", "one of \"adamw\", \"adam\"".
std::string allowed_text(const KeyRule& rule);

// The candidate nearest to a mistyped `name`, or "" where none is near enough to be meant.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// The key's row of the tables in configs/README.md: "| `lr` | number | | 0.001 | ... |".
std::string markdown_row(const KeyRule& rule);

}  // namespace optlease
