// The commands on a live job: status, restart, digest, export, monitor, stop, clean, selftest.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "actors/runtime/exit_code.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

const std::vector<std::string> kLongJob = {"job.steps=100000", "model.elements=60000",
                                           "offload.chunk_size_mb=0.0625"};

// A job that runs until it is stopped.
class LiveJob : public testing::Test {
 protected:
  void SetUp() override {
    job.use("synthetic.toml", kLongJob);
    job.start();
    ASSERT_TRUE(job.wait_for_step(3));
  }
  void TearDown() override {
    if (!job.launcher_alive()) return;
    const CommandResult stopped = job.command({"stop", "{job}"});
    EXPECT_EQ(stopped.exit_code, 0) << stopped.output;
    job.wait(30);
    EXPECT_EQ(job.report()["status"], "stopped") << job.report()["checks"].dump(1);
  }
  SystemJob job{"live"};
};

TEST_F(LiveJob, StatusListsEveryProcess) {
  const Json status = job.status();
  std::multiset<std::string> roles;
  for (const Json& process : status["processes"]) {
    roles.insert(process["role"].get<std::string>());
    EXPECT_GT(process["pid"].get<int>(), 0);
    EXPECT_TRUE(process.contains("incarnation") && process.contains("state") &&
                process.contains("rank"));
  }
  EXPECT_EQ(roles,
            (std::multiset<std::string>{"gpu_actor", "gpu_actor", "host_store", "launcher"}));
}

TEST_F(LiveJob, RestartReplacesTheActorAndTheJobGoesOn) {
  const pid_t before = job.pid_of("gpu_actor", 1);
  const CommandResult restarted = job.command({"restart", "{job}", "--rank", "1"});
  EXPECT_EQ(restarted.exit_code, 0) << restarted.output;
  const pid_t after = job.pid_of("gpu_actor", 1);
  EXPECT_NE(after, before);
  EXPECT_GT(after, 0);
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  EXPECT_TRUE(job.wait_for_step(step + 3));
  EXPECT_NE(job.command({"restart", "{job}", "--rank", "7"}).exit_code, 0);
}

TEST_F(LiveJob, DigestAndExportReadACommittedStepAndLetTheJobGoOn) {
  const CommandResult digest = job.command({"digest", "{job}", "--json"});
  ASSERT_EQ(digest.exit_code, 0) << digest.output;
  EXPECT_TRUE(Json::parse(digest.output)["state_digest"].is_string());
  const std::string file = job.directory() + "/weights.safetensors";
  const CommandResult exported = job.command({"export", "{job}", "--out", file});
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  EXPECT_GT(std::filesystem::file_size(file), 60000u * 4u);
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  EXPECT_TRUE(job.wait_for_step(step + 3)) << "the hold was not released";
}

TEST_F(LiveJob, AToolThatDiesInItsHoldStopsTheJobOnlyForAWhile) {
  // Two at once: the end of the first hold must not end the second.
  setenv("OPTLEASE_KILL_POINT", "hold.taken", 1);
  for (int i = 0; i < 2; ++i) {
    const CommandResult killed = job.command({"digest", "{job}"});
    EXPECT_EQ(killed.signal, SIGKILL) << "it took no hold: " << killed.output;
  }
  unsetenv("OPTLEASE_KILL_POINT");
  // The launcher's answer is as old as its last question to the store: not before it has asked
  // again does it tell where the job stands still.
  poll(nullptr, 0, 1000);
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  poll(nullptr, 0, 1000);
  EXPECT_EQ(job.status()["step_committed"], step) << "nothing was held";
  EXPECT_TRUE(job.wait_for_step(step + 3, 90)) << "a dead tool holds the job for ever";
}

TEST_F(LiveJob, MonitorShowsEveryRankOnceAndAsJson) {
  const CommandResult once = job.command({"monitor", "{job}", "--once"});
  EXPECT_EQ(once.exit_code, 0) << once.output;
  EXPECT_NE(once.output.find("2 of 2 ranks heard"), std::string::npos) << once.output;
  std::multiset<std::string> rows;  // what a line begins with
  std::istringstream lines(once.output);
  for (std::string line, first; std::getline(lines, line);) {
    if (std::istringstream(line) >> first) rows.insert(first);
  }
  EXPECT_EQ(rows.count("0"), 1u) << once.output;
  EXPECT_EQ(rows.count("1"), 1u) << once.output;
  const CommandResult json = job.command({"monitor", "{job}", "--once", "--json"});
  ASSERT_EQ(json.exit_code, 0) << json.output;
  const Json document = Json::parse(json.output, nullptr, false);
  ASSERT_FALSE(document.is_discarded()) << json.output;
  EXPECT_EQ(document["ranks"].size(), 2u);
}

TEST_F(LiveJob, ASecondRunOfTheSameNameIsRefusedAndDisturbsNothing) {
  const CommandResult second =
      job.command({"run", std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml", "--set",
                   "job.name=" + job.name()});
  EXPECT_EQ(second.exit_code, static_cast<int>(ExitCode::kAlreadyRunning)) << second.output;
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  EXPECT_TRUE(job.wait_for_step(step + 3));
}

TEST_F(LiveJob, CleanNeverTouchesALiveJob) {
  SystemJob dead("dead");
  dead.use("synthetic.toml", kLongJob);
  dead.start();
  ASSERT_TRUE(dead.wait_for_step(2));
  kill(dead.launcher_pid(), SIGKILL);
  dead.wait();
  for (int i = 0; i < 500 && !dead.processes().empty(); ++i) poll(nullptr, 0, 10);
  ASSERT_FALSE(dead.segments().empty());
  const CommandResult dry = job.command({"clean", "--dry-run"});
  EXPECT_NE(dry.output.find(dead.name()), std::string::npos) << dry.output;
  EXPECT_FALSE(dead.segments().empty()) << "a dry run removed something";
  const CommandResult clean = job.command({"clean", dead.name()});
  EXPECT_EQ(clean.exit_code, 0) << clean.output;
  EXPECT_TRUE(dead.segments().empty()) << clean.output;
  EXPECT_EQ(job.segments().size(), 6u) << "control, lock, two arenas, two gradient segments";
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  EXPECT_TRUE(job.wait_for_step(step + 3));
}

TEST_F(LiveJob, CleanSparesALiveJobWhoseLockWasDeleted) {
  for (const std::string& segment : job.segments()) {
    if (segment.ends_with(".lock")) std::filesystem::remove(segment);
  }
  const CommandResult listed = job.command({"status"});
  EXPECT_NE(listed.output.find(job.name() + std::string(32 - job.name().size(), ' ') + " live"),
            std::string::npos)
      << listed.output;
  const CommandResult clean = job.command({"clean", "{job}"});
  EXPECT_NE(clean.output.find("it answers"), std::string::npos) << clean.output;
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  EXPECT_TRUE(job.wait_for_step(step + 3));
}

// Seen from another run directory there is no launcher's socket either: the store's mark is left.
TEST_F(LiveJob, ARunFromAnotherRunDirectoryTakesNoJobWhoseLockWasDeleted) {
  for (const std::string& segment : job.segments()) {
    if (segment.ends_with(".lock")) std::filesystem::remove(segment);
  }
  SystemJob stranger("elsewhere");
  const std::string config = std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml";
  for (const char* flag : {"--fresh", "--resume"}) {
    const CommandResult run =
        stranger.command({"run", config, "--set", "job.name=\"" + job.name() + "\"", flag});
    EXPECT_EQ(run.exit_code, static_cast<int>(ExitCode::kAlreadyRunning)) << run.output;
  }
  const CommandResult clean = stranger.command({"clean", job.name()});
  EXPECT_NE(clean.output.find("it answers"), std::string::npos) << clean.output;
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  EXPECT_TRUE(job.wait_for_step(step + 3));
}

// Fault case 8, to the end: the mapped state is saved.
TEST_F(LiveJob, AStateWhoseNamesWereRemovedIsSavedAtTheEndAndGoesOn) {
  const std::string digest_when_kept = [this] {
    for (const std::string& segment : job.segments()) {
      if (segment.ends_with(".r1") || segment.ends_with(".ctl")) std::filesystem::remove(segment);
    }
    const CommandResult stopped = job.command({"stop", "{job}", "--keep"});
    EXPECT_EQ(stopped.exit_code, 0) << stopped.output;
    job.wait(30);
    return job.report()["state_digest"].is_string()
               ? job.report()["state_digest"].get<std::string>()
               : "";
  }();
  ASSERT_FALSE(digest_when_kept.empty()) << job.report().dump(1);
  EXPECT_NE(job.report()["ending_text"].get<std::string>().find("is put back"), std::string::npos)
      << job.report()["ending_text"];
  EXPECT_EQ(job.report()["status"], "stopped");
  const CommandResult digest = job.command({"digest", "{job}", "--json"});
  ASSERT_EQ(digest.exit_code, 0) << digest.output;
  EXPECT_EQ(Json::parse(digest.output)["state_digest"], digest_when_kept);
  const int64_t step = job.report()["steps_committed"].get<int64_t>();
  job.start({"--resume"});
  EXPECT_TRUE(job.wait_for_step(step + 3));
}

// Whatever stands under the job's names at its end and is not its own stays as it is.
TEST_F(LiveJob, AnothersFileInThePlaceOfALostSegmentIsNeitherReadNorRemoved) {
  std::string taken;
  for (const std::string& segment : job.segments()) {
    if (!segment.ends_with(".r1")) continue;
    taken = segment;
    std::filesystem::remove(segment);
    std::ofstream(segment) << "somebody else's";
  }
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  const CommandResult ended = job.wait(30);
  EXPECT_EQ(ended.exit_code, static_cast<int>(ExitCode::kCorruptState)) << ended.output;
  EXPECT_EQ(job.report()["status"], "failed");
  EXPECT_TRUE(job.report()["state_digest"].is_null());
  std::string text;
  std::getline(std::ifstream(taken), text);
  EXPECT_EQ(text, "somebody else's");
  for (const std::string& segment : job.segments()) std::filesystem::remove(segment);
}

TEST_F(LiveJob, AnActorWhoseArenaWasRemovedEndsTheJobInWordsAndTheStateIsPutBack) {
  for (const std::string& segment : job.segments()) {
    if (segment.ends_with(".r1")) std::filesystem::remove(segment);
  }
  kill(job.pid_of("gpu_actor", 1), SIGKILL);
  const CommandResult ended = job.wait(60);
  EXPECT_EQ(ended.exit_code, static_cast<int>(ExitCode::kCorruptState)) << ended.output;
  EXPECT_NE(ended.output.find(".r1: No such file"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("is put back"), std::string::npos) << ended.output;
  const int64_t step = job.report()["steps_committed"].get<int64_t>();
  job.start({"--resume"});
  EXPECT_TRUE(job.wait_for_step(step + 3));
}

TEST_F(LiveJob, TheListOfJobsKnowsTheStepOfALiveOne) {
  const CommandResult listed = job.command({"status", "--json"});
  ASSERT_EQ(listed.exit_code, 0) << listed.output;
  const Json list = Json::parse(listed.output);
  for (const Json& each : list["jobs"]) {
    if (each["job"] != job.name()) continue;
    EXPECT_EQ(each["state"], "live");
    EXPECT_GE(each["step_committed"].get<int64_t>(), 3);
    return;
  }
  ADD_FAILURE() << listed.output;
}

TEST_F(LiveJob, ARefusedRunReplacesTheReportOfAnEarlierOne) {
  const std::string config = std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml";
  const std::string report = job.directory() + "/earlier.json";
  const std::vector<std::vector<std::string>> refused = {
      {"run", config, "--set", "job.name=\"" + job.name() + "\"", "--report", report},
      {"run", config, "--set", "job.steps=-1", "--report", report}};
  for (const std::vector<std::string>& arguments : refused) {
    std::ofstream(report) << R"({"status": "passed"})";
    const CommandResult run = job.command(arguments);
    EXPECT_NE(run.exit_code, 0);
    const Json written = Json::parse(std::ifstream(report));
    EXPECT_EQ(written["status"], "refused");
    EXPECT_EQ(written["exit_code"], run.exit_code);
    EXPECT_NE(run.output.find(written["ending_text"].get<std::string>()), std::string::npos);
  }
  EXPECT_EQ(job.command({"run", config, "--report", ""}).exit_code,
            static_cast<int>(ExitCode::kUsage));
}

// Its run directory stays, and nobody will ever answer there.
TEST(Command, MonitorOfAJobThatIsDeadSaysSoAndEnds) {
  SystemJob job("dead");
  job.use("synthetic.toml", {"job.steps=100000", "model.elements=60000"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(2));
  kill(job.launcher_pid(), SIGKILL);
  job.wait(30);
  const CommandResult followed = job.command({"monitor", "{job}", "--timeout-ms", "500"});
  EXPECT_FALSE(followed.timed_out);
  EXPECT_EQ(followed.exit_code, static_cast<int>(ExitCode::kNotRunning)) << followed.output;
  EXPECT_NE(followed.output.find("is it running?"), std::string::npos) << followed.output;
  EXPECT_EQ(job.command({"clean", "{job}", "--include-kept"}).exit_code, 0);
}

TEST(Command, SelftestPassesOnTheGoldenVectorsAndFailsOnAlteredOnes) {
  SystemJob job("selftest");
  const std::string golden = std::string(OPTLEASE_SOURCE_DIR) + "/tests/data/golden";
  const CommandResult good = job.command({"selftest", "--golden", golden, "--json"}, 60);
  EXPECT_EQ(good.exit_code, 0) << good.output;
  const std::string altered = job.directory() + "/adamw_fp32.safetensors";
  std::filesystem::copy_file(golden + "/adamw_fp32.safetensors", altered);
  std::fstream file(altered, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(altered)) - 5);
  file.put('\x7f');
  file.close();
  EXPECT_NE(job.command({"selftest", "--golden", altered}).exit_code, 0);
}

// Half a document, or none, is no success for whoever asked for one.
TEST(Command, LosingStandardOutputIsAnError) {
  const std::string program = std::string(OPTLEASE_BIN_DIR) + "/optlease";
  const std::string config = std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml";
  const std::string command = program + " plan " + config + " --json > /dev/full 2> /dev/null";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kIo));
}

TEST(Command, AReportThatCannotBeWrittenIsRefusedBeforeAnythingStarts) {
  SystemJob job("report-path");
  const std::string config = std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml";
  const std::vector<std::string> paths = {job.directory(), job.directory() + "/absent/report.json"};
  for (const std::string& path : paths) {
    const CommandResult result =
        job.command({"run", config, "--set", "job.name=\"" + job.name() + "\"", "--report", path});
    EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kIo)) << result.output;
    EXPECT_NE(result.output.find(path == job.directory() ? path : job.directory() + "/absent"),
              std::string::npos)
        << result.output;
    EXPECT_TRUE(job.segments().empty());
  }
}

TEST(Command, AMissingJobFileIsAFileThatCannotBeRead) {
  SystemJob job("no-file");
  for (const char* command : {"plan", "run", "digest"}) {
    const CommandResult result = job.command({command, job.directory() + "/absent.toml"});
    EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kIo)) << command << result.output;
    EXPECT_NE(result.output.find("absent.toml"), std::string::npos) << result.output;
  }
}

TEST(Command, CleanOfAnEmptyNameIsRefused) {
  SystemJob job("empty-name");
  EXPECT_EQ(job.command({"clean", "", "--dry-run"}).exit_code,
            static_cast<int>(ExitCode::kBadConfiguration));
}

TEST_F(LiveJob, ARunOfItsNameIsRefusedAlsoWithoutItsLock) {
  const std::string lock =
      "/dev/shm/optlease." + std::to_string(getuid()) + "." + job.name() + ".lock";
  ASSERT_TRUE(std::filesystem::remove(lock));
  const std::string config = std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml";
  for (const char* mode : {"--resume", "--fresh"}) {
    const CommandResult second =
        job.command({"run", config, "--set", "job.name=\"" + job.name() + "\"", mode});
    EXPECT_EQ(second.exit_code, static_cast<int>(ExitCode::kAlreadyRunning)) << second.output;
  }
  EXPECT_FALSE(std::filesystem::exists(lock)) << "the refused run left a lock of its own";
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  EXPECT_TRUE(job.wait_for_step(step + 3));
}

TEST(Command, EveryCommandHasHelp) {
  SystemJob job("help");
  EXPECT_EQ(job.command({"--help"}).exit_code, 0);
  for (const char* name : {"run", "plan", "status", "monitor", "restart", "stop", "clean", "digest",
                           "export", "selftest", "compare", "bench"}) {
    const CommandResult help = job.command({name, "--help"});
    EXPECT_EQ(help.exit_code, 0) << name;
    EXPECT_GT(help.output.size(), 40u) << name;
  }
}

TEST(Command, AJobThatDoesNotRunIsSaidSo) {
  SystemJob job("nobody");
  const struct {
    std::vector<std::string> words;
    ExitCode code;
  } commands[] = {
      {{"status", "nobody-runs-this"}, ExitCode::kNotRunning},
      {{"stop", "nobody-runs-this"}, ExitCode::kNotRunning},
      {{"restart", "nobody-runs-this", "--rank", "0"}, ExitCode::kNotRunning},
      {{"monitor", "nobody-runs-this", "--once"}, ExitCode::kNotRunning},
      // These read a state, also one that nobody runs: there is none.
      {{"digest", "nobody-runs-this"}, ExitCode::kStateAbsent},
      {{"export", "nobody-runs-this", "--out", job.directory() + "/x"}, ExitCode::kStateAbsent}};
  for (const auto& [words, code] : commands) {
    const CommandResult result = job.command(words);
    EXPECT_EQ(result.exit_code, static_cast<int>(code)) << words[0] << ": " << result.output;
    EXPECT_NE(result.output.find("nobody-runs-this"), std::string::npos)
        << words[0] << ": " << result.output;
  }
}

}  // namespace
}  // namespace optlease
