#include "launcher/toml_depth.h"

#include <string_view>
#include <vector>

namespace optlease {
namespace {

// Where the string that begins at `at` ends: past its closing quotes, or at the end of the line (of
// the text, for one of several lines) where it has none: the parser will say so.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool has_lines = text.substr(at, 3) == three;
  size_t i = at + (has_lines ? 3 : 1);
  while (i < text.size()) {
    if (text[i] == '\\' && quote == '"') {
      i += 2;
    } else if (has_lines && text.substr(i, 3) == three) {
      i += 3;
      while (i < text.size() && text[i] == quote) ++i;  // "" before the closing three belongs to it
      return i;
    } else if (!has_lines && (text[i] == quote || text[i] == '\n')) {
      return text[i] == quote ? i + 1 : i;
    } else {
      ++i;
    }
  }
  return text.size();
}

// The parts so far of the key in hand, and of those around it.
class Depth {
 public:
  void dot() { ++here_; }
  void open() {
    around_.push_back(here_ + 1);
    sum_ += here_ + 1;
    here_ = 0;
  }
  void close() {
    if (around_.empty()) return;
    here_ = 0;
    sum_ -= around_.back();
    around_.pop_back();
  }
  void next_key() { here_ = 0; }
  bool is_outside() const { return around_.empty(); }
  bool too_deep() const { return sum_ + here_ >= kTableDepthMax; }

 private:
  std::vector<size_t> around_;
  size_t sum_ = 0;
  size_t here_ = 0;
};

}  // namespace

size_t line_of_deep_key(const std::string& text) {
  size_t line = 1;
  Depth depth;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      const size_t end = end_of_string(text, i);
      for (; i < end && i < text.size(); ++i) line += text[i] == '\n' ? 1 : 0;
      continue;
    }
    if (c == '#') {
      i = text.find('\n', i);
      if (i == std::string::npos) return 0;
      continue;
    }
    if (c == '.') depth.dot();
    if (c == '{' || c == '[') depth.open();
    if (c == '}' || c == ']') depth.close();
    if (c == ',' || (c == '\n' && depth.is_outside())) depth.next_key();
    if (depth.too_deep()) return line;
    if (c == '\n') ++line;
    ++i;
  }
  return 0;
}

}  // namespace optlease
