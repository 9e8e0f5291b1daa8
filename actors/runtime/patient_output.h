// Lines for somebody who may not read them: a pager that stands still, a stopped terminal. A line
// is waited for shortly, the next ones not at all until there is room again; what was left out is
// counted and said. So no process stands still because nobody reads what it says: a pipe or a
// terminal is opened a second time, so that writing to it never waits, and a socket is told not to.
// Where that cannot be had (another user's terminal, no /proc) a pipe still is given no more than
// it takes at once. A regular file always takes what it is given, and how long that takes is the
// file system's business. Used for the launcher's progress and for every process's log. Not
// thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "shm/shared_buffer.h"

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
  // False where there is no room for all of it until `patience_ms` have passed.
  bool write_all(std::string_view text, int patience_ms);

  // What fd_ is may change between two lines.
  void look_at_file();
  ssize_t write_some(std::string_view text);

  int fd_;
  UniqueFd own_;  // of the same pipe or terminal; none: fd_ is written to
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool is_socket_ = false;
  bool is_full_ = false;  // the last line did not go
  bool is_torn_ = false;  // a part of it went
  uint64_t left_out_ = 0;
  uint64_t unsaid_ = 0;  // of those, since the reader was told last
};

}  // namespace optlease
