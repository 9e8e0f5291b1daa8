// How deep the tables of a TOML text nest, before it is parsed. The parser limits nested values but
// makes a table of every part of a dotted key, and such a tower is taken down by recursion: deep
// enough, it ends the process. Used by config_value.cc; it checks nothing else of the text.
#pragma once

#include <cstddef>
#include <string>

namespace optlease {

inline constexpr size_t kTableDepthMax = 64;

// The line, from 1, where a key has more than kTableDepthMax parts, those of the tables around it
// and of the header above it included; 0: none has. Dots in strings and comments count for nothing,
// that of a number as one more part.
// Behind a header that does not end on its own line nothing is counted: the parser stops there, and
// what it says is then the error.
size_t line_of_deep_key(const std::string& text);

}  // namespace optlease
