// What the rank processes of gpu_collectives_test do. Each is this program again, started by exec
// with a role, so that no CUDA call was made in it before. They report by their exit code, by words
// on stderr, and through a board, a file that all of them map.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace optlease {

// Words that all processes of a test see, in `folder`/board.
class FileBoard {
 public:
  static constexpr int kWords = 16;
  explicit FileBoard(const std::string& folder);
  ~FileBoard();
  FileBoard(const FileBoard&) = delete;
  FileBoard& operator=(const FileBoard&) = delete;
  std::atomic<int64_t>& operator[](int word) { return words_[word]; }
  // False after half a minute in vain.
  bool await(int word, int64_t at_least);

 private:
  std::atomic<int64_t>* words_;
};

// Board words: rounds done, by rank; what became of it, by rank; go-ahead of the test.
inline constexpr int kRounds = 0;
inline constexpr int kReport = 4;
inline constexpr int kGo = 8;
// How many ranks those of a loss are.
inline constexpr int kWorld = 9;

struct RankArgs {
  std::string role;
  uint32_t rank = 0;
  uint64_t epoch = 1;
  std::string folder;
};

// overlap_roles.cc: a gather under windows, and one that is aborted.
void role_overlap(const RankArgs& args);
void role_overlap_abort(const RankArgs& args);

// The exit code.
int run_rank(const RankArgs& args);

}  // namespace optlease
