#include "launcher/config_check.h"

#include <algorithm>
#include <cmath>

#include "launcher/config_schema.h"
#include "shm/numa_policy.h"

namespace optlease {
namespace {

using Errors = std::vector<ConfigError>;

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// "; did you mean 'x'?" or nothing.
std::string hint(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

void add(Errors* errors, const std::string& place, const std::string& path, std::string text) {
  errors->push_back({place, path, std::move(text)});
}

void add_mismatch(Errors* errors, const KeyRule& rule, const ConfigValue& value,
                  const std::string& path) {
  std::string text = "found " + found_text(value);
  if (value.is_number() && rule.range.rounds_to_zero(value.number)) {
    text += format(", which is kept as 0; the least above 0 is %g", 1 / rule.range.parts);
  }
  text += ", allowed: " + allowed_text(rule);
  if (value.kind == ValueKind::kString) text += hint(value.string, choices_of(rule));
  add(errors, value.place, path, std::move(text));
}

bool is_sound_number(const KeyRule& rule, const ConfigValue& value, bool integer) {
  if (integer ? value.kind != ValueKind::kInteger : !value.is_number()) return false;
  return std::isfinite(value.number) && !value.underflows && rule.range.contains(value.number) &&
         !rule.range.rounds_to_zero(value.number);
}

bool is_sound_string(const KeyRule& rule, const ConfigValue& value) {
  if (value.kind != ValueKind::kString) return false;
  const std::vector<std::string> choices = choices_of(rule);
  const std::string text = rule.type == KeyType::kDType ? upper(value.string) : value.string;
  return choices.empty() || std::find(choices.begin(), choices.end(), text) != choices.end();
}

// Checks each item of an array with `sound`; reports the first that is not, at its own place.
template <class Sound>
bool check_items(const KeyRule& rule, const ConfigValue& value, const std::string& path,
                 Errors* errors, Sound sound) {
  if (value.kind != ValueKind::kArray) {
    add_mismatch(errors, rule, value, path);
    return false;
  }
  for (const ConfigValue& item : value.items) {
    if (sound(item)) continue;
    add_mismatch(errors, rule, item, path);
    return false;
  }
  return true;
}

bool check_string_table(const KeyRule& rule, const ConfigValue& value, const std::string& path,
                        Errors* errors) {
  if (value.kind != ValueKind::kTable) {
    add_mismatch(errors, rule, value, path);
    return false;
  }
  for (const ConfigMember& member : value.members) {
    if (member.value.kind == ValueKind::kString) continue;
    add(errors, member.value.place, path + "." + member.key,
        "found " + found_text(member.value) + ", allowed: a string");
    return false;
  }
  return true;
}

bool check_number_pair(const KeyRule& rule, const ConfigValue& value, const std::string& path,
                       Errors* errors) {
  if (value.kind == ValueKind::kArray && value.items.size() != 2) {
    add_mismatch(errors, rule, value, path);
    return false;
  }
  return check_items(rule, value, path, errors,
                     [&](const ConfigValue& item) { return is_sound_number(rule, item, false); });
}

bool check_ranks(const KeyRule& rule, const ConfigValue& value, const std::string& path,
                 Errors* errors) {
  if (value.kind == ValueKind::kString && value.string == "all") return true;
  return check_items(rule, value, path, errors, [](const ConfigValue& item) {
    return item.kind == ValueKind::kInteger && item.integer >= 0 && item.integer <= UINT32_MAX;
  });
}

bool check_numa(const KeyRule& rule, const ConfigValue& value, const std::string& path,
                Errors* errors) {
  if (value.kind == ValueKind::kString && (value.string == "auto" || value.string == "off")) {
    return true;
  }
  return check_items(rule, value, path, errors, [](const ConfigValue& item) {
    return item.kind == ValueKind::kInteger && item.integer >= -1 && item.integer <= kNumaNodeMax;
  });
}

void check_table(const std::string& section, const std::string& path, ConfigValue* table,
                 Errors* errors);

// Takes items that are no tables out, and checks the rest.
void check_tables(const std::string& section, const std::string& path, ConfigValue* array,
                  Errors* errors) {
  for (size_t i = 0; i < array->items.size(); ++i) {
    ConfigValue& item = array->items[i];
    const std::string item_path = path + "." + std::to_string(i);
    if (item.kind == ValueKind::kTable) {
      check_table(section, item_path, &item, errors);
    } else {
      add(errors, item.place, item_path, "found " + found_text(item) + ", allowed: a table");
    }
  }
  std::erase_if(array->items,
                [](const ConfigValue& item) { return item.kind != ValueKind::kTable; });
}

// False, with an error, where the value breaks its key's rule.
bool check_value(const KeyRule& rule, const std::string& path, ConfigValue* value, Errors* errors) {
  bool sound = false;
  switch (rule.type) {
    case KeyType::kString:
    case KeyType::kDType:
      sound = is_sound_string(rule, *value);
      break;
    case KeyType::kInteger:
      sound = is_sound_number(rule, *value, true);
      break;
    case KeyType::kNumber:
      sound = is_sound_number(rule, *value, false);
      break;
    case KeyType::kBool:
      sound = value->kind == ValueKind::kBool;
      break;
    case KeyType::kStrings:
      return check_items(rule, *value, path, errors,
                         [](const ConfigValue& item) { return item.kind == ValueKind::kString; });
    case KeyType::kIntegers:
      return check_items(rule, *value, path, errors, [&](const ConfigValue& item) {
        return is_sound_number(rule, item, true);
      });
    case KeyType::kNumberPair:
      return check_number_pair(rule, *value, path, errors);
    case KeyType::kStringTable:
      return check_string_table(rule, *value, path, errors);
    case KeyType::kRanks:
      return check_ranks(rule, *value, path, errors);
    case KeyType::kNuma:
      return check_numa(rule, *value, path, errors);
    case KeyType::kTables:
      sound = value->kind == ValueKind::kArray;
      if (sound) {
        check_tables(std::string(rule.section) + "." + rule.key, path, value, errors);
      }
      break;
  }
  if (!sound) add_mismatch(errors, rule, *value, path);
  return sound;
}

// What an unknown name probably meant: one of `names`, else the keys of that name in any section.
// Ends the sentence: "; did you mean 'lr'?" or ".".
std::string meant_text(const std::string& name, const std::vector<std::string>& names) {
  std::string near = hint(name, names);
  if (!near.empty()) return near;
  std::vector<std::string> elsewhere;
  for (const KeyRule& rule : schema_keys()) {
    if (name == rule.key) elsewhere.push_back(std::string(rule.section) + "." + rule.key);
  }
  return elsewhere.empty() ? "." : "; did you mean " + joined(elsewhere) + "?";
}

void report_unknown_key(const std::string& section, const std::string& path,
                        const ConfigMember& member, Errors* errors) {
  std::vector<std::string> names;
  for (const KeyRule* rule : keys_of(section)) names.push_back(rule->key);
  add(errors, member.key_place, path + "." + member.key,
      "unknown key" + meant_text(member.key, names) + " Allowed in [" + section +
          "]: " + joined(names));
}

void check_table(const std::string& section, const std::string& path, ConfigValue* table,
                 Errors* errors) {
  std::vector<std::string> unsound;
  for (ConfigMember& member : table->members) {
    const KeyRule* rule = find_key(section, member.key);
    if (rule == nullptr) {
      report_unknown_key(section, path, member, errors);
    } else if (!check_value(*rule, path + "." + member.key, &member.value, errors)) {
      unsound.push_back(member.key);
    }
  }
  for (const KeyRule* rule : keys_of(section)) {
    if (rule->fallback != nullptr || table->find(rule->key) != nullptr) continue;
    add(errors, table->place, path + "." + rule->key, "missing; required: " + allowed_text(*rule));
  }
  std::erase_if(table->members, [&](const ConfigMember& member) {
    return std::find(unsound.begin(), unsound.end(), member.key) != unsound.end();
  });
}

void report_unknown_section(const ConfigMember& member, Errors* errors) {
  std::vector<std::string> names;
  for (const SectionRule& rule : schema_sections()) names.push_back(rule.name);
  add(errors, member.key_place, member.key,
      "unknown section" + meant_text(member.key, names) + " Allowed: " + joined(names));
}

// False where the section is not what its name asks for.
bool check_section(const SectionRule& rule, ConfigValue* value, Errors* errors) {
  const ValueKind wanted = rule.is_array ? ValueKind::kArray : ValueKind::kTable;
  if (value->kind != wanted) {
    add(errors, value->place, rule.name,
        "found " + found_text(*value) +
            ", allowed: " + (rule.is_array ? "tables, each under [[" : "a table, under [") +
            rule.name + (rule.is_array ? "]]" : "]"));
    return false;
  }
  if (rule.is_array) {
    check_tables(rule.name, rule.name, value, errors);
  } else {
    check_table(rule.name, rule.name, value, errors);
  }
  return true;
}

// TOML allows it as \u0000; what reads these strings afterwards would end at it.
void check_no_zero_byte(const ConfigValue& value, const std::string& path, Errors* errors) {
  if (value.kind == ValueKind::kString && value.string.find('\0') != std::string::npos) {
    add(errors, value.place, path, "found a string with a zero byte, allowed: none in any string");
  }
  for (const ConfigValue& item : value.items) check_no_zero_byte(item, path, errors);
  for (const ConfigMember& member : value.members) {
    const std::string key = member.key.substr(0, member.key.find('\0'));
    const std::string at = path.empty() ? key : path + "." + key;
    if (key.size() != member.key.size()) {
      add(errors, member.key_place, at, "found a key with a zero byte, allowed: none in any key");
    }
    check_no_zero_byte(member.value, at, errors);
  }
}

}  // namespace

void check_against_schema(const std::string& file, ConfigValue* root, Errors* errors) {
  check_no_zero_byte(*root, "", errors);
  std::vector<std::string> unsound;
  for (ConfigMember& member : root->members) {
    const SectionRule* rule = find_section(member.key);
    if (rule == nullptr || std::string_view(rule->name).find('.') != std::string_view::npos) {
      report_unknown_section(member, errors);
      unsound.push_back(member.key);
    } else if (!check_section(*rule, &member.value, errors)) {
      unsound.push_back(member.key);
    }
  }
  for (const SectionRule& rule : schema_sections()) {
    if (rule.is_array || root->find(rule.name) != nullptr) continue;
    ConfigValue absent;
    absent.place = file + ":1:1";
    check_table(rule.name, rule.name, &absent, errors);
  }
  std::erase_if(root->members, [&](const ConfigMember& member) {
    return std::find(unsound.begin(), unsound.end(), member.key) != unsound.end();
  });
}

}  // namespace optlease
