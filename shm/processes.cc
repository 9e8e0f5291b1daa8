#include "shm/processes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "shm/contract/status.h"
#include "shm/directory_tree.h"
#include "shm/eintr.h"

namespace optlease {
namespace {

constexpr size_t kDescribedMax = 4;
constexpr size_t kUserTimeField = 11;  // of stat_after_name()
constexpr size_t kSystemTimeField = 12;

bool has_open(int pid, const struct stat& wanted) {
  const std::string path = format("/proc/%d/fd", pid);
  const UniqueFd directory(
      retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!directory) return false;  // ended, or another user's
  const Result<std::vector<std::string>> names = names_in(directory.get());
  if (!names.is_ok()) return false;
  return std::any_of(names.value().begin(), names.value().end(), [&](const std::string& name) {
    struct stat found {};
    return ::fstatat(directory.get(), name.c_str(), &found, 0) == 0 &&
           found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino;
  });
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

std::vector<int> processes_with_open(const std::string& path) {
  std::vector<int> found;
  struct stat wanted {};
  if (::lstat(path.c_str(), &wanted) != 0 || !S_ISREG(wanted.st_mode)) return found;
  const UniqueFd proc(
      retry_eintr([] { return ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!proc) return found;
  const Result<std::vector<std::string>> names = names_in(proc.get());
  if (!names.is_ok()) return found;
  for (const std::string& name : names.value()) {
    if (name.empty() || name.size() > 9 ||
        name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    const int pid = std::stoi(name);
    if (pid != ::getpid() && has_open(pid, wanted)) found.push_back(pid);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> stat_after_name(int pid) {
  const std::string text = text_of(format("/proc/%d/stat", pid));
  // "12 (name) T ...": the name may hold anything, brackets too.
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream words(text.substr(end + 1));
  return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
}

bool is_stopped(int pid) {
  const std::vector<std::string> fields = stat_after_name(pid);
  return !fields.empty() && (fields[0] == "T" || fields[0] == "t");
}

std::string describe_process(int pid) {
  std::string name = text_of(format("/proc/%d/comm", pid));
  while (!name.empty() && name.back() == '\n') name.pop_back();
  if (name.empty()) return format("process %d", pid);
  std::string text = format("process %d (%s", pid, name.c_str());
  if (is_stopped(pid)) text += format(", stopped: `kill -CONT %d` lets it go on", pid);
  return text + ")";
}

std::string standing_of(int pid) {
  const std::vector<std::string> fields = stat_after_name(pid);
  if (fields.size() <= kSystemTimeField) return format("process %d is not there any more", pid);
  const std::string& state = fields[0];
  std::string how = "is in state " + state;
  if (state == "R") how = "runs";
  if (state == "S") how = "waits";
  if (state == "D") how = "waits in the kernel, for a driver or a file system";
  if (state == "Z") how = "has ended";
  if (state == "T" || state == "t") {
    how = format("is stopped by a signal or a debugger (`kill -CONT %d` lets it go on)", pid);
  }
  std::string name = text_of(format("/proc/%d/comm", pid));
  while (!name.empty() && name.back() == '\n') name.pop_back();
  const double ticks = std::strtod(fields[kUserTimeField].c_str(), nullptr) +
                       std::strtod(fields[kSystemTimeField].c_str(), nullptr);
  return format("process %d (%s) %s; it has used %.2f s of a processor", pid, name.c_str(),
                how.c_str(), ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

std::string describe_processes(const std::vector<int>& pids) {
  std::string text;
  for (size_t i = 0; i < pids.size() && i < kDescribedMax; ++i) {
    text += (i == 0 ? "" : ", ") + describe_process(pids[i]);
  }
  if (pids.size() > kDescribedMax) text += format(" and %zu more", pids.size() - kDescribedMax);
  return text;
}

std::string environment_of(int pid, const std::string& variable) {
  const std::string all = text_of(format("/proc/%d/environ", pid));
  const std::string start = variable + "=";
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\0', at), all.size());
    if (all.compare(at, start.size(), start) == 0) {
      return all.substr(at + start.size(), end - at - start.size());
    }
    at = end + 1;
  }
  return "";
}

}  // namespace optlease
