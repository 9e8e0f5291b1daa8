// Log lines of every program: stderr, one line each: UTC time, level, process name, text. The
// launcher directs a child's stderr where it belongs. Thread-safe. Before init_logging the process
// is called "optlease" and the level is info. Hides the logging library from everybody.
#pragma once

#include <string>
#include <string_view>

namespace optlease {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
const char* name_of(LogLevel level);  // "debug", "info", "warn", "error"
bool parse(std::string_view text, LogLevel* out);

// `process_name` as people should read it: "host_store", "gpu_actor.3", "launcher".
void init_logging(const std::string& process_name, LogLevel level);

[[gnu::format(printf, 1, 2)]] void log_debug(const char* pattern, ...);
[[gnu::format(printf, 1, 2)]] void log_info(const char* pattern, ...);
[[gnu::format(printf, 1, 2)]] void log_warn(const char* pattern, ...);
[[gnu::format(printf, 1, 2)]] void log_error(const char* pattern, ...);

}  // namespace optlease
