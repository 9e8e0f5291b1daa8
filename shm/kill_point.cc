#include "shm/kill_point.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "shm/kill_page.h"

namespace optlease {
namespace {

constexpr std::string_view kStopPrefix = "stop:";
constexpr std::string_view kThrowPrefix = "throw:";

struct KillPoint {
  std::string name;
  uint64_t occurrence = 0;
  int signal = SIGKILL;  // 0: throws
  std::atomic<uint64_t> visits{0};
};

KillPoint& armed_point() {
  static KillPoint point;
  return point;
}

// True where the specification names a point.
bool parse_into(const char* specification, KillPoint* point) {
  point->name.clear();
  point->occurrence = 1;
  point->signal = SIGKILL;
  point->visits.store(0);
  if (specification == nullptr || *specification == '\0') return false;
  const std::string_view given(specification);
  if (given.starts_with(kStopPrefix)) {
    specification += kStopPrefix.size();
    point->signal = SIGSTOP;
  } else if (given.starts_with(kThrowPrefix)) {
    specification += kThrowPrefix.size();
    point->signal = 0;
  }
  const char* colon = std::strrchr(specification, ':');
  if (colon == nullptr) {
    point->name = specification;
    return true;
  }
  char* end = nullptr;
  const unsigned long long occurrence = std::strtoull(colon + 1, &end, 10);
  if (occurrence == 0 || end == colon + 1 || *end != '\0') {
    std::fprintf(stderr, "OPTLEASE_KILL_POINT=%s: the occurrence is no number from 1; ignored\n",
                 specification);
    return false;
  }
  point->name.assign(specification, static_cast<size_t>(colon - specification));
  point->occurrence = occurrence;
  return true;
}

}  // namespace

// The environment is read once, when the program starts: the points themselves then cost one load.
namespace {
constinit KillPage* g_page = nullptr;

uint32_t armed_by_environment() {
  g_page = map_kill_page(std::getenv("OPTLEASE_KILL_PAGE"));
  const bool named = parse_into(std::getenv("OPTLEASE_KILL_POINT"), &armed_point());
  return named || g_page != nullptr ? 1 : 0;
}
}  // namespace

std::atomic<uint32_t> g_kill_points_armed{armed_by_environment()};

void arm_kill_point(const char* specification) {
  const bool named = parse_into(specification, &armed_point());
  g_kill_points_armed.store(named || g_page != nullptr ? 1 : 0);
}

void visit_kill_point(const char* name) {
  if (g_page != nullptr) visit_kill_page(g_page, name);
  KillPoint& point = armed_point();
  if (point.name != name) return;
  if (point.visits.fetch_add(1) + 1 != point.occurrence) return;
  if (point.signal == 0) throw std::bad_alloc();
  ::kill(::getpid(), point.signal);
  // The signal is delivered before kill returns to its own process; nothing runs past a SIGKILL.
  if (point.signal == SIGKILL) std::abort();
}

}  // namespace optlease
