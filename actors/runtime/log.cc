#include "actors/runtime/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <mutex>

#include "actors/runtime/patient_output.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

constexpr std::array kLevels{LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError};

spdlog::level::level_enum spdlog_level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Standard error, which nobody may read.
class PatientSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    output_.put({line.data(), line.size()});
  }
  void flush_() override {}

  PatientOutput output_{STDERR_FILENO};
};

std::shared_ptr<spdlog::logger> make_logger(const std::string& name, LogLevel level) {
  auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<PatientSink>());
  logger->set_level(spdlog_level_of(level));
  // Sub-second UTC: lines of several processes are compared with one another.
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %-5l [%n] %v", spdlog::pattern_time_type::utc);
  return logger;
}

std::mutex logger_mutex;
std::shared_ptr<spdlog::logger>& logger_slot() {
  // Never destroyed: threads may log while the process ends.
  static auto* slot = new std::shared_ptr<spdlog::logger>(make_logger("optlease", LogLevel::kInfo));
  return *slot;
}
std::shared_ptr<spdlog::logger> current_logger() {
  const std::lock_guard lock(logger_mutex);
  return logger_slot();
}

void write(LogLevel level, const char* pattern, va_list args) {
  const auto logger = current_logger();
  if (!logger->should_log(spdlog_level_of(level))) return;
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, pattern, again);
  va_end(again);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, args);
  logger->log(spdlog_level_of(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

bool parse(std::string_view text, LogLevel* out) {
  for (const LogLevel level : kLevels) {
    if (text != name_of(level)) continue;
    *out = level;
    return true;
  }
  return false;
}

void init_logging(const std::string& process_name, LogLevel level) {
  auto logger = make_logger(process_name, level);
  const std::lock_guard lock(logger_mutex);
  logger_slot() = std::move(logger);
}

void log_debug(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  write(LogLevel::kDebug, pattern, args);
  va_end(args);
}

void log_info(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  write(LogLevel::kInfo, pattern, args);
  va_end(args);
}

void log_warn(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  write(LogLevel::kWarn, pattern, args);
  va_end(args);
}

void log_error(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  write(LogLevel::kError, pattern, args);
  va_end(args);
}

}  // namespace optlease
