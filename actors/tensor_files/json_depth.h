// How deep a JSON text nests, told before it is parsed: the parser remembers every bracket that is
// open, which of a long text of them is many times its size, and documents are copied, compared and
// printed by recursion. Used where a text may come from anywhere.
#pragma once

#include <cstddef>
#include <string_view>

namespace optlease {

// Whether more than `depth_max` objects and arrays lie in one another. Of a text that is no JSON it
// tells what holds up to the place where it ceases to be, or more.
inline bool json_nests_deeper(std::string_view json, int depth_max) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth > depth_max) return true;
  }
  return false;
}

}  // namespace optlease
