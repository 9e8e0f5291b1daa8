#include "actors/runtime/patient_output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

#include "actors/runtime/clock.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

constexpr int kPatienceMs = 500;

}  // namespace

void PatientOutput::put(std::string_view line) {
  const bool was_full = is_full_;
  if (was_full) {
    const std::string words =
        (is_torn_ ? "\n" : "") + format("(lines left out here, which nobody read: %llu)\n",
                                        static_cast<unsigned long long>(unsaid_));
    if (write_all(words, 0)) {
      is_full_ = is_torn_ = false;
      unsaid_ = 0;
    }
  }
  if (!is_full_ && write_all(line, was_full ? 0 : kPatienceMs)) return;
  is_full_ = true;
  ++left_out_;
  ++unsaid_;
}

bool PatientOutput::write_all(std::string_view text, int patience_ms) {
  const Deadline deadline = Deadline::after_ms(patience_ms);
  const size_t whole = text.size();
  while (!text.empty()) {
    pollfd waiting{fd_, POLLOUT, 0};
    const int ready = ::poll(&waiting, 1, deadline.remaining_ms());
    ssize_t put = -1;
    // A pipe that is writable takes so much without waiting.
    if (ready > 0) put = ::write(fd_, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (put > 0) {
      text.remove_prefix(static_cast<size_t>(put));
      continue;
    }
    if (ready > 0 && put < 0 && errno != EINTR && errno != EAGAIN) return true;  // nobody is there
    if (!deadline.passed()) continue;
    is_torn_ = is_torn_ || text.size() < whole;
    return false;
  }
  return true;
}

}  // namespace optlease
