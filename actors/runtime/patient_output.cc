#include "actors/runtime/patient_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <string>

#include "actors/runtime/clock.h"
#include "shm/contract/status.h"
#include "shm/eintr.h"
#include "shm/shared_buffer.h"

namespace optlease {
namespace {

constexpr int kPatienceMs = 500;
constexpr int kRetryMs = 10;

// The description behind `fd` is shared with whoever started this process, who may not want it not
// to wait; one opened anew is this process's. None where that makes no difference, or cannot be.
UniqueFd opened_anew(int fd, mode_t mode) {
  if (!S_ISFIFO(mode) && !(S_ISCHR(mode) && ::isatty(fd) == 1)) return {};
  char name[32];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  return UniqueFd(
      retry_eintr([&] { return ::open(name, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); }));
}

// At once, or not at all.
ssize_t write_some(int fd, bool is_socket, std::string_view text) {
  // What cannot be told not to wait: a pipe that is writable takes so much.
  const size_t bytes = std::min<size_t>(text.size(), PIPE_BUF);
  return is_socket ? ::send(fd, text.data(), bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                   : ::write(fd, text.data(), bytes);
}

}  // namespace

// Looked at for each line: standard error may become another file, and who has closed it does not
// want it held open.
void PatientOutput::put(std::string_view line) {
  struct stat found {};
  if (::fstat(fd_, &found) != 0) found.st_mode = 0;
  const UniqueFd own = opened_anew(fd_, found.st_mode);
  const File file{own ? own.get() : fd_, S_ISSOCK(found.st_mode)};
  const bool was_full = is_full_;
  if (was_full) {
    const std::string words =
        (is_torn_ ? "\n" : "") + format("(lines left out here, which nobody read: %llu)\n",
                                        static_cast<unsigned long long>(unsaid_));
    if (write_all(file, words, 0)) {
      is_full_ = is_torn_ = false;
      unsaid_ = 0;
    }
  }
  if (!is_full_ && write_all(file, line, was_full ? 0 : kPatienceMs)) return;
  is_full_ = true;
  ++left_out_;
  ++unsaid_;
}

bool PatientOutput::write_all(File file, std::string_view text, int patience_ms) {
  const Deadline deadline = Deadline::after_ms(patience_ms);
  const size_t whole = text.size();
  while (!text.empty()) {
    pollfd waiting{file.fd, POLLOUT, 0};
    const int ready = ::poll(&waiting, 1, deadline.remaining_ms());
    const ssize_t put = ready > 0 ? write_some(file.fd, file.is_socket, text) : -1;
    if (put > 0) {
      text.remove_prefix(static_cast<size_t>(put));
      continue;
    }
    if (ready > 0 && put < 0 && errno != EINTR && errno != EAGAIN) return true;  // nobody is there
    if (!deadline.passed()) {
      // Writable in words only: another writer was first, or there is less room than a byte needs.
      if (ready > 0) (void)::poll(nullptr, 0, deadline.remaining_ms(kRetryMs));
      continue;
    }
    is_torn_ = is_torn_ || text.size() < whole;
    return false;
  }
  return true;
}

}  // namespace optlease
