#include "tests/support/system_job.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "actors/runtime/clock.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

pid_t spawn(const std::vector<std::string>& args, const std::vector<std::string>& environment,
            const std::string& output_path) {
  std::vector<char*> argv, envp;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  for (const std::string& each : environment) envp.push_back(const_cast<char*>(each.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output_path.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) ADD_FAILURE() << "cannot start " << argv[0] << ": " << std::strerror(failed);
  return failed == 0 ? pid : 0;
}

// Without reaping it: wait() does.
bool has_ended(pid_t pid) {
  siginfo_t info{};
  const int answer = waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  return answer != 0 || info.si_pid == pid;
}

CommandResult wait_for(pid_t pid, int timeout_s, const std::string& output_path) {
  CommandResult result;
  const Deadline deadline = Deadline::after_ms(int64_t{timeout_s} * 1000);
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (deadline.passed()) {
      result.timed_out = true;
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    poll(nullptr, 0, 5);
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.output = read_file(output_path);
  return result;
}

}  // namespace

void expect_passed(const Json& report) {
  ASSERT_TRUE(report.is_object()) << report;
  EXPECT_EQ(report["status"], "passed") << report["checks"].dump(1);
  for (const Json& check : report["checks"]) EXPECT_EQ(check["passed"], true) << check;
}

bool long_tests() { return std::getenv("OPTLEASE_TEST_LONG") != nullptr; }

SystemJob::SystemJob(const std::string& name) {
  static std::atomic<int> serial{0};  // tests run commands side by side
  name_ = format("t%d-%d-%s", static_cast<int>(getpid()), serial++, name.c_str()).substr(0, 40);
  char pattern[] = "/tmp/optlease-test-XXXXXX";
  directory_ = mkdtemp(pattern);
}

SystemJob::~SystemJob() {
  if (launcher_ > 0) {
    kill(launcher_, SIGKILL);
    waitpid(launcher_, nullptr, 0);
  }
  // Children end with their launcher (PR_SET_PDEATHSIG); give them a moment to be gone.
  const Deadline deadline = Deadline::after_ms(5000);
  while (!processes().empty() && !deadline.passed()) poll(nullptr, 0, 10);
  for (pid_t pid : processes()) {
    ADD_FAILURE() << "process " << pid << " of job " << name_ << " is left";
    kill(pid, SIGKILL);
  }
  for (const std::string& segment : segments()) {
    if (!segments_may_stay_) ADD_FAILURE() << segment << " is left";
    fs::remove(segment);
  }
  if (testing::Test::HasFailure()) {
    for (const auto& entry : fs::recursive_directory_iterator(directory_)) {
      if (entry.path().extension() != ".log") continue;
      const std::string text = read_file(entry.path());
      std::fprintf(stderr, "--- %s\n%s\n", entry.path().c_str(),
                   text.substr(text.size() > 6000 ? text.size() - 6000 : 0).c_str());
    }
  }
  fs::remove_all(directory_);
}

void SystemJob::use(const std::string& config_file, std::vector<std::string> overrides) {
  config_file_ = config_file;
  overrides_ = std::move(overrides);
}

void SystemJob::rehearse(const std::string& role, int rank, int64_t step, const std::string& phase,
                         int at_rank) {
  extra_toml_ += format(
      "\n[[rehearse]]\nrole = \"%s\"\nrank = %d\nstep = %lld\nphase = \"%s\"\nat_rank = %d\n",
      role.c_str(), rank, static_cast<long long>(step), phase.c_str(), at_rank);
}

void SystemJob::become(uid_t uid) {
  uid_ = uid;
  ASSERT_EQ(chown(directory_.c_str(), uid, uid), 0) << std::strerror(errno);
}

std::vector<std::string> SystemJob::as_user(std::vector<std::string> args) const {
  if (uid_ == geteuid()) return args;
  const std::string uid = std::to_string(uid_);
  args.insert(args.begin(),
              {"/usr/bin/setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--"});
  return args;
}

std::vector<std::string> SystemJob::environment() const {
  std::vector<std::string> environment = {"XDG_RUNTIME_DIR=" + directory_};
  for (char** each = environ; *each != nullptr; ++each) {
    if (std::strncmp(*each, "XDG_RUNTIME_DIR=", 16) != 0) environment.push_back(*each);
  }
  return environment;
}

std::string SystemJob::config_path() const {
  const std::string source = std::string(OPTLEASE_SOURCE_DIR) + "/configs/" + config_file_;
  if (extra_toml_.empty()) return source;
  const std::string path = directory_ + "/" + config_file_;
  // The copy lies elsewhere: what it names relative to itself stays where it was.
  std::string text = read_file(source);
  const std::string here = "{config_dir}";
  for (size_t at = 0; (at = text.find(here, at)) != std::string::npos;) {
    text.replace(at, here.size(), std::string(OPTLEASE_SOURCE_DIR) + "/configs");
  }
  std::ofstream(path) << text << extra_toml_;
  return path;
}

void SystemJob::start(const std::vector<std::string>& flags) {
  std::vector<std::string> args = {std::string(OPTLEASE_BIN_DIR) + "/optlease",
                                   "run",
                                   config_path(),
                                   "--report",
                                   directory_ + "/report.json",
                                   "--set",
                                   "job.name=" + name_};
  for (const std::string& each : overrides_) {
    args.push_back("--set");
    args.push_back(each);
  }
  args.insert(args.end(), flags.begin(), flags.end());
  fs::remove(directory_ + "/report.json");
  launcher_ = spawn(as_user(args), environment(), directory_ + "/run.log");
}

CommandResult SystemJob::wait(int timeout_s) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  timeout_s *= 5;  // as ctest's own limits are: instrumented loops take several times as long
#endif
  const CommandResult result = wait_for(launcher_, timeout_s, directory_ + "/run.log");
  launcher_ = 0;
  EXPECT_FALSE(result.timed_out) << "the job did not end within " << timeout_s << " s";
  return result;
}

bool SystemJob::launcher_alive() { return launcher_ > 0 && !has_ended(launcher_); }

Json SystemJob::run(const std::vector<std::string>& flags, int timeout_s) {
  start(flags);
  const CommandResult result = wait(timeout_s);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return report();
}

CommandResult SystemJob::command(std::vector<std::string> args, int timeout_s) const {
  static std::atomic<int> serial{0};  // tests run commands side by side
  for (std::string& arg : args) {
    if (arg == "{job}") arg = name_;
  }
  args.insert(args.begin(), std::string(OPTLEASE_BIN_DIR) + "/optlease");
  const std::string output = format("%s/command.%d.out", directory_.c_str(), serial.fetch_add(1));
  const pid_t pid = spawn(as_user(args), environment(), output);
  if (pid == 0) return {};
  CommandResult result = wait_for(pid, timeout_s, output);
  fs::remove(output);
  return result;
}

Json SystemJob::report() const {
  return Json::parse(read_file(directory_ + "/report.json"), nullptr, false);
}

Json SystemJob::status() const {
  const CommandResult result = command({"status", "{job}", "--json"});
  if (result.exit_code != 0) return Json();
  const Json status = Json::parse(result.output, nullptr, false);
  return status.is_discarded() ? Json() : status;
}

bool SystemJob::wait_for_step(int64_t step, int timeout_s) const {
  const Deadline deadline = Deadline::after_ms(int64_t{timeout_s} * 1000);
  while (!deadline.passed()) {
    const Json now = status();
    if (now.contains("step_committed") && now["step_committed"].is_number() &&
        now["step_committed"].get<int64_t>() >= step) {
      return true;
    }
    if (launcher_ > 0 && has_ended(launcher_)) return false;
    poll(nullptr, 0, 20);
  }
  return false;
}

pid_t SystemJob::pid_of(const std::string& role, int rank) const {
  const Json now = status();
  if (!now.contains("processes")) return 0;
  for (const Json& process : now["processes"]) {
    if (process["role"] != role) continue;
    if (role != "launcher" && role != "host_store" && process["rank"] != rank) continue;
    if (process["pid"].is_number()) return process["pid"].get<pid_t>();
  }
  return 0;
}

std::vector<std::string> SystemJob::segments() const {
  std::vector<std::string> found;
  const std::string stem = format("optlease.%u.%s.", uid_, name_.c_str());
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with(stem)) found.push_back(entry.path());
  }
  return found;
}

std::vector<pid_t> SystemJob::processes() const {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    struct stat owner {};
    if (stat(entry.path().c_str(), &owner) != 0 || owner.st_uid != uid_) continue;
    const std::string text =
        read_file("/proc/" + pid + "/cmdline") + read_file("/proc/" + pid + "/environ");
    if (text.find(name_) != std::string::npos && std::stoi(pid) != getpid())
      found.push_back(std::stoi(pid));
  }
  return found;
}

}  // namespace optlease
