#include "launcher/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace optlease {
namespace {

constexpr int kWaitMs = 60000;  // against a hang, not a measure

class ProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/optlease-process-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    directory_ = pattern;
    log_ = directory_ + "/child.log";
  }
  void TearDown() override {
    unlink(log_.c_str());
    unlink((directory_ + "/script").c_str());
    rmdir(directory_.c_str());
  }
  Result<Child> shell(const std::string& script, SpawnRequest request = {}) {
    request.argv = {"/bin/sh", "-c", script};
    request.log_file = log_;
    return spawn(request);
  }
  // Runs to its end and returns what it wrote.
  std::string output_of(const std::string& script, SpawnRequest request = {}) {
    auto child = shell(script, std::move(request));
    EXPECT_TRUE(child.is_ok()) << child.status().text();
    if (!child) return "";
    const auto exit = child.value().reap_within(kWaitMs);
    EXPECT_TRUE(exit && exit->clean()) << (exit ? text_of(*exit) : "still runs");
    std::ifstream file(log_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string directory_;
  std::string log_;
};

TEST_F(ProcessTest, ReportsExitCodes) {
  auto child = shell("exit 7");
  ASSERT_TRUE(child.is_ok()) << child.status().text();
  const auto exit = child.value().reap_within(kWaitMs);
  ASSERT_TRUE(exit.has_value());
  EXPECT_FALSE(exit->by_signal);
  EXPECT_EQ(exit->code, 7);
}

TEST_F(ProcessTest, ReportsSignals) {
  auto child = shell("kill -SEGV $$");
  ASSERT_TRUE(child.is_ok());
  const auto exit = child.value().reap_within(kWaitMs);
  ASSERT_TRUE(exit.has_value());
  EXPECT_TRUE(exit->by_signal);
  EXPECT_EQ(exit->code, SIGSEGV);
}

TEST_F(ProcessTest, ARunningChildIsNotReapedAndDiesOfASignal) {
  SpawnRequest request;
  request.argv = {"sleep", "1000"};
  auto child = spawn(request);
  ASSERT_TRUE(child.is_ok()) << child.status().text();
  EXPECT_FALSE(child.value().try_reap().has_value());
  EXPECT_FALSE(child.value().reap_within(20).has_value());
  child.value().signal(SIGKILL);
  const auto exit = child.value().reap_within(kWaitMs);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->code, SIGKILL);
}

// Fault case 5, of the starting process: every slow call of it returns EINTR now and then.
TEST_F(ProcessTest, StartsAndReapsUnderAStormOfSignals) {
  static volatile sig_atomic_t signals = 0;
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { signals = signals + 1; };  // no SA_RESTART
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval storm{{0, 1000}, {0, 1000}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &storm, nullptr), 0);
  for (int i = 0; i < 20; ++i) {
    auto child = shell("sleep 0.02; exit 7");
    EXPECT_TRUE(child.is_ok()) << child.status().text();
    if (!child) break;
    const auto exit = child.value().reap_within(kWaitMs);
    EXPECT_TRUE(exit && !exit->by_signal && exit->code == 7) << (exit ? text_of(*exit) : "runs");
  }
  const itimerval calm{};
  setitimer(ITIMER_REAL, &calm, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_GT(signals, 20) << "there was no storm";
}

TEST_F(ProcessTest, SaysWhenAProgramDoesNotExist) {
  SpawnRequest request;
  request.argv = {"/nowhere/optlease-host-store"};
  const auto child = spawn(request);
  ASSERT_FALSE(child.is_ok());
  EXPECT_EQ(child.status().code(), StatusCode::kNotFound);
  EXPECT_NE(child.status().message().find("/nowhere/optlease-host-store"), std::string::npos);
}

TEST_F(ProcessTest, SaysWhenANameIsNotInPath) {
  SpawnRequest request;
  request.argv = {"optlease-no-such-program"};
  const auto child = spawn(request);
  ASSERT_FALSE(child.is_ok());
  EXPECT_EQ(child.status().code(), StatusCode::kNotFound);
  EXPECT_NE(child.status().message().find("PATH"), std::string::npos);
}

TEST_F(ProcessTest, SaysWhenAFileIsNotExecutable) {
  const std::string script = directory_ + "/script";
  std::ofstream(script) << "#!/bin/sh\n";
  SpawnRequest request;
  request.argv = {script};
  const auto child = spawn(request);
  ASSERT_FALSE(child.is_ok());
  EXPECT_EQ(child.status().code(), StatusCode::kPermission);
}

TEST_F(ProcessTest, SaysWhenAScriptsInterpreterIsMissing) {
  const std::string script = directory_ + "/script";
  std::ofstream(script) << "#!/nowhere/interpreter\n";
  ASSERT_EQ(chmod(script.c_str(), 0700), 0);
  SpawnRequest request;
  request.argv = {script};
  const auto child = spawn(request);
  ASSERT_FALSE(child.is_ok());
  EXPECT_NE(child.status().message().find("interpreter"), std::string::npos);
}

TEST_F(ProcessTest, SaysWhenTheLogCannotBeOpened) {
  log_ = directory_ + "/missing/child.log";
  const auto child = shell("exit 0");
  ASSERT_FALSE(child.is_ok());
  EXPECT_NE(child.status().message().find("missing/child.log"), std::string::npos);
}

// Opening a pipe that nobody reads blocks, as a dead network file system does.
TEST_F(ProcessTest, GivesUpAndKillsAChildThatDoesNotGetToExec) {
  ASSERT_EQ(mkfifo(log_.c_str(), 0600), 0);
  SpawnRequest request;
  request.exec_timeout_ms = 100;
  const auto child = shell("exit 0", request);
  ASSERT_FALSE(child.is_ok());
  EXPECT_EQ(child.status().code(), StatusCode::kTimeout);
  for (const std::string& part : {std::string("/bin/sh"), std::string("100 ms"), log_}) {
    EXPECT_NE(child.status().message().find(part), std::string::npos) << child.status().text();
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(ProcessTest, PassesOnOnlyTheDescriptorsThatAreNamed) {
  const int kept = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int leaked =
      open("/dev/null", O_RDONLY);  // without close-on-exec, as a parent may leave it
  ASSERT_GE(kept, 0);
  ASSERT_GE(leaked, 0);
  SpawnRequest request;
  request.kept_fds = {kept};
  const std::string script = format(
      "[ -e /proc/self/fd/%d ] && echo kept; "
      "[ -e /proc/self/fd/%d ] && echo leaked; true",
      kept, leaked);
  EXPECT_EQ(output_of(script, request), "kept\n");
  close(kept);
  close(leaked);
}

TEST_F(ProcessTest, AddsAndReplacesEnvironment) {
  ASSERT_EQ(setenv("OPTLEASE_TEST_VARIABLE", "ours", 1), 0);
  SpawnRequest request;
  request.environment = {"OPTLEASE_TEST_VARIABLE=theirs", "OPTLEASE_TEST_OTHER=new"};
  EXPECT_EQ(output_of("echo $OPTLEASE_TEST_VARIABLE $OPTLEASE_TEST_OTHER", request),
            "theirs new\n");
  unsetenv("OPTLEASE_TEST_VARIABLE");
}

TEST_F(ProcessTest, ChildrenHaveTheirOwnGroupDefaultSignalsAndNoMask) {
  sigset_t set;
  sigset_t before;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ASSERT_EQ(sigprocmask(SIG_BLOCK, &set, &before), 0);
  const auto old = signal(SIGPIPE, SIG_IGN);
  const std::string text =
      output_of("echo $(ps -o pgid= -p $$) $$; grep -E 'SigBlk|SigIgn' /proc/self/status");
  signal(SIGPIPE, old);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  std::istringstream in(text);
  long group = 0;
  long pid = -1;
  in >> group >> pid;
  EXPECT_EQ(group, pid) << text;
  EXPECT_NE(text.find("SigBlk:\t0000000000000000"), std::string::npos) << text;
  EXPECT_NE(text.find("SigIgn:\t0000000000000000"), std::string::npos) << text;
}

TEST_F(ProcessTest, AGroupSignalReachesGrandchildren) {
  auto child = shell("sleep 1000 & echo $!; wait");
  ASSERT_TRUE(child.is_ok());
  pid_t grandchild = 0;
  for (int i = 0; i < 2000 && grandchild == 0; ++i) {
    std::ifstream(log_) >> grandchild;
    usleep(5000);
  }
  ASSERT_GT(grandchild, 0);
  child.value().signal_group(SIGKILL);
  ASSERT_TRUE(child.value().reap_within(kWaitMs).has_value());
  bool gone = false;
  for (int i = 0; i < 6000 && !gone; ++i) {
    std::ifstream stat(format("/proc/%d/stat", static_cast<int>(grandchild)));
    std::string id, name, state;
    stat >> id >> name >> state;
    gone = !stat || state == "Z" || state == "X";  // an orphan may wait for its reaper
    usleep(5000);
  }
  EXPECT_TRUE(gone);
}

TEST_F(ProcessTest, ChildrenDieWithTheirLauncher) {
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    SpawnRequest request;
    request.argv = {"sleep", "1000"};
    auto child = spawn(request);
    const pid_t pid = child.is_ok() ? child.value().pid() : -1;
    (void)!write(report[1], &pid, sizeof pid);
    pause();
    _exit(0);
  }
  pid_t pid = 0;
  ASSERT_EQ(read(report[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  ASSERT_GT(pid, 0);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  bool gone = false;
  for (int i = 0; i < 6000 && !gone; ++i) {
    std::ifstream stat(format("/proc/%d/stat", static_cast<int>(pid)));
    std::string id, name, state;
    stat >> id >> name >> state;
    gone = !stat || state == "Z" || state == "X";
    usleep(5000);
  }
  EXPECT_TRUE(gone);
  close(report[0]);
  close(report[1]);
}

TEST_F(ProcessTest, TailGivesTheLastLines) {
  std::ofstream(log_) << "one\ntwo\nthree\n";
  EXPECT_EQ(tail_of(log_, 2), "two\nthree");
  EXPECT_EQ(tail_of(log_, 20), "one\ntwo\nthree");
  EXPECT_EQ(tail_of(directory_ + "/absent", 3), "");
}

TEST_F(ProcessTest, TheLastErrorOfALogIsFoundAmongOtherLines) {
  const auto last_of = [&](const std::string& text) {
    std::ofstream(log_) << text;
    return last_error_of(log_);
  };
  const std::string time = "2026-11-30T08:08:14.276Z ";
  EXPECT_EQ(last_of(time + "info  [host_store] created\n"), "");
  EXPECT_EQ(last_of(time + "error [host_store] first\n" + time + "error [host_store] a [b] c\n" +
                    time + "warn  [host_store] said: Z error [x] y\nnoise\n"),
            "a [b] c");
  EXPECT_EQ(last_of(""), "");
  EXPECT_EQ(last_error_of(directory_ + "/absent"), "");
}

TEST_F(ProcessTest, KnowsWhereItLies) {
  const auto directory = own_directory();
  ASSERT_TRUE(directory.is_ok());
  EXPECT_EQ(directory.value(), OPTLEASE_BIN_DIR);
}

}  // namespace
}  // namespace optlease
