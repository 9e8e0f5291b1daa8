// Several users on one node: jobs of one name, what one of them removes, and what is shut to the
// other.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "actors/runtime/exit_code.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kOther = 65534;

const std::vector<std::string> kEndlessJob = {"job.steps=100000", "model.elements=60000",
                                              "offload.chunk_size_mb=0.0625",
                                              "gradients.nonfinite_steps=[]"};

// Why two users cannot be had here; empty where they can.
std::string why_one_user_only() {
  if (geteuid() != 0) return "only root can become another user";
  SystemJob other("probe");
  other.become(kOther);
  const CommandResult version = other.command({"--version"});
  if (version.exit_code == 0) return "";
  return "user 65534 cannot execute " OPTLEASE_BIN_DIR "/optlease: " + version.output;
}

// What `body` returns in a process of the other user.
int as_other(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(kOther) != 0 || setuid(kOther) != 0) _exit(99);
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string text_of_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Users, RunJobsOfOneNameAndOneIsCleanedWhileTheOtherGoesOn) {
  if (const std::string why = why_one_user_only(); !why.empty()) GTEST_SKIP() << why;
  SystemJob ours("same"), theirs("same");
  theirs.become(kOther);
  theirs.take_name_of(ours);
  for (SystemJob* job : {&ours, &theirs}) {
    job->use("synthetic.toml", kEndlessJob);
    job->start();
  }
  ASSERT_TRUE(ours.wait_for_step(3));
  ASSERT_TRUE(theirs.wait_for_step(3));
  EXPECT_EQ(ours.segments().size(), theirs.segments().size());
  std::set<pid_t> pids;
  for (const SystemJob* job : {&ours, &theirs}) {
    EXPECT_EQ(job->status()["restarts"], 0);
    for (const int rank : {0, 1}) pids.insert(job->pid_of("gpu_actor", rank));
    // Each sees its own only.
    EXPECT_NE(job->command({"clean", "{job}"}).output.find("it runs"), std::string::npos);
  }
  EXPECT_EQ(pids.size(), 4u);
  EXPECT_EQ(pids.count(0), 0u);

  // One node's job ends as a machine would end it, and its user cleans up.
  kill(theirs.launcher_pid(), SIGKILL);
  theirs.wait(30);
  while (!theirs.processes().empty()) usleep(10'000);
  EXPECT_FALSE(theirs.segments().empty());
  const auto of_ours = ours.segments();
  const CommandResult none = ours.command({"clean", "{job}"});
  EXPECT_EQ(none.output.find("removed /"), std::string::npos) << none.output;
  EXPECT_FALSE(theirs.segments().empty()) << "another user's job was cleaned";
  const CommandResult cleaned = theirs.command({"clean", "{job}"});
  EXPECT_EQ(cleaned.exit_code, 0) << cleaned.output;
  EXPECT_TRUE(theirs.segments().empty()) << cleaned.output;
  EXPECT_EQ(ours.segments(), of_ours);

  const Json status = ours.status();
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["restarts"], 0);
  EXPECT_TRUE(ours.wait_for_step(status["step_committed"].get<int64_t>() + 3));
  EXPECT_EQ(ours.command({"stop", "{job}"}).exit_code, 0);
  ours.wait(30);
}

// With the run directory of the job's user, and its name.
TEST(Users, CommandsOfAnotherUserReachNoJobAndChangeNothing) {
  if (const std::string why = why_one_user_only(); !why.empty()) GTEST_SKIP() << why;
  SystemJob job("shut");
  job.use("synthetic.toml", kEndlessJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const std::vector<pid_t> before = job.processes();
  ASSERT_EQ(chmod(job.directory().c_str(), 0711), 0);
  const std::string root = job.directory() + "/optlease";
  for (const std::vector<const char*>& words : {std::vector<const char*>{"status"},
                                                {"monitor", "--once"},
                                                {"restart", "--rank", "0"},
                                                {"digest"},
                                                {"export", "--out", "/tmp/optlease-no-such-export"},
                                                {"clean"},
                                                {"stop"}}) {
    const std::string output = job.directory() + "/other.out";
    std::ofstream(output) << "";
    ASSERT_EQ(chmod(output.c_str(), 0666), 0);
    const int code = as_other([&] {
      if (freopen(output.c_str(), "w", stderr) == nullptr) return 98;
      setenv("XDG_RUNTIME_DIR", job.directory().c_str(), 1);
      std::vector<char*> argv = {const_cast<char*>("optlease"), const_cast<char*>(words[0]),
                                 const_cast<char*>(job.name().c_str())};
      for (size_t i = 1; i < words.size(); ++i) argv.push_back(const_cast<char*>(words[i]));
      argv.push_back(nullptr);
      execv(OPTLEASE_BIN_DIR "/optlease", argv.data());
      return 97;
    });
    EXPECT_EQ(code, static_cast<int>(ExitCode::kIo)) << words[0];
    const std::string said = text_of_file(output);
    EXPECT_NE(said.find(root), std::string::npos) << words[0] << ": " << said;
  }
  EXPECT_EQ(job.processes(), before);
  const Json status = job.status();
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["restarts"], 0);
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  job.wait(30);
}

// Where directory and modes, which keep others out, were opened by hand.
TEST(Users, EveryZeroMqSocketOfAJobDropsAnotherUser) {
  if (const std::string why = why_one_user_only(); !why.empty()) GTEST_SKIP() << why;
  SystemJob job("sockets");
  job.use("synthetic.toml", kEndlessJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const std::string root = job.directory() + "/optlease", run = root + "/" + job.name();
  for (const std::string& folder : {job.directory(), root, run}) {
    ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  }
  const auto bytes_heard = [](const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return 9;
    char heard = 0;  // the library speaks first
    const int result = recv(fd, &heard, 1, MSG_WAITALL) > 0 ? 1 : 0;
    close(fd);
    return result;
  };
  int looked_at = 0;
  for (const auto& entry : fs::directory_iterator(run)) {
    const std::string path = entry.path();
    // The vault answers in its own protocol: VaultTest.RefusesAnotherUserOnBothSides.
    if (entry.path().extension() != ".sock" || path.ends_with("/vault.sock")) continue;
    struct stat found {};
    ASSERT_EQ(lstat(path.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0600u) << path;
    EXPECT_EQ(as_other([&] { return bytes_heard(path); }), 9) << path << " is open to others";
    ASSERT_EQ(chmod(path.c_str(), 0666), 0);
    EXPECT_EQ(as_other([&] { return bytes_heard(path); }), 0) << path;
    EXPECT_EQ(bytes_heard(path), 1) << path;
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
    ++looked_at;
  }
  EXPECT_EQ(looked_at, 8);  // store, launcher, and three of each of two ranks
  for (const std::string& folder : {run, root}) ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  job.wait(30);
}

}  // namespace
}  // namespace optlease
