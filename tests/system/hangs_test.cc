// Who does not do its part is named, with its last phase and how its process stands; and nobody
// stands still because somebody else does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "actors/runtime/clock.h"
#include "actors/runtime/exit_code.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

const std::vector<std::string> kImpatient = {"restart.heartbeat_timeout_s=1",
                                             "restart.stop_timeout_s=2"};

std::string text_of_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Looks again until it is so; a test that gives up has waited far longer than any machine needs.
template <class Condition>
bool eventually(Condition condition) {
  const Deadline deadline = Deadline::after_ms(120'000);
  while (!condition()) {
    if (deadline.passed()) return false;
    poll(nullptr, 0, 50);
  }
  return true;
}

// With which step an actor was last heard; -1: not yet.
int64_t heard_step(const Json& status, int rank) {
  if (!status.is_object()) return -1;
  for (const Json& process : status["processes"]) {
    if (process["role"] == "gpu_actor" && process["rank"] == rank && process.contains("step")) {
      return process["step"].get<int64_t>();
    }
  }
  return -1;
}

TEST(Hangs, AStoppedActorIsNamedWithItsLastPhaseAndHowItStood) {
  SystemJob job("actor");
  job.use("synthetic.toml", kImpatient);
  job.add("job.steps=100000");
  job.add("model.elements=60000");
  job.start();
  // Its phase is known as of its last heartbeat.
  ASSERT_TRUE(eventually([&] { return heard_step(job.status(), 1) >= 3; }));
  const pid_t actor = job.pid_of("gpu_actor", 1);
  ASSERT_GT(actor, 0);
  kill(actor, SIGSTOP);
  ASSERT_TRUE(eventually([&] {
    const Json status = job.status();
    return status.is_object() && status["restarts"].get<int>() > 0;
  }));
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  const std::string output = job.wait().output;
  const Json report = job.report();
  ASSERT_EQ(report["restarts"].size(), 1u) << report["restarts"].dump(1);
  const Json& death = report["restarts"][0];
  EXPECT_EQ(death["cause"], "heartbeat_timeout");
  EXPECT_EQ(death["pid"], actor);
  ASSERT_TRUE(death["phase"].is_string()) << death;
  EXPECT_GE(death["phase_step"].get<int>(), 3);
  const std::string why = death["why"].get<std::string>();
  EXPECT_NE(why.find("it has been silent for"), std::string::npos) << why;
  EXPECT_NE(why.find("it was last heard in " + death["phase"].get<std::string>()),
            std::string::npos)
      << why;
  EXPECT_NE(why.find("is stopped by a signal"), std::string::npos) << why;
  EXPECT_NE(output.find("killing gpu_actor 1: " + why), std::string::npos) << output;
}

TEST(Hangs, AStoppedTrainerIsNamedWhileTheJobStandsAndInTheReport) {
  SystemJob job("trainer");
  job.use("quickstart.toml", kImpatient);
  job.add("job.steps=100000");
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const pid_t trainer = job.pid_of("trainer", 1);
  ASSERT_GT(trainer, 0);
  kill(trainer, SIGSTOP);
  const std::string words = "the trainers of rank 1 have not asked for it; process " +
                            std::to_string(trainer) + " (optlease-traine) is stopped by a signal";
  const std::string log = job.directory() + "/run.log";
  EXPECT_TRUE(eventually([&] { return text_of_file(log).find(words) != std::string::npos; }))
      << text_of_file(log);
  EXPECT_TRUE(job.launcher_alive());
  EXPECT_EQ(job.status()["restarts"], 0) << "a trainer may take as long as it needs";
  // A word to stop does not reach it either.
  EXPECT_EQ(job.command({"stop", "{job}"}, 60).exit_code, 0);
  job.wait();
  const Json report = job.report();
  ASSERT_EQ(report["stalls"].size(), 1u) << report["stalls"].dump(1);
  EXPECT_NE(report["stalls"][0]["text"].get<std::string>().find(words), std::string::npos)
      << report["stalls"];
  EXPECT_GE(report["stalls"][0]["seconds"].get<double>(), 3.0);
  ASSERT_EQ(report["killed_at_stop"].size(), 1u) << report["killed_at_stop"].dump(1);
  const Json& killed = report["killed_at_stop"][0];
  EXPECT_EQ(killed["role"], "trainer");
  EXPECT_EQ(killed["pid"], trainer);
  EXPECT_EQ(killed["phase"], "idle");
  EXPECT_NE(killed["why"].get<std::string>().find("is stopped by a signal"), std::string::npos);
  EXPECT_NE(report["ending_text"].get<std::string>().find("trainer 1 did not end within 2000 ms"),
            std::string::npos)
      << report["ending_text"];
}

// A pager that stands still, a terminal after Ctrl-S.
TEST(Hangs, ALauncherWhoseProgressNobodyReadsFinishesTheJobAndItsReport) {
  SystemJob job("unread");
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  while (write(ends[1], "no room left\n", 13) > 0) {
  }
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);
  const std::string report_path = job.directory() + "/unread.json";
  const std::string name = "job.name=" + job.name();
  const pid_t launcher = fork();
  if (launcher == 0) {
    setenv("XDG_RUNTIME_DIR", job.directory().c_str(), 1);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execl(OPTLEASE_BIN_DIR "/optlease", "optlease", "run",
          OPTLEASE_SOURCE_DIR "/configs/synthetic.toml", "--report", report_path.c_str(), "--set",
          name.c_str(), "--set", "model.elements=60000", nullptr);
    _exit(127);
  }
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(report_path); }));
  const Json report = Json::parse(text_of_file(report_path), nullptr, false);
  expect_passed(report);
  EXPECT_TRUE(job.segments().empty()) << "all is cleaned up before the last words";
  // Only the summary is left, and waits for its reader.
  close(ends[1]);
  std::string said;
  char piece[4096];
  ssize_t got;
  while ((got = read(ends[0], piece, sizeof piece)) > 0)
    said.append(piece, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_NE(said.find("completed (ok)"), std::string::npos) << said;
}

}  // namespace
}  // namespace optlease
