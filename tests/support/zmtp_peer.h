// Bytes of a peer that speaks ZMTP 3.0 by hand, for tests that send a library what no library of
// ours would: a greeting that is taken, then frames of any claimed length. Nothing here is a
// socket.
#pragma once

#include <cstdint>
#include <string>

namespace optlease::testing_support {

// Greeting with the NULL mechanism, then a READY command of the given socket type ("DEALER",
// "SUB").
inline std::string zmtp_greeting(const std::string& type) {
  std::string bytes("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16);
  bytes.resize(64, '\0');
  std::string ready("\5READY\x0bSocket-Type", 18);
  ready += std::string("\0\0\0", 3) + static_cast<char>(type.size()) + type;
  return bytes + '\4' + static_cast<char>(ready.size()) + ready;
}

// The head of a long frame of `size` bytes.
inline std::string zmtp_long_header(uint64_t size) {
  std::string bytes(1, '\2');
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift);
  return bytes;
}

}  // namespace optlease::testing_support
