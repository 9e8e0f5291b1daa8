#include "shm/contract/status.h"

#include <cstdarg>

namespace optlease {

const char* name_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "Ok";
    case StatusCode::kInvalidArgument:
      return "InvalidArgument";
    case StatusCode::kNotFound:
      return "NotFound";
    case StatusCode::kAlreadyExists:
      return "AlreadyExists";
    case StatusCode::kNoSpace:
      return "NoSpace";
    case StatusCode::kPermission:
      return "Permission";
    case StatusCode::kCorrupt:
      return "Corrupt";
    case StatusCode::kWrongVersion:
      return "WrongVersion";
    case StatusCode::kStaleEpoch:
      return "StaleEpoch";
    case StatusCode::kStaleIncarnation:
      return "StaleIncarnation";
    case StatusCode::kStaleLease:
      return "StaleLease";
    case StatusCode::kStaleStep:
      return "StaleStep";
    case StatusCode::kTimeout:
      return "Timeout";
    case StatusCode::kBusy:
      return "Busy";
    case StatusCode::kPeerLost:
      return "PeerLost";
    case StatusCode::kUnsupported:
      return "Unsupported";
    case StatusCode::kIo:
      return "Io";
    case StatusCode::kCancelled:
      return "Cancelled";
    case StatusCode::kInternal:
      return "Internal";
  }
  return "Unknown";
}

std::string Status::text() const {
  return is_ok() ? "Ok" : std::string(name_of(code_)) + ": " + message_;
}

std::string format(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, pattern, args);
  va_end(args);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, condition, detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace optlease
