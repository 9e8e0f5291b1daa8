#include "launcher/config_schema.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>

#include "launcher/config_schema_table.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

const char* type_text(KeyType type) {
  switch (type) {
    case KeyType::kString:
      return "string";
    case KeyType::kInteger:
      return "integer";
    case KeyType::kNumber:
      return "number";
    case KeyType::kBool:
      return "true or false";
    case KeyType::kStrings:
      return "array of strings";
    case KeyType::kStringTable:
      return "table of strings";
    case KeyType::kIntegers:
      return "array of integers";
    case KeyType::kNumberPair:
      return "two numbers";
    case KeyType::kRanks:
      return "\"all\" or array of ranks";
    case KeyType::kNuma:
      return "\"auto\", \"off\" or array of nodes";
    case KeyType::kDType:
      return "dtype";
    case KeyType::kTables:
      return "array of tables";
  }
  return "?";
}

// A bound as people write it: 1024, not 1024.000000.
std::string number_text(double value) {
  const bool fits = std::abs(value) < 1e15;  // what a double counts one by one
  return fits && value == static_cast<double>(static_cast<long long>(value))
             ? std::to_string(static_cast<long long>(value))
             : format("%g", value);
}

// " from 1 to 64", " above 0 and at most 9", " of at least 0", or nothing.
std::string range_text(const KeyRange& range) {
  const bool has_min = range.min > -std::numeric_limits<double>::infinity();
  const bool has_max = range.max < std::numeric_limits<double>::infinity();
  if (has_min && has_max && !range.open_min && !range.open_max) {
    return " from " + number_text(range.min) + " to " + number_text(range.max);
  }
  std::string text;
  if (has_min) text += (range.open_min ? " above " : " of at least ") + number_text(range.min);
  if (has_min && has_max) text += " and";
  if (has_max) text += (range.open_max ? " below " : " at most ") + number_text(range.max);
  return text;
}

// Levenshtein distance.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string lower(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result.push_back(c == '-' ? '_'
                              : static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  return result;
}

}  // namespace

bool KeyRange::contains(double value) const {
  if (open_min ? value <= min : value < min) return false;
  return open_max ? value < max : value <= max;
}

bool KeyRange::rounds_to_zero(double value) const {
  return parts > 0 && value != 0 && std::round(value * parts) == 0;
}

std::span<const SectionRule> schema_sections() { return kSections; }
std::span<const KeyRule> schema_keys() { return kKeys; }

std::vector<const KeyRule*> keys_of(std::string_view section) {
  std::vector<const KeyRule*> keys;
  for (const KeyRule& rule : kKeys) {
    if (section == rule.section) keys.push_back(&rule);
  }
  return keys;
}

const KeyRule* find_key(std::string_view section, std::string_view key) {
  for (const KeyRule& rule : kKeys) {
    if (section == rule.section && key == rule.key) return &rule;
  }
  return nullptr;
}

const SectionRule* find_section(std::string_view name) {
  for (const SectionRule& rule : kSections) {
    if (name == rule.name) return &rule;
  }
  return nullptr;
}

std::vector<std::string> choices_of(const KeyRule& rule) {
  std::vector<std::string> choices;
  std::string_view rest = rule.choices;
  while (!rest.empty()) {
    const size_t bar = rest.find('|');
    choices.emplace_back(rest.substr(0, bar));
    rest = bar == std::string_view::npos ? "" : rest.substr(bar + 1);
  }
  return choices;
}

std::string allowed_text(const KeyRule& rule) {
  const std::string range = range_text(rule.range);
  switch (rule.type) {
    case KeyType::kInteger:
      return "an integer" + range;
    case KeyType::kNumber:
      return "a number" + range;
    case KeyType::kIntegers:
      return "an array of integers, each" + (range.empty() ? " any" : range);
    case KeyType::kNumberPair:
      return "an array of two numbers, each" + range;
    case KeyType::kRanks:
      return "\"all\" or an array of ranks in ascending order";
    case KeyType::kNuma:
      return "\"auto\", \"off\" or an array of node numbers from 0 to 1022, one a rank; -1: none";
    case KeyType::kBool:
      return "true or false";
    case KeyType::kStrings:
      return "an array of strings";
    case KeyType::kStringTable:
      return "a table of strings";
    case KeyType::kTables:
      return "an array of tables";
    case KeyType::kString:
    case KeyType::kDType:
      break;
  }
  std::string text;
  for (const std::string& choice : choices_of(rule)) {
    text += (text.empty() ? "one of \"" : ", \"") + choice + "\"";
  }
  return text.empty() ? "a string" : text;
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string wanted = lower(name);
  std::string best;
  size_t best_distance = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t d = distance(wanted, lower(candidate));
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

std::string markdown_row(const KeyRule& rule) {
  std::string fallback = rule.fallback == nullptr ? "required" : rule.fallback;
  if (fallback.empty()) fallback = "absent";
  if (rule.fallback != nullptr && *rule.fallback != '\0') fallback = "`" + fallback + "`";
  std::string allowed = type_text(rule.type);
  if (*rule.choices != '\0') {
    allowed.clear();
    for (const std::string& choice : choices_of(rule)) {
      allowed += (allowed.empty() ? "`\"" : ", `\"") + choice + "\"`";
    }
  }
  allowed += range_text(rule.range);
  const std::string unit = *rule.unit == '\0' ? "" : std::string(rule.unit) + " ";
  return "| `" + std::string(rule.key) + "` | " + allowed + " | " + unit + "| " + fallback + " | " +
         rule.help + " |";
}

}  // namespace optlease
