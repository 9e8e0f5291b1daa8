#include "actors/tensor_files/replay_file.h"

namespace optlease {
namespace {

void replace_all(std::string* text, const std::string& from, const std::string& to) {
  for (size_t at = text->find(from); at != std::string::npos; at = text->find(from, at + to.size()))
    text->replace(at, from.size(), to);
}

}  // namespace

std::string replay_file_of(const std::string& pattern, Step step, Rank rank) {
  std::string path = pattern;
  replace_all(&path, "{step}", std::to_string(step));
  replace_all(&path, "{rank}", std::to_string(rank.value));
  return path;
}

}  // namespace optlease
