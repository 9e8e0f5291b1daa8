// `optlease bench` with real processes on the CPU device: its figures, its refusals, and that
// nothing is left of it, however it ends.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "actors/runtime/clock.h"
#include "actors/runtime/exit_code.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

std::string text_of_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class Bench : public testing::Test {
 protected:
  Bench() : job("bench") {}
  ~Bench() override {
    EXPECT_TRUE(pids_of("").empty()) << "a process is left";
    for (const auto& entry : fs::directory_iterator("/dev/shm")) {
      EXPECT_EQ(entry.path().filename().string().find(job.name()), std::string::npos)
          << entry.path() << " is left";
    }
  }

  std::vector<std::string> words(std::vector<std::string> more) const {
    std::vector<std::string> out = {"bench",
                                    "--device",
                                    "cpu",
                                    "--set",
                                    "job.name=" + job.name(),
                                    "--set",
                                    "offload.chunk_size_mb=0.25"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  Json figures(std::vector<std::string> more) const {
    more.push_back("--json");
    const CommandResult result = job.command(words(std::move(more)), 120);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    const size_t begin = result.output.find('{');
    return begin == std::string::npos ? Json()
                                      : Json::parse(result.output.substr(begin), nullptr, false);
  }
  // Processes of this test whose command line holds `word`: they share its run directory's name.
  std::vector<pid_t> pids_of(const std::string& word) const {
    std::vector<pid_t> found;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
      const std::string pid = entry.path().filename();
      if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string line = text_of_file("/proc/" + pid + "/cmdline");
      if (line.empty() || line.find(word) == std::string::npos) continue;
      const std::string environment = text_of_file("/proc/" + pid + "/environ");
      if (environment.find("XDG_RUNTIME_DIR=" + job.directory()) == std::string::npos) continue;
      found.push_back(std::stoi(pid));
    }
    return found;
  }
  // Runs a bench that would take long, and `disturb` once a process with `word` lives.
  template <class Disturb>
  CommandResult disturbed(const std::vector<std::string>& more, const std::string& word,
                          Disturb disturb) {
    CommandResult result;
    std::thread running([&] { result = job.command(words(more), 120); });
    const Deadline deadline = Deadline::after_ms(60'000);
    std::vector<pid_t> seen;
    while ((seen = pids_of(word)).empty() && !deadline.passed()) poll(nullptr, 0, 5);
    EXPECT_FALSE(seen.empty()) << "no process " << word;
    poll(nullptr, 0, 100);
    if (!seen.empty()) disturb(seen.front());
    running.join();
    EXPECT_FALSE(result.timed_out);
    return result;
  }
  void interrupt() const {
    for (const pid_t pid : pids_of("optlease" + std::string(1, '\0') + "bench")) {
      kill(pid, SIGINT);
    }
  }
  SystemJob job;
};

void expect_sound(const Json& rank) {
  for (const char* key :
       {"bytes_in", "bytes_out", "stream_seconds", "out_bytes_per_second", "read_ahead_bytes",
        "floor_bytes_per_second", "of_floor", "first_window_seconds", "kernel_seconds",
        "cpu_seconds", "gather_exposed_seconds", "staging_bytes", "device_bytes_peak"}) {
    ASSERT_TRUE(rank.contains(key)) << key;
    EXPECT_GT(rank[key].get<double>(), 0) << key;
  }
  for (const char* floor : {"floor_before", "floor_after"}) {
    for (const char* key :
         {"both_bytes_per_second", "in_bytes_per_second", "out_bytes_per_second"}) {
      EXPECT_GT(rank[floor][key].get<double>(), 0) << floor << " " << key;
    }
  }
  // Of a job of one window nothing is seen: it is over between two looks.
  for (const char* share : {"in_busy", "out_busy", "slower_direction_busy"}) {
    EXPECT_GE(rank[share].get<double>(), 0) << share;
    EXPECT_LE(rank[share].get<double>(), 1.01) << share;
  }
  EXPECT_EQ(rank["bytes_in"], rank["bytes_out"]);
  EXPECT_EQ(rank["bounced_bytes"], 0);
  EXPECT_GE(rank["exposed_stall_seconds"].get<double>(), rank["lease_wait_seconds"].get<double>());
  EXPECT_LE(rank["best_stream_seconds"].get<double>(), rank["stream_seconds"].get<double>());
  EXPECT_LE(rank["staging_bytes"].get<uint64_t>(), rank["staging_budget_bytes"].get<uint64_t>());
  EXPECT_EQ(rank["device_bytes_beyond"], 0) << "of the CPU device only staging counts";
  EXPECT_NEAR(rank["in_bytes_per_second"].get<double>() * rank["stream_seconds"].get<double>(),
              rank["bytes_in"].get<double>() - rank["read_ahead_bytes"].get<double>(), 1);
  EXPECT_LE(rank["read_ahead_bytes"].get<uint64_t>(), rank["staging_bytes"].get<uint64_t>());
  EXPECT_NEAR(rank["of_floor"].get<double>() * rank["floor_bytes_per_second"].get<double>(),
              rank["out_bytes_per_second"].get<double>(), 1);
}

TEST_F(Bench, FiguresOfTwoRanksAreThereAndAgree) {
  const Json out = figures({"--parameters", "300Ki", "--world-size", "2", "--steps", "4",
                            "--warm-up", "1", "--floor-ms", "10"});
  ASSERT_TRUE(out.is_object());
  EXPECT_EQ(out["schema"], 1);
  EXPECT_EQ(out["device"], "cpu");
  EXPECT_EQ(out["parameters"], 300 * 1024);
  EXPECT_EQ(out["steps_measured"], 4);
  EXPECT_EQ(out["steps_left_out"], 1);
  ASSERT_EQ(out["ranks"].size(), 2u);
  uint64_t bytes = 0;
  for (const Json& rank : out["ranks"]) {
    expect_sound(rank);
    bytes += rank["bytes_in"].get<uint64_t>();
  }
  EXPECT_GE(bytes, 300u * 1024 * 12) << "twelve bytes a parameter";
  EXPECT_LT(bytes, 300u * 1024 * 13);
  EXPECT_NEAR(out["ns_per_parameter"].get<double>() * 300 * 1024,
              out["stream_seconds"].get<double>() * 1e9, 1);
  EXPECT_GT(out["step_seconds"].get<double>(), 0);
  EXPECT_GE(out["finish_spread"].get<double>(), 0);
  EXPECT_LT(out["finish_spread"].get<double>(), 1);
  EXPECT_GT(out["job_cpu_seconds"].get<double>(), 0);
  EXPECT_FALSE(out["state_digest"].get<std::string>().empty());
}

TEST_F(Bench, TheSmallestJobHasFiguresToo) {
  const Json out = figures({"--parameters", "1Ki", "--steps", "3", "--floor-ms", "2"});
  ASSERT_TRUE(out.is_object());
  EXPECT_EQ(out["chunks"], 1);
  ASSERT_EQ(out["ranks"].size(), 1u);
  expect_sound(out["ranks"][0]);
}

TEST_F(Bench, AJobFileIsMeasuredUnderAnotherNameAndWithoutItsTrainer) {
  const CommandResult result = job.command(
      {"bench", std::string(OPTLEASE_SOURCE_DIR) + "/configs/quickstart_rehearsed.toml", "--set",
       "job.name=" + job.name(), "--steps", "2", "--warm-up", "1", "--floor-ms", "2"},
      120);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find(job.name() + "-bench"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("ns/param"), std::string::npos) << result.output;
}

TEST_F(Bench, WrongArgumentsAreRefusedBeforeAnythingStarts) {
  const int usage = static_cast<int>(ExitCode::kUsage);
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--parameters", "many"},
                                                {"--parameters", "0"},
                                                {"--steps", "0"},
                                                {"--steps", "x"},
                                                {"--device", "abacus"},
                                                {"--world-size", "0"},
                                                {"--floor-ms", "0"},
                                                {"--no-such-flag"}}) {
    std::vector<std::string> args = {"bench"};
    args.insert(args.end(), wrong.begin(), wrong.end());
    const CommandResult result = job.command(args);
    EXPECT_EQ(result.exit_code, usage) << wrong[0] << ": " << result.output;
    EXPECT_FALSE(result.output.empty());
  }
  const CommandResult key = job.command(words({"--set", "offload.chunk=1"}));
  EXPECT_EQ(key.exit_code, static_cast<int>(ExitCode::kBadConfiguration)) << key.output;
  EXPECT_NE(key.output.find("offload.chunk"), std::string::npos) << key.output;
  const CommandResult file = job.command({"bench", "/nonexistent/job.toml"});
  EXPECT_EQ(file.exit_code, static_cast<int>(ExitCode::kIo)) << file.output;
  const CommandResult large =
      job.command(words({"--parameters", "1Ti", "--set", "offload.chunk_size_mb=1024"}));
  EXPECT_EQ(large.exit_code, static_cast<int>(ExitCode::kNoResources)) << large.output;
}

TEST_F(Bench, InterruptedInTheFloorItLeavesNothing) {
  const CommandResult result =
      disturbed({"--floor-ms", "50000"}, "optlease-floor", [&](pid_t) { interrupt(); });
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kInterrupted)) << result.output;
}

TEST_F(Bench, InterruptedInTheJobItLeavesNothing) {
  const CommandResult result =
      disturbed({"--steps", "1000", "--parameters", "2Mi", "--floor-ms", "2"}, "optlease-gpu-actor",
                [&](pid_t) { interrupt(); });
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kInterrupted)) << result.output;
}

TEST_F(Bench, AKilledFloorIsAnErrorInWords) {
  const CommandResult result = disturbed({"--floor-ms", "50000", "--world-size", "2"},
                                         "optlease-floor", [](pid_t pid) { kill(pid, SIGKILL); });
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kInternal)) << result.output;
  EXPECT_NE(result.output.find("floor process of rank"), std::string::npos) << result.output;
}

TEST_F(Bench, AFloorThatIsStoppedIsNamedAndEndsTheBench) {
  const CommandResult result =
      disturbed({"--floor-ms", "10"}, "optlease-floor", [](pid_t pid) { kill(pid, SIGSTOP); });
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kTimeout)) << result.output;
  EXPECT_NE(result.output.find("rank 0, process"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("stopped"), std::string::npos) << result.output;
  EXPECT_TRUE(pids_of("optlease-floor").empty());
}

TEST_F(Bench, AKilledLaunchersFloorEndsWithIt) {
  const CommandResult result = disturbed({"--floor-ms", "50000"}, "optlease-floor", [&](pid_t) {
    for (const pid_t pid : pids_of("optlease" + std::string(1, '\0') + "bench")) {
      kill(pid, SIGKILL);
    }
  });
  EXPECT_EQ(result.signal, SIGKILL);
  const Deadline deadline = Deadline::after_ms(10'000);
  while (!pids_of("optlease-floor").empty() && !deadline.passed()) poll(nullptr, 0, 5);
}

}  // namespace
}  // namespace optlease
