// The version of the client's C interface (actors/client/optlease.h) that this build's actors
// serve. A trainer says its own in Attach; another one is refused with words. The client library
// asserts that its macro is this number.
#pragma once

#include <cstdint>

namespace optlease {

inline constexpr uint32_t kClientAbiVersion = 1;

}  // namespace optlease
