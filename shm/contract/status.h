// Operating errors as values: one frozen enum (its numbers travel in messages) and a message made
// where the context is known: what, where, the numbers, what to do.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <variant>

namespace optlease {

// Frozen: append only; docs/PROTOCOL.md lists them.
enum class StatusCode : uint16_t {
  kOk = 0,
  kInvalidArgument = 1,
  kNotFound = 2,
  kAlreadyExists = 3,
  kNoSpace = 4,
  kPermission = 5,
  kCorrupt = 6,       // a checksum, magic or table does not hold
  kWrongVersion = 7,  // another format or protocol version
  kStaleEpoch = 8,    // names an earlier store epoch
  kStaleIncarnation = 9,
  kStaleLease = 10,  // unknown, expired, or returned lease
  kStaleStep = 11,   // the step or version named is not the one that is open
  kTimeout = 12,
  kBusy = 13,  // nothing free now; ask again
  kPeerLost = 14,
  kUnsupported = 15,
  kIo = 16,
  kCancelled = 17,
  kInternal = 18,
};

const char* name_of(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status ok() { return {}; }

  bool is_ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return is_ok(); }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "NoSpace: /dev/shm has 12 bytes free, ..."
  std::string text() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the Status that explains its absence. REQUIRES: value() only when is_ok().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::move(value)) {}         // NOLINT: implicit by intent
  Result(Status status) : held_(std::move(status)) {}  // NOLINT
  bool is_ok() const { return held_.index() == 0; }
  explicit operator bool() const { return is_ok(); }
  T& value() & { return std::get<0>(held_); }
  const T& value() const& { return std::get<0>(held_); }
  T&& value() && { return std::get<0>(std::move(held_)); }
  Status status() const { return is_ok() ? Status::ok() : std::get<1>(held_); }

 private:
  std::variant<T, Status> held_;
};

// printf-style text of any length.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& detail);

}  // namespace optlease

// A programmer error: stays on in release, prints the values and aborts; the launcher sees the
// exit reason. Use: OPTLEASE_CHECK(slot < slot_count, "slot %u of %u", slot, slot_count).
#define OPTLEASE_CHECK(condition, ...)                                                           \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::optlease::check_failed(__FILE__, __LINE__, #condition, ::optlease::format(__VA_ARGS__)); \
  } while (false)

// Returns the Status of an expression that failed.
#define OPTLEASE_TRY(expression)                                                                 \
  do {                                                                                           \
    if (::optlease::Status try_status_ = (expression); !try_status_.is_ok()) return try_status_; \
  } while (false)
