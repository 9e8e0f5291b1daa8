#include "actors/runtime/patient_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

#include "actors/runtime/clock.h"
#include "shm/contract/status.h"
#include "shm/eintr.h"

namespace optlease {
namespace {

constexpr int kPatienceMs = 500;
constexpr int kRetryMs = 10;

}  // namespace

// The description behind fd_ is shared with whoever started this process, who may not want it not
// to wait; one opened anew is this process's.
void PatientOutput::look_at_file() {
  struct stat found {};
  if (::fstat(fd_, &found) != 0) found = {};
  if (own_ && found.st_dev == device_ && found.st_ino == inode_) return;
  device_ = found.st_dev;
  inode_ = found.st_ino;
  own_ = UniqueFd();
  is_socket_ = S_ISSOCK(found.st_mode);
  if (!S_ISFIFO(found.st_mode) && !(S_ISCHR(found.st_mode) && ::isatty(fd_) == 1)) return;
  const std::string name = format("/proc/self/fd/%d", fd_);
  own_ = UniqueFd(retry_eintr(
      [&] { return ::open(name.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); }));
}

void PatientOutput::put(std::string_view line) {
  look_at_file();
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

// At once, or not at all.
ssize_t PatientOutput::write_some(std::string_view text) {
  // What cannot be told not to wait: a pipe that is writable takes so much.
  const size_t bytes = std::min<size_t>(text.size(), PIPE_BUF);
  if (is_socket_) return ::send(fd_, text.data(), bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  return ::write(own_ ? own_.get() : fd_, text.data(), bytes);
}

bool PatientOutput::write_all(std::string_view text, int patience_ms) {
  const Deadline deadline = Deadline::after_ms(patience_ms);
  const size_t whole = text.size();
  while (!text.empty()) {
    pollfd waiting{own_ ? own_.get() : fd_, POLLOUT, 0};
    const int ready = ::poll(&waiting, 1, deadline.remaining_ms());
    const ssize_t put = ready > 0 ? write_some(text) : -1;
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
