// The program itself against actors that this test plays.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "actors/runtime/exit_code.h"
#include "actors/runtime/job_plan.h"
#include "actors/runtime/telemetry.h"
#include "tests/support/resident_bytes.h"
#include "tests/wire/run_environment.h"

namespace optlease {
namespace {

class MonitorProgram : public RunEnvironment {
 protected:
  MonitorProgram() : directory_(make_run_directory("job")) {
    JobPlan plan;
    plan.segment.job_name = "job";
    plan.segment.world_size = 2;
    SpaceSpec space;
    space.name = "dense";
    space.members = {Rank(0), Rank(1)};
    TensorSpec tensor;
    tensor.name = "w";
    tensor.shape = {1000};
    space.tensors = {tensor};
    plan.segment.spaces = {space};
    plan.optimizer.groups = {{1e-3, 0.9, 0.999, 1e-8, 0, static_cast<uint32_t>(Rule::kAdamW), 0}};
    plan.steps = 77;
    plan.telemetry.interval_ms = 20;
    EXPECT_TRUE(lay_out(&plan.segment, 0).is_ok());
    std::ofstream(directory_.job_file()) << to_json(plan);
  }
  ~MonitorProgram() override {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  void start(std::vector<std::string> words) {
    output_path_ = base_ + "/out";
    words.insert(words.begin(), OPTLEASE_BIN_DIR "/optlease-monitor");
    pid_ = ::fork();
    if (pid_ != 0) return;
    const int output = ::open(output_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::string output() const {
    std::ostringstream text;
    text << std::ifstream(output_path_).rdbuf();
    return text.str();
  }
  // The exit code, once there; meanwhile `actors` are kept alive.
  template <class Actors>
  int wait_for_end(Actors actors) {
    int status = 0;
    const bool ended = eventually([&] {
      actors();
      return ::waitpid(pid_, &status, WNOHANG) == pid_;
    });
    EXPECT_TRUE(ended) << output();
    if (!ended) return -1;
    pid_ = -1;
    EXPECT_TRUE(WIFEXITED(status)) << status;
    return WEXITSTATUS(status);
  }

  TelemetryPublisher actor(uint32_t rank) {
    Result<TelemetryPublisher> made =
        TelemetryPublisher::open(context_, directory_, Rank(rank), 20);
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    return std::move(made).value();
  }
  static ActorTelemetry words_of(uint32_t rank, Step step) {
    ActorTelemetry t;
    t.job = "job";
    t.rank = rank;
    t.incarnation = 1;
    t.step = step;
    t.step_committed = step - 1;
    return t;
  }
  // At once: each document comes later than any interval.
  static void publish(TelemetryPublisher& actor, const ActorTelemetry& words) {
    static int64_t clock_ms = 0;
    (void)actor.publish(words, clock_ms += 100000);
  }
  static void act(TelemetryPublisher& actor, uint32_t rank, Step step = 41) {
    publish(actor, words_of(rank, step));
    actor.answer_snapshots(words_of(rank, step));
  }

  SocketContext context_;
  RunDirectory directory_;
  std::string output_path_;
  pid_t pid_ = -1;
};

TEST_F(MonitorProgram, OncePrintsOneViewOfAllRanks) {
  TelemetryPublisher zero = actor(0);
  TelemetryPublisher one = actor(1);
  start({"--job", "job", "--once", "--timeout-ms", "60000"});
  EXPECT_EQ(wait_for_end([&] {
              act(zero, 0);
              act(one, 1);
            }),
            static_cast<int>(ExitCode::kOk));
  EXPECT_NE(output().find("2 of 2 ranks heard, step 40 of 77 committed"), std::string::npos)
      << output();
}

TEST_F(MonitorProgram, OnceNeedsOnlyTheSnapshotSocket) {
  TelemetryPublisher zero = actor(0);
  TelemetryPublisher one = actor(1);
  start({"job", "--once", "--json", "--timeout-ms", "60000"});
  EXPECT_EQ(wait_for_end([&] {
              zero.answer_snapshots(words_of(0, 9));
              one.answer_snapshots(words_of(1, 9));
            }),
            static_cast<int>(ExitCode::kOk));
  // One document on one line, the ranks' documents in it.
  const std::string text = output();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const std::string head = "{\"job\":\"job\",\"ranks\":[";
  ASSERT_TRUE(text.starts_with(head) && text.ends_with("]}\n")) << text;
  const size_t cut = text.find("},{");
  ASSERT_NE(cut, std::string::npos) << text;
  const Result<ActorTelemetry> first =
      telemetry_from_json(text.substr(head.size(), cut + 1 - head.size()));
  const Result<ActorTelemetry> second =
      telemetry_from_json(text.substr(cut + 2, text.size() - 3 - (cut + 2)));
  ASSERT_TRUE(first.is_ok() && second.is_ok()) << text;
  EXPECT_EQ(first.value().rank, 0u);
  EXPECT_EQ(second.value().rank, 1u);
  EXPECT_EQ(second.value().step, 9);
}

TEST_F(MonitorProgram, OnceShowsThoseThatAnsweredAtTheDeadline) {
  TelemetryPublisher one = actor(1);
  start({"job", "--once", "--timeout-ms", "3000"});
  EXPECT_EQ(wait_for_end([&] { act(one, 1); }), static_cast<int>(ExitCode::kOk));
  EXPECT_NE(output().find("1 of 2 ranks heard"), std::string::npos) << output();
  EXPECT_NE(output().find("rank 0: no answer yet"), std::string::npos) << output();
}

TEST_F(MonitorProgram, OnceSaysThatNobodyAnswers) {
  start({"job", "--once", "--timeout-ms", "100"});
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kNotRunning));
  EXPECT_NE(output().find("no actor of job job answered"), std::string::npos) << output();
}

TEST_F(MonitorProgram, SaysThatAJobDoesNotRun) {
  start({"absent", "--once"});
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kNotRunning));
  EXPECT_NE(output().find("absent/job.json"), std::string::npos) << output();
}

TEST_F(MonitorProgram, RefusesWrongUsage) {
  start({"--unknown"});
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kUsage));
  start({"../job"});
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kUsage));
  start({"--once"});
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kUsage));
  EXPECT_NE(output().find("a job's name is required"), std::string::npos) << output();
}

TEST_F(MonitorProgram, HelpAsksForTheJobOnce) {
  start({"--help"});
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kOk));
  EXPECT_NE(output().find("--job"), std::string::npos) << output();
  EXPECT_EQ(output().find("REQUIRED"), std::string::npos) << "either of the two serves:\n"
                                                          << output();
}

TEST_F(MonitorProgram, FollowsActorsThatComeAndGoUntilTheJobEnds) {
  start({"job", "--interval-ms", "50"});
  std::optional<TelemetryPublisher> zero(actor(0));
  ASSERT_TRUE(eventually([&] {
    act(*zero, 0, 11);
    return output().find("1 of 2 ranks heard, step 10 of 77") != std::string::npos;
  })) << output();
  zero.reset();
  ASSERT_TRUE(eventually([&] { return output().find("rank 0: SILENT") != std::string::npos; }))
      << output();
  zero.emplace(actor(0));  // the next incarnation
  ActorTelemetry next = words_of(0, 31);
  next.incarnation = 2;
  ASSERT_TRUE(eventually([&] {
    publish(*zero, next);
    return output().find("step 30 of 77") != std::string::npos;
  })) << output();
  std::filesystem::remove(directory_.job_file());
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kOk));
  EXPECT_NE(output().find("job job has ended"), std::string::npos) << output();
  EXPECT_EQ(output().find('\x1b'), std::string::npos) << "a file is no terminal";
}

TEST_F(MonitorProgram, EndsWithTheLauncherOfTheJob) {
  std::optional<Socket> launcher(
      std::move(Socket::bind(context_, Socket::Type::kRouter, directory_.launcher_socket()))
          .value());
  TelemetryPublisher zero = actor(0);
  start({"job", "--json"});
  ASSERT_TRUE(eventually([&] {
    act(zero, 0);
    return output().find("\"optlease_actor_step\":41") != std::string::npos;
  }));
  std::this_thread::sleep_for(
      std::chrono::milliseconds(1200));  // two looks at the launcher, which is still there
  EXPECT_EQ(::waitpid(pid_, nullptr, WNOHANG), 0);
  launcher.reset();
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kOk));
  EXPECT_NE(output().find("has ended"), std::string::npos);
}

// The number under the last "gaps" of a followed view, in its first rank's row.
uint64_t last_gaps(const std::string& view) {
  const size_t title = view.rfind(" gaps");
  const size_t row = view.find('\n', title);
  if (title == std::string::npos || row == std::string::npos) return 0;
  const size_t column = title + 5 - (view.rfind('\n', title) + 1);  // where it ends, in any row
  const std::string cell = view.substr(row + 1, column);
  const size_t begin = cell.rfind(' ');
  return begin == std::string::npos ? 0 : std::strtoull(cell.c_str() + begin, nullptr, 10);
}

// Fault case 30: an actor's publisher with the real monitor, which stops reading.
TEST_F(MonitorProgram, ThatSleepsCostsItsActorNoMemoryAndShowsTheGapAfterwards) {
  TelemetryPublisher zero = actor(0);
  start({"job", "--interval-ms", "20"});
  ASSERT_TRUE(eventually([&] {
    act(zero, 0);
    return output().find("step 40 of 77") != std::string::npos;
  }));
  EXPECT_EQ(last_gaps(output()), 0u) << output();
  ::kill(pid_, SIGSTOP);
  ActorTelemetry words = words_of(0, 50);
  for (int i = 0; i < 2000; ++i) publish(zero, words);  // its queue is full from here on
  const uint64_t before = resident_bytes();
  for (int i = 0; i < 20000; ++i) publish(zero, words);
  EXPECT_LT(resident_bytes(), before + (8u << 20) + kSanitizerKeepsBytes);
  ::kill(pid_, SIGCONT);
  EXPECT_TRUE(eventually([&] {
    act(zero, 0, 77);
    return output().find("step 76 of 77") != std::string::npos && last_gaps(output()) > 0;
  })) << "it hears nothing any more, or shows no gap: "
      << output().substr(output().size() > 2000 ? output().size() - 2000 : 0);
  ::kill(pid_, SIGINT);
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kOk));
}

TEST_F(MonitorProgram, ComesAndGoesAndItsActorKeepsNothingOfIt) {
  TelemetryPublisher zero = actor(0);
  uint64_t after_the_first = 0;
  for (int visit = 0; visit < 25; ++visit) {
    start({"job"});
    ASSERT_TRUE(eventually([&] {
      act(zero, 0);
      return output().find("1 of 2 ranks heard") != std::string::npos;
    })) << "visit "
        << visit;
    ::kill(pid_, visit % 2 == 0 ? SIGINT : SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    if (visit == 4) after_the_first = resident_bytes();
  }
  EXPECT_LT(resident_bytes(), after_the_first + (4u << 20) + kSanitizerKeepsBytes);
}

TEST_F(MonitorProgram, EndsOnASignal) {
  start({"job"});
  ASSERT_TRUE(eventually([&] { return output().find("0 of 2") != std::string::npos; }));
  ::kill(pid_, SIGINT);
  EXPECT_EQ(wait_for_end([] {}), static_cast<int>(ExitCode::kOk));
}

}  // namespace
}  // namespace optlease
