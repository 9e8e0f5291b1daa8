// Jobs and tools whose surroundings differ: another run directory, stopped processes, descriptors
// that a caller closed.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "actors/runtime/clock.h"
#include "actors/runtime/exit_code.h"
#include "shm/contract/status.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kLongJob = {"job.steps=100000", "model.elements=60000",
                                           "offload.chunk_size_mb=0.0625",
                                           "restart.stop_timeout_s=1"};

// A program of ours with descriptors 0, 1 and 2 closed.
pid_t start_closed(std::vector<std::string> words, const std::string& runtime_dir) {
  words[0] = std::string(OPTLEASE_BIN_DIR "/") + words[0];
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  setenv("XDG_RUNTIME_DIR", runtime_dir.c_str(), 1);
  for (const int fd : {0, 1, 2}) close(fd);
  execv(argv[0], argv.data());
  _exit(127);
}

TEST(Surroundings, AJobOfAnotherRunDirectoryIsFoundAndBothDirectoriesAreNamed) {
  SystemJob job("there");
  job.use("synthetic.toml", kLongJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const SystemJob here("here");  // its commands have another XDG_RUNTIME_DIR
  for (const std::vector<std::string>& words : {std::vector<std::string>{"status", job.name()},
                                                {"monitor", job.name(), "--once"},
                                                {"restart", job.name(), "--rank", "1"},
                                                {"digest", job.name()},
                                                {"stop", job.name()}}) {
    const CommandResult result = here.command(words);
    EXPECT_EQ(result.exit_code, 0) << words[0] << ": " << result.output;
    for (const std::string& directory : {job.directory(), here.directory()}) {
      EXPECT_NE(result.output.find(directory + "/optlease/" + job.name()), std::string::npos)
          << words[0] << ": " << result.output;
    }
  }
  job.wait(30);
}

TEST(Surroundings, AJobWhoseLauncherCannotBeReachedIsSaidWithBothDirectories) {
  SystemJob job("unreachable");
  job.use("synthetic.toml", kLongJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const std::string socket = job.directory() + "/optlease/" + job.name() + "/launcher.sock";
  fs::rename(socket, socket + ".away");
  const SystemJob here("here");
  for (const std::string command : {"status", "stop"}) {
    const CommandResult result = here.command({command, job.name()});
    EXPECT_NE(result.exit_code, 0) << command;
    for (const std::string& part :
         {job.directory() + "/optlease/" + job.name(), here.directory() + "/optlease/" + job.name(),
          "XDG_RUNTIME_DIR=" + job.directory()}) {
      EXPECT_NE(result.output.find(part), std::string::npos) << result.output;
    }
  }
  fs::rename(socket + ".away", socket);
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  job.wait(30);
}

// The run directory of a kept job stays, and is no sign that the job runs.
TEST(Surroundings, ATrainerOfAJobThatEndedAndWasKeptDoesNotWaitForIt) {
  SystemJob job("kept");
  job.use("synthetic.toml", {"job.steps=2", "model.elements=20000", "job.keep_state=true",
                             "gradients.nonfinite_steps=[]"});
  job.run();
  ASSERT_TRUE(fs::exists(job.directory() + "/optlease/" + job.name() + "/kept.json"));
  int status = 0;
  waitpid(start_closed({"optlease-trainer", "--text", std::string(OPTLEASE_SOURCE_DIR) + "/docs",
                        "--job", job.name(), "--rank", "0"},
                       job.directory()),
          &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kNotRunning));
  EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(job.directory() + "/optlease/" + job.name()));
}

TEST(Surroundings, StopNamesAHostStoreThatIsStopped) {
  SystemJob job("frozen-store");
  job.use("synthetic.toml", kLongJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const pid_t store = job.pid_of("host_store", -1);
  ASSERT_GT(store, 0);
  ASSERT_EQ(kill(store, SIGSTOP), 0);
  const CommandResult stop = job.command({"stop", "{job}", "--keep"}, 60);
  EXPECT_EQ(stop.exit_code, 0) << stop.output;
  const std::string who = format("host_store (pid %d)", static_cast<int>(store));
  for (const std::string& part :
       {who + " is stopped by a signal", format("kill -CONT %d", static_cast<int>(store)),
        "its state is kept in shared memory; late to end was " + who}) {
    EXPECT_NE(stop.output.find(part), std::string::npos) << part << "\n" << stop.output;
  }
  const CommandResult run = job.wait(30);
  EXPECT_NE(run.output.find("host_store did not end within 2000 ms"), std::string::npos)
      << run.output;
  EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
}

// The launcher is the one that removes a state, or marks it as kept: killed before it could, it has
// done neither, whatever it had agreed to.
TEST(Surroundings, StopTellsNoLieWhereTheLauncherIsKilledMeanwhile) {
  const struct {
    const char* wish;
    bool keeps;  // as configured
  } cases[] = {{"--keep", false}, {"--discard", false}, {"--discard", true}};
  for (const auto& [wish, keeps] : cases) {
    SCOPED_TRACE(std::string(wish) + (keeps ? " of a job that keeps" : ""));
    SystemJob job("killed-in-stop");
    job.use("synthetic.toml", kLongJob);
    if (keeps) job.add("job.keep_state=true");
    setenv("OPTLEASE_KILL_POINT", "launcher.all_ended", 1);
    job.start();
    unsetenv("OPTLEASE_KILL_POINT");
    ASSERT_TRUE(job.wait_for_step(3));
    const CommandResult stop = job.command({"stop", "{job}", wish}, 60);
    EXPECT_EQ(stop.exit_code, static_cast<int>(ExitCode::kLauncherLost)) << stop.output;
    EXPECT_NE(stop.output.find("neither removed nor marked as kept"), std::string::npos)
        << stop.output;
    EXPECT_EQ(job.wait(30).signal, SIGKILL);
    EXPECT_EQ(job.command({"digest", "{job}"}).exit_code, 0) << "the state is there";
    EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
  }
}

// How many ends of sockets of that path there are: the listener, and one for each connection.
int ends_of(const std::string& path) {
  std::ifstream sockets("/proc/net/unix");
  int ends = 0;
  for (std::string line; std::getline(sockets, line);) {
    if (line.size() >= path.size() && line.ends_with(path)) ++ends;
  }
  return ends;
}

TEST(Surroundings, StopSaysThatTheStateIsThereWhereTheLauncherIsKilledBeforeItAnswers) {
  SystemJob job("killed-before");
  job.use("synthetic.toml", kLongJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const pid_t launcher = job.launcher_pid();
  ASSERT_EQ(kill(launcher, SIGSTOP), 0);
  const std::string socket = job.directory() + "/optlease/" + job.name() + "/launcher.sock";
  const int before = ends_of(socket);
  ASSERT_GE(before, 1) << socket;
  std::thread killer([&] {
    for (int i = 0; i < 3000 && ends_of(socket) == before; ++i) poll(nullptr, 0, 10);
    kill(launcher, SIGKILL);
  });
  const CommandResult stop = job.command({"stop", "{job}"}, 60);
  killer.join();
  EXPECT_EQ(stop.exit_code, static_cast<int>(ExitCode::kLauncherLost)) << stop.output;
  EXPECT_NE(stop.output.find("--resume` goes on from it"), std::string::npos) << stop.output;
  job.wait(30);
  EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
}

bool has_null_descriptors(pid_t pid) {
  std::error_code gone;
  for (const int fd : {0, 1, 2}) {
    const auto link = fs::read_symlink(format("/proc/%d/fd/%d", static_cast<int>(pid), fd), gone);
    if (link != "/dev/null") return false;
  }
  return true;
}

// Polls until they are, or until the process has ended or a deadline passes.
bool comes_to_have_null_descriptors(pid_t pid) {
  const Deadline deadline = Deadline::after_ms(20000);
  while (!deadline.passed()) {
    if (has_null_descriptors(pid)) return true;
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (info.si_pid == pid) return false;
    poll(nullptr, 0, 1);
  }
  return false;
}

TEST(Surroundings, AWholeJobWithoutStandardDescriptorsGivesTheSameBits) {
  const std::vector<std::string> overrides = {"job.steps=12", "model.elements=60000",
                                              "offload.chunk_size_mb=0.0625"};
  SystemJob usual("usual");
  usual.use("synthetic.toml", overrides);
  const Json wanted = usual.run();
  const SystemJob closed("closed");
  const std::string report = closed.directory() + "/report.json";
  std::vector<std::string> words = {"optlease",
                                    "run",
                                    std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml",
                                    "--report",
                                    report,
                                    "--set",
                                    "job.name=" + closed.name()};
  for (const std::string& each : overrides) words.insert(words.end(), {"--set", each});
  int status = 0;
  ASSERT_EQ(waitpid(start_closed(words, closed.directory()), &status, 0) > 0, true);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const Json got = Json::parse(std::ifstream(report), nullptr, false);
  ASSERT_TRUE(got.is_object()) << "the report is not whole";
  expect_passed(got);
  EXPECT_EQ(got["state_digest"], wanted["state_digest"]);
}

TEST(Surroundings, ToolsAndTrainersWithoutStandardDescriptorsPutNullInTheirPlace) {
  SystemJob job("tools");
  job.use("synthetic.toml", kLongJob);
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"optlease-monitor", "--job", job.name()},
        {"optlease", "monitor", job.name()}}) {
    const pid_t tool = start_closed(words, job.directory());
    EXPECT_TRUE(comes_to_have_null_descriptors(tool)) << words[0];
    kill(tool, SIGKILL);
    waitpid(tool, nullptr, 0);
  }
  // It waits for what its launcher has to say.
  int control[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, control), 0);
  const pid_t floor =
      start_closed({"optlease-floor", "--control-fd", std::to_string(control[0])}, job.directory());
  EXPECT_TRUE(comes_to_have_null_descriptors(floor));
  kill(floor, SIGKILL);
  waitpid(floor, nullptr, 0);
  for (const int fd : control) close(fd);
  // A trainer waits for the plan of a job that is only just being started.
  const std::string starting = job.directory() + "/optlease/starting-" + job.name();
  ASSERT_TRUE(fs::create_directory(starting));
  fs::permissions(starting, fs::perms::owner_all);
  const pid_t trainer =
      start_closed({"optlease-trainer", "--text", std::string(OPTLEASE_SOURCE_DIR) + "/docs",
                    "--job", "starting-" + job.name(), "--rank", "0"},
                   job.directory());
  EXPECT_TRUE(comes_to_have_null_descriptors(trainer));
  kill(trainer, SIGKILL);
  waitpid(trainer, nullptr, 0);
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  job.wait(30);
}

}  // namespace
}  // namespace optlease
