// Lines for somebody who may not read them: a pager that stands still, a stopped terminal. A line
// is waited for shortly, the next ones not at all until there is room again; what was left out is
// counted and said. So no process stands still because nobody reads what it says: a pipe or a
// terminal is opened anew for each line, so that writing to it never waits, and a socket is told
// not to. Where that cannot be had (another user's terminal, no /proc) a pipe still is given no
// more than it takes at once. A regular file always takes what it is given, and how long that takes
// is the file system's business. Used for the launcher's progress and for every process's log. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace optlease {

class PatientOutput {
 public:
  // Does not own `fd`. Nothing may wait in a buffer of the C library for it.
  explicit PatientOutput(int fd) : fd_(fd) {}

  // `line` ends with a newline. What cannot be written for another reason is dropped in silence:
  // there is nobody to tell.
  void put(std::string_view line);
  uint64_t lines_left_out() const { return left_out_; }

 private:
  struct File {
    int fd;
    bool is_socket;
  };
  // False where there is no room for all of it until `patience_ms` have passed.
  bool write_all(File file, std::string_view text, int patience_ms);

  int fd_;
  bool is_full_ = false;  // the last line did not go
  bool is_torn_ = false;  // a part of it went
  uint64_t left_out_ = 0;
  uint64_t unsaid_ = 0;  // of those, since the reader was told last
};

}  // namespace optlease
