// The log of a fuzzer, in the place of actors/runtime/log.cc: every line is made, so that a wrong
// argument is found, and none is written.
#include <cstdarg>
#include <cstdio>

#include "actors/runtime/log.h"

namespace optlease {
namespace {

void make_line(const char* pattern, va_list args) {
  char line[4096];
  (void)std::vsnprintf(line, sizeof line, pattern, args);
}

}  // namespace

const char* name_of(LogLevel) { return "?"; }
bool parse(std::string_view, LogLevel*) { return false; }
void init_logging(const std::string&, LogLevel) {}

#define OPTLEASE_FUZZ_LOG(name)         \
  void name(const char* pattern, ...) { \
    va_list args;                       \
    va_start(args, pattern);            \
    make_line(pattern, args);           \
    va_end(args);                       \
  }
OPTLEASE_FUZZ_LOG(log_debug)
OPTLEASE_FUZZ_LOG(log_info)
OPTLEASE_FUZZ_LOG(log_warn)
OPTLEASE_FUZZ_LOG(log_error)

}  // namespace optlease
