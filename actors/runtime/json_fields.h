// Flat JSON objects, written and read by one list of their keys: a function template
// `fields(archive, message)` that calls archive("key", member) for each. Used by telemetry, step
// figures and floor messages. It knows no nested values; the job plan, which has them, has a reader
// of its own.
//
// Of an enum the name is written, as its name_of() says. REQUIRES: its values go up from 0 without
// gaps, and name_of() is "?" past the last.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace optlease {

// A number that JSON has not (NaN, infinite) is null, and so is an empty optional.
class JsonFieldWriter {
 public:
  JsonFieldWriter();
  JsonFieldWriter(JsonFieldWriter&&) noexcept;
  ~JsonFieldWriter();

  void operator()(const char* key, const std::string& value);
  void operator()(const char* key, double value);
  void operator()(const char* key, const std::optional<double>& value);
  template <std::unsigned_integral T>
  void operator()(const char* key, T value) {
    put(key, uint64_t{value});
  }
  template <std::signed_integral T>
  void operator()(const char* key, T value) {
    put(key, int64_t{value});
  }
  template <class T>
  requires std::is_enum_v<T>
  void operator()(const char* key, T value) { (*this)(key, std::string(name_of(value))); }

  // One line, without its end. Bytes that are no UTF-8 are replaced, never thrown on.
  std::string text() const;
  std::vector<std::string> keys() const;  // in the order of writing

 private:
  void put(const char* key, uint64_t value);
  void put(const char* key, int64_t value);

  struct Document;
  std::unique_ptr<Document> document_;
};

// Reads. What is missing, of the wrong type or out of range is an error, and the first one stays;
// a key that nobody asks for is none.
class JsonFieldReader {
 public:
  // Of a null where a double is asked for: an error, or NaN.
  enum class Nulls { kRefused, kUnknown };

  JsonFieldReader(std::string_view text, Nulls nulls);
  ~JsonFieldReader();
  // Empty where all is well.
  const std::string& error() const { return error_; }

  void operator()(const char* key, std::string& out);
  void operator()(const char* key, double& out);
  void operator()(const char* key, std::optional<double>& out);  // null: empty
  template <std::integral T>
  void operator()(const char* key, T& out) {
    const std::optional<Integer> found = integer(key);
    if (!found) return;
    const bool fits = found->negative ? std::in_range<T>(static_cast<int64_t>(found->bits))
                                      : std::in_range<T>(found->bits);
    if (!fits) return refuse(key);
    out = static_cast<T>(found->bits);
  }
  template <class T>
  requires std::is_enum_v<T>
  void operator()(const char* key, T& out) {
    std::string name;
    (*this)(key, name);
    if (!error_.empty()) return;
    for (uint32_t number = 0; *name_of(static_cast<T>(number)) != '?'; ++number) {
      if (name != name_of(static_cast<T>(number))) continue;
      out = static_cast<T>(number);
      return;
    }
    refuse(key);
  }

 private:
  struct Integer {
    bool negative = false;
    uint64_t bits = 0;  // two's complement
  };
  std::optional<Integer> integer(const char* key);
  void refuse(const char* key);

  struct Document;
  std::unique_ptr<Document> document_;
  const Nulls nulls_;
  std::string error_;
};

}  // namespace optlease
