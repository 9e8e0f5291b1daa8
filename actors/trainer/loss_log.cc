#include "actors/trainer/loss_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

namespace optlease {

namespace {

constexpr std::string_view kStepKey = "{\"step\":";

Status io_error(const char* what, const std::string& path) {
  return {StatusCode::kIo,
          format("loss file %s: %s: %s", path.c_str(), what, std::strerror(errno))};
}

Status cut(int fd, off_t bytes, const std::string& path) {
  while (::ftruncate(fd, bytes) != 0) {
    if (errno != EINTR) return io_error("cut off half a line", path);
  }
  return Status::ok();
}

Status write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return io_error("write", path);
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return Status::ok();
}

// The last bytes of the file: more than any line of ours has.
Result<std::string> read_tail(int fd, off_t size, const std::string& path) {
  constexpr off_t kTailBytes = 4096;
  const off_t start = std::max<off_t>(size - kTailBytes, 0);
  std::string tail(static_cast<size_t>(size - start), '\0');
  size_t have = 0;
  while (have < tail.size()) {
    const ssize_t got =
        ::pread(fd, tail.data() + have, tail.size() - have, start + static_cast<off_t>(have));
    if (got < 0 && errno != EINTR) return io_error("read", path);
    if (got == 0) break;
    if (got > 0) have += static_cast<size_t>(got);
  }
  tail.resize(have);
  return tail;
}

// The step of the last line of `whole_lines`, 0 where there is none of ours.
int64_t last_step_in(std::string_view whole_lines) {
  if (whole_lines.empty()) return 0;
  whole_lines.remove_suffix(1);
  const size_t end_before = whole_lines.rfind('\n');
  if (end_before != std::string_view::npos) whole_lines.remove_prefix(end_before + 1);
  int64_t step = 0;
  if (whole_lines.starts_with(kStepKey))
    std::from_chars(whole_lines.data() + kStepKey.size(), whole_lines.data() + whole_lines.size(),
                    step);
  return step;
}

}  // namespace

void LossLog::Closer::operator()(int* fd) const {
  ::close(*fd);
  delete fd;
}

LossLog::LossLog(std::unique_ptr<int, Closer> fd, std::string path)
    : fd_(std::move(fd)), path_(std::move(path)) {}

Result<LossLog> LossLog::open(const std::string& path, int64_t last_step,
                              const std::vector<double>& losses) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("open", path);
  LossLog log(std::unique_ptr<int, Closer>(new int(fd)), path);
  OPTLEASE_TRY(log.add_missing(last_step, losses));
  return log;
}

Status LossLog::add_missing(int64_t last_step, const std::vector<double>& losses) {
  const off_t size = ::lseek(*fd_, 0, SEEK_END);
  if (size < 0) return io_error("seek", path_);
  auto tail = read_tail(*fd_, size, path_);
  if (!tail) return tail.status();
  const std::string_view read = tail.value();
  const size_t whole = read.rfind('\n') + 1;  // npos + 1 is 0: no whole line
  if (whole != read.size())
    OPTLEASE_TRY(cut(*fd_, size - static_cast<off_t>(read.size() - whole), path_));
  const int64_t oldest = last_step - static_cast<int64_t>(losses.size()) + 1;
  for (int64_t step = std::max(oldest, last_step_in(read.substr(0, whole)) + 1); step <= last_step;
       ++step)
    OPTLEASE_TRY(append(step, losses[static_cast<size_t>(step - oldest)]));
  return Status::ok();
}

Status LossLog::append(int64_t step, double loss) {
  if (fd_ == nullptr) return Status::ok();
  return write_all(*fd_, loss_line(step, loss), path_);
}

std::string loss_line(int64_t step, double loss) {
  if (!std::isfinite(loss))
    return format("{\"step\":%lld,\"loss\":null}\n", static_cast<long long>(step));
  return format("{\"step\":%lld,\"loss\":%.9g}\n", static_cast<long long>(step), loss);
}

}  // namespace optlease
