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
  // A statement begins with '[': what follows is the name of a table.
  void open_header() {
    in_header_ = true;
    above_ = 0;
    open();
  }
  void dot() { ++here_; }
  void open() {
    around_.push_back(in_header_ ? 0 : here_ + 1);
    sum_ += around_.back();
    if (!in_header_) here_ = 0;
  }
  void close() {
    if (around_.empty()) return;
    sum_ -= around_.back();
    around_.pop_back();
    if (in_header_ && around_.empty()) {
      above_ = here_ + 1;
      in_header_ = false;
    }
    if (!in_header_) here_ = 0;
  }
  // After a comma, and on a new line: no key goes on over its end.
  void next_key() { here_ = 0; }
  bool in_header() const { return in_header_; }
  bool is_outside() const { return around_.empty(); }
  bool too_deep() const { return above_ + sum_ + here_ >= kTableDepthMax; }

 private:
  std::vector<size_t> around_;
  size_t sum_ = 0;
  size_t here_ = 0;
  size_t above_ = 0;  // of the last header
  bool in_header_ = false;
};

}  // namespace

size_t line_of_deep_key(const std::string& text) {
  size_t line = 1;
  Depth depth;
  bool begins = true;  // nothing of this line's statement has come yet
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n' && depth.in_header()) return 0;
    if (c == '"' || c == '\'') {
      const size_t first = line;
      const size_t end = end_of_string(text, i);
      for (; i < end && i < text.size(); ++i) line += text[i] == '\n' ? 1 : 0;
      if (depth.in_header() && line != first) return 0;
      begins = false;
      continue;
    }
    if (c == '#') {
      i = text.find('\n', i);
      if (i == std::string::npos) return 0;
      continue;
    }
    if (c == '.') depth.dot();
    if (c == '[' && begins && depth.is_outside()) {
      depth.open_header();
    } else if (c == '{' || c == '[') {
      depth.open();
    }
    if (c == '}' || c == ']') depth.close();
    if (c == ',' || c == '\n') depth.next_key();
    if (depth.too_deep()) return line;
    begins = c == '\n' || (begins && (c == ' ' || c == '\t' || c == '\r'));
    if (c == '\n') ++line;
    ++i;
  }
  return 0;
}

}  // namespace optlease
