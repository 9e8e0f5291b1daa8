// How long each part of an actor's start took, for one line of its log: a restart is only as fast
// as the slowest of them. Used by gpu_actor.cc.
#pragma once

#include <cstdint>
#include <string>

namespace optlease {

class StartTimes {
 public:
  // From here the first part runs.
  StartTimes();
  // The part called `name` ends here, and the next one begins.
  void done(const char* name);
  // "process 41, sockets 1, device 160 ms"; "process" is what came before the constructor: the
  // program's loading and its arguments, where /proc tells.
  std::string text() const;

 private:
  void add(const char* name, int64_t ms);
  std::string text_;
  int64_t since_us_ = 0;
};

// Milliseconds since this process was started (to a clock tick, mostly 10 ms); -1: unknown.
int64_t process_age_ms();

}  // namespace optlease
