// A small language for system tests: a job with a directory and a name of its own, started by the
// real launcher, watched through its own commands, killed by pid. The destructor ends what is left
// and is the leak oracle: shared memory, run directory and processes of this job must be gone.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace optlease {

using Json = nlohmann::json;

struct CommandResult {
  int exit_code = -1;  // -1: ended by a signal or past the deadline
  int signal = 0;
  bool timed_out = false;
  std::string output;  // stdout and stderr
};

class SystemJob {
 public:
  // `name`: of the test, for the job's name (made unique).
  explicit SystemJob(const std::string& name);
  ~SystemJob();
  SystemJob(const SystemJob&) = delete;
  SystemJob& operator=(const SystemJob&) = delete;

  // Starts from configs/<file> of the source tree with `--set key=value` for each override.
  void use(const std::string& config_file, std::vector<std::string> overrides);
  void add(const std::string& override_) { overrides_.push_back(override_); }
  // Adds [[rehearse]] entries: the configuration is copied and extended.
  void rehearse(const std::string& role, int rank, int64_t step, const std::string& phase,
                int at_rank);

  // Every command of this job runs as `uid`, which its directory is given to. REQUIRES: root.
  void become(uid_t uid);
  // Two users' jobs may have one name.
  void take_name_of(const SystemJob& other) { name_ = other.name_; }

  // `optlease run` in the background, with a report. Flags such as --resume.
  void start(const std::vector<std::string>& flags = {});
  // Waits for it; kills it past the deadline (and fails the test).
  CommandResult wait(int timeout_s = 90);
  // start and wait; the report of the run.
  Json run(const std::vector<std::string>& flags = {}, int timeout_s = 90);
  // Any `optlease` command in this job's environment; "{job}" in an argument is the job's name.
  CommandResult command(std::vector<std::string> args, int timeout_s = 30) const;
  // The report of the last run; null Json where there is none.
  Json report() const;
  // status JOB --json; null where the job does not answer.
  Json status() const;
  // Polls status until step_committed >= step or the launcher ends. False at the deadline.
  bool wait_for_step(int64_t step, int timeout_s = 60) const;
  // The pid of a live process by role and rank; 0: none.
  pid_t pid_of(const std::string& role, int rank) const;

  const std::string& name() const { return name_; }
  const std::string& directory() const { return directory_; }
  pid_t launcher_pid() const { return launcher_; }
  bool launcher_alive();
  // Segments of this job that exist.
  std::vector<std::string> segments() const;
  // Processes of this job's user whose command line names it.
  std::vector<pid_t> processes() const;
  // Says in the destructor that segments may be left (a test about them removes them itself).
  void expect_segments_left() { segments_may_stay_ = true; }

 private:
  std::vector<std::string> environment() const;
  std::vector<std::string> as_user(std::vector<std::string> args) const;
  std::string config_path() const;

  std::string name_;
  std::string directory_;
  std::string config_file_;
  std::string extra_toml_;
  std::vector<std::string> overrides_;
  uid_t uid_ = geteuid();
  pid_t launcher_ = 0;
  bool segments_may_stay_ = false;
};

// The report passed, and so did its checks that do not count: no process failed by itself.
void expect_passed(const Json& report);

bool long_tests();  // OPTLEASE_TEST_LONG

}  // namespace optlease
