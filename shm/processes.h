// What /proc tells of other processes of this user: who has a file open, and what a process is
// doing. For words and for finding a job's processes; nothing is decided by it that a lock decides.
#pragma once

#include <string>
#include <vector>

namespace optlease {

// Processes other than this one that have the file at `path` open, as far as this user may see,
// ascending. Empty where there is no such file.
std::vector<int> processes_with_open(const std::string& path);

// The fields of /proc/PID/stat that come after the process's name, the state (one letter) first, so
// that proc(5)'s field n is [n - 3]. Empty where there is no such process.
std::vector<std::string> stat_after_name(int pid);

// True where the process is stopped: by SIGSTOP, by a terminal or by a debugger.
bool is_stopped(int pid);

// "process 12 (optlease)", "process 13 (optlease-host-st, stopped: `kill -CONT 13` lets it go on)".
std::string describe_process(int pid);
// The same for a diagnosis: "process 13 (python3) is stopped by a signal or a debugger (`kill -CONT
// 13` lets it go on); it has used 12.34 s of a processor".
std::string standing_of(int pid);
// Several of them; "and 3 more" where there are many. Empty for none.
std::string describe_processes(const std::vector<int>& pids);

// The value of a variable in the environment that the process was started with; empty where it has
// none or cannot be read.
std::string environment_of(int pid, const std::string& variable);

}  // namespace optlease
