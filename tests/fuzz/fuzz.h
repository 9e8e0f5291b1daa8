// What every fuzzer of this folder has in common: an input that is taken to pieces, the same pieces
// written by a seed, and how a fuzzer says that a decoder took what it was given. A fuzzer is one
// file with LLVMFuzzerTestOneInput() and fuzz_seeds(); what it asserts, it asserts with
// OPTLEASE_CHECK, which ends the process with the values in words.
//
// Seeds come from the real encoders at every start of tests/fuzz/run.sh, so that they cannot go
// stale, and every one of them must be taken by a decoder (fuzz_main.cc).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shm/contract/status.h"

namespace optlease::fuzz {

// An input from its front to its end. Past the end there are zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}
  explicit Input(std::string_view bytes) : left_(bytes) {}

  bool empty() const { return left_.empty(); }
  size_t size() const { return left_.size(); }
  template <class T>
  requires std::is_trivially_copyable_v<T> T take() {
    T value{};
    const std::string_view bytes = take_bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(static_cast<void*>(&value), bytes.data(), bytes.size());
    return value;
  }
  uint8_t byte() { return take<uint8_t>(); }
  // At most `count` bytes.
  std::string_view take_bytes(size_t count) {
    const std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(bytes.size());
    return bytes;
  }
  std::string_view rest() { return take_bytes(left_.size()); }

 private:
  std::string_view left_;
};

// The same from the other side, for seeds.
class Output {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T> Output& put(const T& value) {
    return bytes(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
  }
  Output& byte(uint32_t value) { return put(static_cast<uint8_t>(value)); }
  Output& bytes(std::string_view more) {
    text_.append(more);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Says that a decoder took the input, or a part of it.
void taken();
uint64_t taken_count();

// A name of this process in /dev/shm. run.sh removes what is left under it.
std::string segment_stem();
// A folder of this process in /dev/shm, for sockets and files; removed at its end, or by run.sh.
const std::string& scratch_folder();

}  // namespace optlease::fuzz

// Inputs that reach the decoders' deep ends. Each fuzzer has its own.
std::vector<std::string> fuzz_seeds();
// Words of its language, where it has one: libFuzzer's dictionary.
std::vector<std::string> fuzz_words();
