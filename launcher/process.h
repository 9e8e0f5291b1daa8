// Starting, signalling and reaping one child process of the launcher. A thin shell over fork, exec
// and pidfds; it decides nothing (SupervisorCore does) and knows nothing of roles.
//
// Every child: its own process group (Ctrl-C at the terminal reaches the launcher alone, which then
// stops the job in order), SIGKILL when the launcher dies, default signal handlers and an empty
// mask, stdin from /dev/null, stdout and stderr appended to a log file, and no descriptor but those
// named in SpawnRequest::kept_fds.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "launcher/supervisor_core.h"
#include "shm/contract/status.h"
#include "shm/shared_buffer.h"

namespace optlease {

struct SpawnRequest {
  std::vector<std::string> argv;         // argv[0]: a path, or a name that PATH is searched for
  std::vector<std::string> environment;  // "NAME=value", added to or replacing this process's own
  std::string log_file;                  // created (0600) or appended to; empty: inherits ours
  std::vector<int> kept_fds;             // stay open in the child, under the same numbers
  int exec_timeout_ms = 10'000;          // the caller stands still until exec: never for longer
};

// A child that has been started and not been reaped. Movable; destroying it does not end it.
class Child {
 public:
  Child() = default;
  Child(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable once the process has ended
  // To the process alone. An ended one is fine.
  void signal(int number) const;
  // To every process of its group; nothing once it is reaped: the number may be another's by then.
  void signal_group(int number) const;
  // Never blocks. Nothing: it still runs. Once it is reaped, the same value as often as it is
  // asked for: who fails between the answer and what follows from it asks again.
  std::optional<ExitInfo> try_reap();
  bool is_reaped() const { return exit_.has_value(); }
  // The same, waiting at most `timeout_ms`.
  std::optional<ExitInfo> reap_within(int timeout_ms);

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<ExitInfo> exit_;  // once it is reaped
};

// Forks and executes. Returns once exec has succeeded, or with the words for what failed: NotFound
// (no such program), Permission, Io; Timeout where a file system or a log that is a pipe kept the
// child from exec: it is killed. REQUIRES: called on the launcher's main thread, because the kernel
// ties PR_SET_PDEATHSIG to the thread that forked.
// An exception leaves no process behind.
Result<Child> spawn(const SpawnRequest& request);

// Readable once process `pid` has ended; none where there is no such process.
UniqueFd open_pidfd(pid_t pid);
// The path that exec would run for `program`; NotFound with the directories that were searched.
Result<std::string> find_program(const std::string& program);
// The directory that this executable lies in (from /proc/self/exe).
Result<std::string> own_directory();
// The last `lines` lines of a file, for people; empty where it cannot be read.
std::string tail_of(const std::string& path, size_t lines);
// The text of the last error that a child of ours logged there; empty where it logged none.
std::string last_error_of(const std::string& log_file);

}  // namespace optlease
