// Named places at which a process can be told to die or to stand still, so that tests can be at
// every instant of a write. Compiled in always; a branch on one word when OPTLEASE_KILL_POINT is
// not set. It decides nothing and frees nothing: the process ends by SIGKILL, as a real one would,
// or stops by SIGSTOP and goes on with SIGCONT, or has no memory left: std::bad_alloc is thrown.
// Which points there are, of what class, in which programs: tests/soak/kill_points.cc.
#pragma once

#include <atomic>
#include <cstdint>

namespace optlease {

// 1: the environment named a point (OPTLEASE_KILL_POINT), or a page of orders
// (OPTLEASE_KILL_PAGE, shm/kill_page.h), when this process began. Read through KILL_POINT only.
extern std::atomic<uint32_t> g_kill_points_armed;

// Counts a visit of `name`; raises SIGKILL on this process at the occurrence that
// OPTLEASE_KILL_POINT="name:occurrence" (from 1; ":1" may be left out) names; SIGSTOP where that is
// "stop:name:occurrence"; throws std::bad_alloc where it is "throw:name:occurrence".
void visit_kill_point(const char* name);

// For forked tests: what the environment variable would say. Null disarms.
void arm_kill_point(const char* specification);

}  // namespace optlease

#define KILL_POINT(name)                                                                   \
  do {                                                                                     \
    if (::optlease::g_kill_points_armed.load(std::memory_order_relaxed) != 0) [[unlikely]] \
      ::optlease::visit_kill_point(name);                                                  \
  } while (false)
