// Jobs that lack something: memory for threads, a place where ranks can meet, a socket that nobody
// else speaks on under their names.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "actors/runtime/exit_code.h"
#include "actors/wire/codec.h"
#include "actors/wire/socket.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kLongJob = {
    "job.steps=100000", "model.elements=60000", "gradients.nonfinite_steps=[]",
    "restart.heartbeat_timeout_s=1", "restart.stop_timeout_s=2"};

std::string text_of_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// `optlease` with at most so much private memory, in which thread stacks count. Its wait status.
int run_with(uint64_t bytes, std::vector<std::string> words, const std::string& runtime_dir,
             const std::string& output) {
  words[0] = std::string(OPTLEASE_BIN_DIR "/") + words[0];
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("XDG_RUNTIME_DIR", runtime_dir.c_str(), 1);
    if (freopen(output.c_str(), "w", stdout) == nullptr) _exit(126);
    dup2(STDOUT_FILENO, STDERR_FILENO);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_DATA, &limit);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

// Whatever the limit leaves room for: the launcher's own threads, those that watch its children,
// the children's.
TEST(Limits, ALauncherWithoutRoomForThreadsSaysSoReportsAndLeavesNothing) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is far beyond these limits";
#endif
  int failed = 0, index = 0;
  for (const uint64_t megabytes : {10, 14, 18, 20, 22, 26, 30, 36, 44, 60}) {
    const SystemJob job("room" + std::to_string(index++));
    const std::string report_path = job.directory() + "/report.json";
    const std::string output = job.directory() + "/run.out";
    const int status =
        run_with(megabytes * 1'000'000,
                 {"optlease", "run", std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml",
                  "--report", report_path, "--set", "job.name=" + job.name(), "--set",
                  "job.steps=4", "--set", "gradients.nonfinite_steps=[]", "--set",
                  "model.elements=60000", "--set", "restart.intensity=3"},
                 job.directory(), output);
    const std::string said = std::to_string(megabytes) + " MB: " + text_of_file(output);
    ASSERT_TRUE(WIFEXITED(status)) << said;
    const int code = WEXITSTATUS(status);
    const Json report = Json::parse(text_of_file(report_path), nullptr, false);
    ASSERT_TRUE(report.is_object()) << said;
    EXPECT_EQ(report["exit_code"], code) << said;
    if (report.contains("state_kept") && report["state_kept"] == true) {
      EXPECT_EQ(job.command({"clean", "{job}", "--include-kept"}).exit_code, 0) << said;
    }
    EXPECT_TRUE(job.segments().empty()) << said;
    if (code == 0) continue;
    ++failed;
    EXPECT_TRUE(code == static_cast<int>(ExitCode::kNoResources) ||
                code == static_cast<int>(ExitCode::kCrashLoop))
        << said;
    EXPECT_FALSE(report["ending_text"].get<std::string>().empty()) << said;
    // Logs stay where a process wrote one.
    if (report["status"] == "refused") {
      EXPECT_FALSE(fs::exists(job.directory() + "/optlease/" + job.name())) << said;
    }
  }
  EXPECT_GT(failed, 0) << "no limit was too tight";
}

TEST(Limits, ToolsWithoutRoomForThreadsEndInWords) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is far beyond these limits";
#endif
  SystemJob job("tools");
  job.use("synthetic.toml", kLongJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(2));
  const std::string output = job.directory() + "/tool.out";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"optlease", "status", job.name()},
        {"optlease", "digest", job.name()},
        {"optlease-monitor", "--job", job.name(), "--once"}}) {
    const int status = run_with(10'000'000, words, job.directory(), output);
    ASSERT_TRUE(WIFEXITED(status)) << words[1] << ": " << text_of_file(output);
    EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kNoResources))
        << words[1] << ": " << text_of_file(output);
    EXPECT_NE(text_of_file(output).find("a thread cannot be started"), std::string::npos)
        << text_of_file(output);
  }
  EXPECT_EQ(job.command({"stop", "{job}", "--discard"}).exit_code, 0);
  job.wait(30);
}

// An actor whose group never comes to be is no use: it ends, and the restart policy counts it.
TEST(Limits, CollectivesThatNeverConnectEndTheJobAsACrashLoop) {
  SystemJob job("no-groups");
  job.use("synthetic.toml", kLongJob);
  job.add("restart.intensity=2");
  job.add("restart.backoff_ms=1");
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const pid_t actor = job.pid_of("gpu_actor", 1);
  ASSERT_GT(actor, 0);
  // Where ranks leave each other their addresses.
  const std::string meeting = job.directory() + "/optlease/" + job.name() + "/group";
  ASSERT_TRUE(fs::exists(meeting));
  fs::remove_all(meeting);
  std::ofstream(meeting) << "no folder";
  kill(actor, SIGKILL);
  const CommandResult result = job.wait(90);
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCrashLoop)) << result.output;
  EXPECT_NE(result.output.find("50 groups in a row had no working collectives"), std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find(meeting), std::string::npos) << result.output;
  EXPECT_EQ(job.report()["state_kept"], true);
  EXPECT_EQ(job.command({"clean", "{job}", "--include-kept"}).exit_code, 0);
}

// This test's process is neither the launcher nor one of its children.
TEST(Limits, AStrangerWhoTakesANameOnTheStoresSocketSilencesNobody) {
  SystemJob job("stranger");
  job.use("synthetic.toml", kLongJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const std::string directory = job.directory() + "/optlease/" + job.name();
  SocketContext context;
  std::vector<Socket> strangers;
  for (const char* name : {"launcher", "r0.i1", "r1.i1@0123456789abcdef"}) {
    SocketOptions options;
    options.routing_id = name;
    auto socket =
        Socket::connect(context, Socket::Type::kDealer, directory + "/store.sock", options);
    ASSERT_TRUE(socket.is_ok()) << socket.status().text();
    strangers.push_back(std::move(socket).value());
    ASSERT_TRUE(
        strangers.back().send({"", encode_empty({}, MessageKind::kStatusQuery, 7)}).is_ok());
    std::vector<bool> ready;
    ASSERT_TRUE(poll_sockets({.sockets = {&strangers.back()}, .fds = {}}, 20'000, &ready).is_ok());
    Message answer;
    ASSERT_TRUE(strangers.back().receive(&answer)) << name;
    const auto decoded = decode(answer.frame);
    ASSERT_TRUE(decoded.is_ok());
    EXPECT_EQ(decoded.value().kind, MessageKind::kRefused) << name;
    const std::string words(decoded.value().payload);
    EXPECT_NE(words.find(format("process %d calls itself", static_cast<int>(getpid()))),
              std::string::npos)
        << words;
  }
  // Longer than a silence may last.
  poll(nullptr, 0, 2500);
  const Json status = job.status();
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["restarts"], 0) << status.dump(1);
  EXPECT_GE(status["refusals"].get<int>(), 3);
  EXPECT_TRUE(job.wait_for_step(status["step_committed"].get<int64_t>() + 3));
  const std::string log = text_of_file(directory + "/host_store.log");
  EXPECT_NE(log.find(format("refused: process %d calls itself r0.i1", static_cast<int>(getpid()))),
            std::string::npos)
      << log;
  EXPECT_EQ(job.command({"stop", "{job}", "--discard"}).exit_code, 0);
  job.wait(30);
}

}  // namespace
}  // namespace optlease
