// The jobs of a soak: small, several windows a rank, a few milliseconds a step, each with something
// that the others do not have.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/soak/kill_points.h"

namespace optlease::soak {

struct Shape {
  const char* name;
  const char* config;
  int steps;
  std::vector<std::string> overrides;
  bool has_trainers = false;
  bool skips_steps = false;
  bool has_resident_part = false;

  bool offers(Need need) const;
};

std::span<const Shape> shapes();

// What an undisturbed run of a shape ends with.
struct Reference {
  std::string digest;
  uint64_t commits = 0;  // commit words that were flipped, all chunks and steps
};

}  // namespace optlease::soak
