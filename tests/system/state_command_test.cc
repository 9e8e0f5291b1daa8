// The commands that read a state at rest, beside whatever else happens to the job; and what a job
// tells of itself.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <regex>
#include <set>
#include <thread>

#include "actors/runtime/exit_code.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

// A step that never ends (its actor is stopped) keeps a hold waiting; the job's end ends the wait.
TEST(Command, DigestSaysThatTheJobEndedWhileItWaited) {
  SystemJob job("end-in-wait");
  job.use("synthetic.toml", {"job.steps=100000", "model.elements=60000",
                             "restart.heartbeat_timeout_s=600", "restart.lease_ms=600000"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const pid_t actor = job.pid_of("gpu_actor", 0);
  ASSERT_GT(actor, 0);
  // Stopped within an open step: the hold must wait for it. Between two steps it is let go again.
  bool step_is_open = false;
  for (int tries = 0; tries < 100 && !step_is_open; ++tries) {
    kill(actor, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    step_is_open = job.status()["step_open"].get<int64_t>() >= 0;
    if (!step_is_open) kill(actor, SIGCONT);
  }
  ASSERT_TRUE(step_is_open) << "the actor was never stopped within a step";
  std::thread ender([&job] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    kill(job.launcher_pid(), SIGKILL);
  });
  const CommandResult result = job.command({"digest", "{job}", "--timeout-s", "25"}, 60);
  ender.join();
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kNotRunning)) << result.output;
  EXPECT_NE(result.output.find("does not run"), std::string::npos) << result.output;
  kill(actor, SIGCONT);
  (void)job.wait(30);
  EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
}

// Somebody who is no launcher holds the lock: said as it is, within the time.
TEST(Command, DigestOfAStateThatSomebodyHoldsSaysSo) {
  SystemJob job("held");
  job.use("synthetic.toml", {"job.steps=3", "model.elements=20000", "job.keep_state=true",
                             "gradients.nonfinite_steps=[]"});
  job.run();
  for (const std::string& segment : job.segments()) {
    if (!segment.ends_with(".lock")) continue;
    const int held = open(segment.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(flock(held, LOCK_EX | LOCK_NB), 0);
    const CommandResult digest = job.command({"digest", "{job}", "--timeout-s", "0.5"});
    EXPECT_EQ(digest.exit_code, static_cast<int>(ExitCode::kTimeout)) << digest.output;
    EXPECT_NE(digest.output.find("another tool reads it"), std::string::npos) << digest.output;
    close(held);
  }
  EXPECT_EQ(job.command({"clean", "{job}", "--include-kept"}).exit_code, 0);
}

// Readers of a state at rest wait for each other: none takes another tool's lock for a live job.
TEST(Command, SeveralDigestsOfAKeptJobAllAnswer) {
  SystemJob job("several");
  job.use("synthetic.toml", {"job.steps=3", "model.elements=2000000", "job.keep_state=true",
                             "gradients.nonfinite_steps=[]"});
  const Json report = job.run();
  std::vector<std::thread> tools;
  std::vector<CommandResult> results(4);
  for (CommandResult& result : results) {
    tools.emplace_back([&job, &result] {
      result = job.command({"digest", "{job}", "--json"}, 60);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& tool : tools) tool.join();
  for (const CommandResult& result : results) {
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(Json::parse(result.output)["state_digest"], report["state_digest"]);
  }
  EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
}

// A store that is restarted under a digest voids its hold: the state is read once more.
TEST(Command, DigestUnderARestartedStoreIsTakenAgain) {
  SystemJob job("hold-lost");
  job.use("synthetic.toml", {"job.steps=100000", "model.elements=4000000",
                             "gradients.nonfinite_steps=[]", "restart.intensity=1000"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(2));
  for (int round = 0; round < 4; ++round) {
    const pid_t store = job.pid_of("host_store", -1);
    std::thread killer([store, round] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20 + 30 * round));
      if (store > 0) kill(store, SIGKILL);
    });
    const CommandResult result = job.command({"digest", "{job}", "--json"}, 60);
    killer.join();
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  (void)job.wait(30);
}

// The words in backticks of the first column of the tables of one section of a page.
std::set<std::string> listed_fields(const std::string& page, const std::string& section) {
  std::ifstream in(std::string(OPTLEASE_SOURCE_DIR) + "/docs/" + page);
  std::set<std::string> fields;
  bool inside = false;
  const std::regex word("`([a-z_]+)`");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) inside = line == section;
    if (!inside || !line.starts_with("| ")) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    for (std::sregex_iterator at(cell.begin(), cell.end(), word), end; at != end; ++at) {
      fields.insert((*at)[1]);
    }
  }
  return fields;
}

void add_keys(const Json& object, std::set<std::string>* keys) {
  for (const auto& item : object.items()) keys->insert(item.key());
}

TEST(Command, StatusAsJsonHasTheFieldsThatThePageLists) {
  SystemJob job("fields");
  job.use("synthetic.toml", {"job.steps=100000", "model.elements=60000"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  std::set<std::string> fields;
  const Json status = job.status();
  add_keys(status, &fields);
  for (const Json& process : status["processes"]) add_keys(process, &fields);
  const Json jobs = Json::parse(job.command({"status", "--json"}).output);
  EXPECT_EQ(jobs.size(), 1u);
  for (const Json& entry : jobs["jobs"]) add_keys(entry, &fields);
  fields.insert("why");  // only of a state that nobody can use
  EXPECT_EQ(listed_fields("OPERATING.md", "## Status as JSON"), fields);
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  (void)job.wait(30);
}

TEST(Command, AStoppedRunEndsWithTheTimeOfItsLastStep) {
  SystemJob job("last-step");
  job.use("synthetic.toml", {"job.steps=100000", "model.elements=60000"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  const std::string output = job.wait(30).output;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(
      output, match,
      std::regex("ended at step (\\d+) of 100000, the last one committed, in [0-9.]+ s\n")))
      << output;
  EXPECT_EQ(match[1], std::to_string(job.report()["steps_committed"].get<int64_t>()));
}

TEST(Command, ATrainerThatDiesWithoutAWordIsSaidToHaveWrittenNothing) {
  SystemJob job("mute");
  const std::string path = job.directory() + "/mute.toml";
  std::ofstream(path) << "[job]\nname = \"" << job.name()
                      << "\"\nsteps = 3\n[ranks]\nworld_size = 1\n"
                      << "[model]\nelements = 1000\n[trainer]\ncommand = [\"/bin/false\"]\n";
  const CommandResult run = job.command({"run", path}, 60);
  EXPECT_EQ(run.exit_code, static_cast<int>(ExitCode::kTrainerFailed)) << run.output;
  EXPECT_NE(run.output.find("trainer 0 ended with exit code 1 and has written nothing to " +
                            job.directory()),
            std::string::npos)
      << run.output;
  EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
}

}  // namespace
}  // namespace optlease
