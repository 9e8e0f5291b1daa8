#include "actors/gpu_actor/start_times.h"

#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "actors/runtime/clock.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

constexpr int kFieldsBeforeStart = 19;  // of /proc/self/stat, after the name: starttime is next

}  // namespace

int64_t process_age_ms() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');  // the name may hold anything
  const long ticks_a_second = sysconf(_SC_CLK_TCK);
  if (name_end == std::string::npos || ticks_a_second <= 0) return -1;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < kFieldsBeforeStart; ++i) fields >> skipped;
  int64_t ticks = 0;
  timespec now{};
  if (!(fields >> ticks) || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return -1;
  const int64_t started_ms = ticks * 1000 / ticks_a_second;
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000 - started_ms;
}

StartTimes::StartTimes() : since_us_(now_us()) {
  const int64_t age = process_age_ms();
  if (age >= 0) add("process", age);
}

void StartTimes::done(const char* name) {
  const int64_t now = now_us();
  add(name, (now - since_us_) / 1000);
  since_us_ = now;
}

void StartTimes::add(const char* name, int64_t ms) {
  text_ += format("%s%s %lld", text_.empty() ? "" : ", ", name, static_cast<long long>(ms));
}

std::string StartTimes::text() const { return text_ + " ms"; }

}  // namespace optlease
