#include "launcher/config_value.h"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "launcher/toml_depth.h"

namespace optlease {
namespace {

std::string place_of(const std::string& file, const toml::source_position& at) {
  return format("%s:%u:%u", file.c_str(), static_cast<unsigned>(at.line),
                static_cast<unsigned>(at.column));
}

// How places are written: of a file with line and column, of an override the override itself.
struct Placer {
  const std::string& name;
  bool with_position;
  std::string_view document;
  std::string operator()(const toml::source_region& region) const {
    return with_position ? place_of(name, region.begin) : name;
  }
};

// The document from a place on. Lines count from 1, and so do columns, in code points.
std::string_view text_from(std::string_view document, const toml::source_position& at) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (document.starts_with(kByteOrderMark)) document.remove_prefix(kByteOrderMark.size());
  for (toml::source_index line = 1; line < at.line; ++line) {
    const size_t end = document.find('\n');
    if (end == std::string_view::npos) return {};
    document.remove_prefix(end + 1);
  }
  for (toml::source_index column = 1; column < at.column && !document.empty(); ++column) {
    do {
      document.remove_prefix(1);
    } while (!document.empty() && (static_cast<unsigned char>(document[0]) & 0xC0) == 0x80);
  }
  return document;
}

// Whether the number that is written at the front of `text` has a digit other than 0 before its
// exponent.
bool is_written_other_than_zero(std::string_view text) {
  const std::string_view mantissa = text.substr(0, text.find_first_not_of("+-0123456789._"));
  return mantissa.find_first_of("123456789") != std::string_view::npos;
}

ConfigValue convert(const toml::node& node, const Placer& place);

void convert_table(const toml::table& table, const Placer& place, ConfigValue* value) {
  for (const auto& [key, child] : table) {
    value->members.push_back({std::string(key.str()), place(key.source()), convert(child, place)});
  }
  // toml++ sorts keys; errors and parameters read better in the order of the file.
  std::vector<std::pair<toml::source_position, size_t>> order;
  for (const auto& [key, child] : table) {
    order.emplace_back(key.source().begin, order.size());
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ConfigMember> sorted;
  sorted.reserve(order.size());
  for (const auto& entry : order) sorted.push_back(std::move(value->members[entry.second]));
  value->members = std::move(sorted);
}

template <class Date>
std::string date_text(const Date& date) {
  std::ostringstream text;
  text << date;
  return text.str();
}

ConfigValue convert(const toml::node& node, const Placer& place) {
  ConfigValue value;
  value.place = place(node.source());
  node.visit([&](const auto& typed) {
    using T = std::decay_t<decltype(typed)>;
    if constexpr (toml::is_table<T>) {
      value.kind = ValueKind::kTable;
      convert_table(typed, place, &value);
    } else if constexpr (toml::is_array<T>) {
      value.kind = ValueKind::kArray;
      for (const toml::node& item : typed) value.items.push_back(convert(item, place));
    } else if constexpr (toml::is_string<T>) {
      value.kind = ValueKind::kString;
      value.string = typed.get();
    } else if constexpr (toml::is_integer<T>) {
      value.kind = ValueKind::kInteger;
      value.integer = typed.get();
      value.number = static_cast<double>(typed.get());
    } else if constexpr (toml::is_floating_point<T>) {
      value.kind = ValueKind::kNumber;
      value.number = typed.get();
      value.underflows = value.number == 0 &&
                         is_written_other_than_zero(text_from(place.document, node.source().begin));
    } else if constexpr (toml::is_boolean<T>) {
      value.kind = ValueKind::kBool;
      value.boolean = typed.get();
    } else {
      value.kind = ValueKind::kDate;
      value.string = date_text(typed.get());
    }
  });
  return value;
}

// The value after "key=" of an override; nothing where it is no TOML value.
std::optional<ConfigValue> parse_override_value(const std::string& text, const std::string& place) {
  const std::string statement = "v = " + text;
  if (line_of_deep_key(statement) != 0) return std::nullopt;
  try {
    const toml::table table = toml::parse(statement);
    if (table.size() != 1) return std::nullopt;
    return convert(*table.get("v"), Placer{place, false, statement});
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts;
  while (true) {
    const size_t dot = path.find('.');
    parts.emplace_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    path = path.substr(dot + 1);
  }
}

// The child of `at` that `part` names, made where a table lacks it; null where there is none.
ConfigValue* descend(ConfigValue* at, const std::string& part, const std::string& place) {
  if (at->kind == ValueKind::kArray) {
    size_t index = 0;
    const auto end = part.data() + part.size();
    const auto parsed = std::from_chars(part.data(), end, index);
    if (parsed.ec != std::errc() || parsed.ptr != end || index >= at->items.size()) return nullptr;
    return &at->items[index];
  }
  if (at->kind != ValueKind::kTable) return nullptr;
  for (ConfigMember& member : at->members) {
    if (member.key == part) return &member.value;
  }
  ConfigValue table;
  table.place = place;
  at->members.push_back({part, place, std::move(table)});
  return &at->members.back().value;
}

}  // namespace

const ConfigValue* ConfigValue::find(std::string_view key) const {
  if (kind != ValueKind::kTable) return nullptr;
  for (const ConfigMember& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::string found_text(const ConfigValue& value) {
  switch (value.kind) {
    case ValueKind::kString:
      return "the string \"" + value.string + "\"";
    case ValueKind::kInteger:
      return "the integer " + std::to_string(value.integer);
    case ValueKind::kNumber:
      if (value.underflows) return "a number other than 0 that is too small to be told from 0";
      return format("the number %g", value.number);
    case ValueKind::kBool:
      return value.boolean ? "true" : "false";
    case ValueKind::kDate:
      return "the date or time " + value.string;
    case ValueKind::kArray:
      return format("an array of %zu", value.items.size());
    case ValueKind::kTable:
      return "a table";
  }
  return "?";
}

bool parse_toml(const std::string& text, const std::string& file, ConfigValue* root,
                std::vector<ConfigError>* errors) {
  if (const size_t line = line_of_deep_key(text); line != 0) {
    errors->push_back(
        {format("%s:%zu:1", file.c_str(), line), "",
         format("a key has more than %zu parts, those of the tables around it included",
                kTableDepthMax)});
    return false;
  }
  try {
    const toml::table table = toml::parse(text, file);
    *root = convert(table, Placer{file, true, text});
    return true;
  } catch (const toml::parse_error& error) {
    errors->push_back({place_of(file, error.source().begin), "",
                       "this is no TOML: " + std::string(error.description())});
    return false;
  }
}

ConfigValue parse_toml_value(const std::string& text, const std::string& place) {
  std::optional<ConfigValue> value = parse_override_value(text, place);
  OPTLEASE_CHECK(value.has_value(), "the schema's default '%s' is no TOML", text.c_str());
  return *std::move(value);
}

void apply_override(const std::string& override_text, ConfigValue* root,
                    std::vector<ConfigError>* errors) {
  const std::string place = "--set " + override_text;
  const size_t equals = override_text.find('=');
  if (equals == std::string::npos || equals == 0) {
    errors->push_back({place, "", "an override is section.key=value"});
    return;
  }
  const std::string path = override_text.substr(0, equals);
  if (static_cast<size_t>(std::count(path.begin(), path.end(), '.')) >= kTableDepthMax) {
    errors->push_back(
        {place, "",
         format("a key has more than %zu parts, those of the tables around it included",
                kTableDepthMax)});
    return;
  }
  const std::string text = override_text.substr(equals + 1);
  std::optional<ConfigValue> value = parse_override_value(text, place);
  if (!value) {
    if (text.empty() || std::string_view("[{\"'").find(text[0]) != std::string_view::npos) {
      errors->push_back({place, path, "the value '" + text + "' is no TOML"});
      return;
    }
    value.emplace();
    value->kind = ValueKind::kString;
    value->place = place;
    value->string = text;
  }
  ConfigValue* at = root;
  for (const std::string& part : split_path(path)) {
    at = part.empty() ? nullptr : descend(at, part, place);
    if (at == nullptr) {
      errors->push_back({place, path,
                         "there is no '" + path + "' to set: '" + part +
                             "' is no key of a table or element of an array"});
      return;
    }
  }
  *at = *std::move(value);
}

}  // namespace optlease
