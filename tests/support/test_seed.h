// The seed of a test that draws random numbers: the one in OPTLEASE_TEST_SEED, which repeats a run,
// or a new one. Every such test takes its numbers from here and so can be replayed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>

#include "shm/contract/status.h"

namespace optlease {

// What OPTLEASE_TEST_SEED says, a decimal number; nothing where it is not set.
inline std::optional<uint64_t> given_test_seed() {
  const char* text = std::getenv("OPTLEASE_TEST_SEED");
  if (text == nullptr) return std::nullopt;
  char* end = nullptr;
  const uint64_t seed = std::strtoull(text, &end, 10);
  OPTLEASE_CHECK(end != text && *end == '\0', "OPTLEASE_TEST_SEED is no number: '%s'", text);
  return seed;
}

// The same number for all tests of a process; the first call prints it.
inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const std::optional<uint64_t> given = given_test_seed();
    const uint64_t chosen = given ? *given : std::random_device{}();
    std::printf("OPTLEASE_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    std::fflush(stdout);
    return chosen;
  }();
  return seed;
}

}  // namespace optlease
