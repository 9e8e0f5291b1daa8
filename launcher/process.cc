#include "launcher/process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <fstream>
#include <sstream>

#include "actors/runtime/clock.h"
#include "shm/eintr.h"
#include "shm/kill_point.h"

extern char** environ;

namespace optlease {
namespace {

constexpr size_t kErrorLines = 40;
constexpr int kReapMs = 2000;  // SIGKILL ends any process but one that is stuck in the kernel

enum class Stage : int { kParentGone, kLog, kKeep, kExec };

// What the child says through the pipe when it could not become the program.
struct Failure {
  Stage stage;
  int error;
};

[[noreturn]] void fail_in_child(int report_fd, Stage stage) {
  const Failure failure{stage, errno};
  // A write this small to a pipe is atomic; if the launcher is gone nobody needs it.
  (void)!write(report_fd, &failure, sizeof failure);
  _exit(127);
}

struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* environment;
  const char* log_file;  // null: inherit
  const int* kept;
  size_t kept_count;
  pid_t parent;
  int report_fd;
};

void reset_signals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) sigaction(number, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Runs between fork and exec of a process that has other threads: async-signal-safe calls only.
[[noreturn]] void become(const ChildPlan& plan) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have died before prctl; then no signal will ever come.
  if (getppid() != plan.parent) {
    errno = ESRCH;
    fail_in_child(plan.report_fd, Stage::kParentGone);
  }
  setpgid(0, 0);
  reset_signals();
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
  if (plan.log_file != nullptr) {
    const int log =
        open(plan.log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0) {
      fail_in_child(plan.report_fd, Stage::kLog);
    }
  }
  // Whatever the launcher inherited from its own parent must not live on in a child either.
  close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC);
  for (size_t i = 0; i < plan.kept_count; ++i) {
    if (fcntl(plan.kept[i], F_SETFD, 0) != 0) fail_in_child(plan.report_fd, Stage::kKeep);
  }
  execve(plan.path, plan.argv, plan.environment);
  fail_in_child(plan.report_fd, Stage::kExec);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (std::string& text : strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> merged_environment(const std::vector<std::string>& added) {
  std::vector<std::string> out;
  const auto name_of_entry = [](const std::string& entry) {
    return entry.substr(0, entry.find('='));
  };
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const std::string& mine : added) {
      replaced = replaced || name_of_entry(mine) == name_of_entry(*entry);
    }
    if (!replaced) out.emplace_back(*entry);
  }
  out.insert(out.end(), added.begin(), added.end());
  return out;
}

Status status_of(const Failure& failure, const SpawnRequest& request, const std::string& path) {
  const char* why = strerror(failure.error);
  switch (failure.stage) {
    case Stage::kParentGone:
      return {StatusCode::kPeerLost, "the launcher ended while it started " + path};
    case Stage::kLog:
      return {StatusCode::kIo, "the log file " + request.log_file + " cannot be opened: " + why};
    case Stage::kKeep:
      return {StatusCode::kInternal, std::string("a descriptor to pass on is not open: ") + why};
    case Stage::kExec:
      break;
  }
  const auto code = failure.error == ENOENT   ? StatusCode::kNotFound
                    : failure.error == EACCES ? StatusCode::kPermission
                                              : StatusCode::kIo;
  std::string text = path + " cannot be executed: " + why;
  if (failure.error == ENOENT) text += " (for a script: its interpreter is missing)";
  return {code, text};
}

// Waits for exec: the pipe's write end closes on success and carries a Failure otherwise.
Status wait_for_exec(int report_fd, const SpawnRequest& request, const std::string& path) {
  const Deadline deadline = Deadline::after_ms(request.exec_timeout_ms);
  pollfd wait{report_fd, POLLIN, 0};
  while (poll(&wait, 1, deadline.remaining_ms()) <= 0) {
    if (!deadline.passed()) continue;
    return {StatusCode::kTimeout,
            format("%s was not executed within %d ms: does its file system answer%s%s? The new "
                   "process was killed",
                   path.c_str(), request.exec_timeout_ms,
                   request.log_file.empty() ? "" : ", and that of its log, ",
                   request.log_file.c_str())};
  }
  Failure failure{};
  const ssize_t got = retry_eintr([&] { return read(report_fd, &failure, sizeof failure); });
  if (got == static_cast<ssize_t>(sizeof failure)) return status_of(failure, request, path);
  return Status::ok();
}

// Ends a child that is of no use; false where it does not end. Needs no memory.
bool end_child(pid_t pid) {
  (void)kill(pid, SIGKILL);
  const Deadline deadline = Deadline::after_ms(kReapMs);
  while (retry_eintr([&] { return waitpid(pid, nullptr, WNOHANG); }) == 0) {
    if (deadline.passed()) return false;
    (void)poll(nullptr, 0, 2);
  }
  return true;
}

// `why`, with the words for a child that does not end.
Status given_up(pid_t pid, const Status& why) {
  if (end_child(pid)) return why;
  return {why.code(), why.message() + format("; process %d is stuck in the kernel and lives on",
                                             static_cast<int>(pid))};
}

}  // namespace

// By number: the C library's own declarations of these two lack C linkage in some versions.
UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

void Child::signal(int number) const {
  // A process that has ended already is what the caller wants or will hear of.
  (void)syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
}

void Child::signal_group(int number) const {
  if (is_reaped()) return;
  if (pid_ > 1) (void)kill(-pid_, number);
  signal(number);
}

std::optional<ExitInfo> Child::try_reap() {
  if (is_reaped()) return exit_;
  siginfo_t info{};
  const auto wait = [&] {
    return waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG);
  };
  if (retry_eintr(wait) != 0 || info.si_pid == 0) return std::nullopt;
  exit_ = ExitInfo{info.si_code != CLD_EXITED, info.si_status};
  return exit_;
}

std::optional<ExitInfo> Child::reap_within(int timeout_ms) {
  const Deadline deadline = Deadline::after_ms(timeout_ms);
  while (true) {
    if (auto info = try_reap()) return info;
    if (deadline.passed()) return std::nullopt;
    pollfd wait{pidfd_.get(), POLLIN, 0};
    (void)poll(&wait, 1, deadline.remaining_ms(1000));
  }
}

Result<Child> spawn(const SpawnRequest& request) {
  OPTLEASE_CHECK(!request.argv.empty(), "a process to start has no argv");
  auto path = find_program(request.argv[0]);
  if (!path) return path.status();
  std::vector<std::string> argv = request.argv;
  std::vector<std::string> environment = merged_environment(request.environment);
  const std::vector<char*> argv_pointers = pointers(argv);
  const std::vector<char*> environment_pointers = pointers(environment);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) {
    return Status(StatusCode::kIo, format("no pipe for a new process: %s", strerror(errno)));
  }
  UniqueFd report_read(report[0]);
  UniqueFd report_write(report[1]);
  const ChildPlan plan{path.value().c_str(),
                       argv_pointers.data(),
                       environment_pointers.data(),
                       request.log_file.empty() ? nullptr : request.log_file.c_str(),
                       request.kept_fds.data(),
                       request.kept_fds.size(),
                       getpid(),
                       report_write.get()};
  const pid_t pid = fork();
  if (pid < 0) {
    return Status(StatusCode::kNoSpace,
                  format("no process for %s: %s", path.value().c_str(), strerror(errno)));
  }
  if (pid == 0) become(plan);
  // Both sides set the group, so that it exists whichever of them runs first.
  (void)setpgid(pid, pid);
  report_write = UniqueFd();
  UniqueFd pidfd = open_pidfd(pid);
  Status started;
  try {
    KILL_POINT("launcher.forked");
    started = wait_for_exec(report_read.get(), request, path.value());
  } catch (...) {
    (void)end_child(pid);  // nobody else knows of it
    throw;
  }
  if (started.is_ok() && pidfd) return Child(pid, std::move(pidfd));
  return given_up(
      pid, started.is_ok() ? Status(StatusCode::kIo, "a new process has no pidfd") : started);
}

Result<std::string> find_program(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  const char* variable = getenv("PATH");
  const std::string search = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  size_t begin = 0;
  while (begin <= search.size()) {
    const size_t end = std::min(search.find(':', begin), search.size());
    const std::string directory = end == begin ? "." : search.substr(begin, end - begin);
    const std::string candidate = directory + "/" + program;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    begin = end + 1;
  }
  return Status(StatusCode::kNotFound, "the program \"" + program +
                                           "\" is in no directory of PATH (" + search +
                                           "); name it by its path, or install it");
}

Result<std::string> own_directory() {
  char buffer[PATH_MAX];
  const ssize_t got = readlink("/proc/self/exe", buffer, sizeof buffer);
  if (got <= 0 || static_cast<size_t>(got) == sizeof buffer) {
    return Status(StatusCode::kIo,
                  format("/proc/self/exe cannot be read (%s); is /proc mounted?", strerror(errno)));
  }
  const std::string path(buffer, static_cast<size_t>(got));
  return path.substr(0, path.rfind('/'));
}

std::string tail_of(const std::string& path, size_t lines) {
  constexpr std::streamoff kBytesMax = 16 << 10;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff begin = std::max<std::streamoff>(0, size - kBytesMax);
  std::string text(static_cast<size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), size - begin);
  text.resize(static_cast<size_t>(file.gcount()));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t from = text.size();
  for (size_t i = 0; i < lines && from != std::string::npos && from > 0; ++i) {
    from = text.rfind('\n', from - 1);
  }
  return from == std::string::npos || from == 0 ? text : text.substr(from + 1);
}

std::string last_error_of(const std::string& log_file) {
  // As actors/runtime/log.cc writes them: "<time>Z error [<process>] <text>".
  constexpr std::string_view kMark = "Z error [";
  std::istringstream lines(tail_of(log_file, kErrorLines));
  std::string line, last;
  while (std::getline(lines, line)) {
    const size_t mark = line.find(kMark);
    const size_t text = mark == std::string::npos ? mark : line.find("] ", mark);
    // Words within a message may look alike: the time comes first.
    if (text != std::string::npos && line.find(' ') > mark) last = line.substr(text + 2);
  }
  return last;
}

}  // namespace optlease
