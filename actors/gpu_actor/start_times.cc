#include "actors/gpu_actor/start_times.h"

#include <time.h>
#include <unistd.h>

#include <charconv>
#include <vector>

#include "actors/runtime/clock.h"
#include "shm/contract/status.h"
#include "shm/processes.h"

namespace optlease {
namespace {

constexpr size_t kStartTimeField = 22;  // of /proc/PID/stat, as proc(5) counts

}  // namespace

int64_t process_age_ms() {
  const std::vector<std::string> fields = stat_after_name(getpid());
  const long ticks_a_second = sysconf(_SC_CLK_TCK);
  if (fields.size() <= kStartTimeField - 3 || ticks_a_second <= 0) return -1;
  const std::string& field = fields[kStartTimeField - 3];
  int64_t ticks = 0;
  timespec now{};
  if (std::from_chars(field.data(), field.data() + field.size(), ticks).ec != std::errc() ||
      clock_gettime(CLOCK_BOOTTIME, &now) != 0) {
    return -1;
  }
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
