// The real program: its help, its refusals and its exit codes, where no job runs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "actors/runtime/exit_code.h"
#include "actors/runtime/monitor_defaults.h"
#include "launcher/process.h"
#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

struct Outcome {
  int code = -1;
  std::string output;  // stdout and stderr
};

class CommandLine : public testing::Test {
 protected:
  Outcome run(std::vector<std::string> words) {
    words.insert(words.begin(), "optlease");
    return run_program(words, {});
  }
  Outcome run_program(std::vector<std::string> words, const std::vector<std::string>& environment) {
    const std::string log = directory_.path() + "/output";
    unlink(log.c_str());
    SpawnRequest request;
    if (!words[0].starts_with('/')) words[0] = std::string(OPTLEASE_BIN_DIR "/") + words[0];
    request.argv = words;
    request.environment = environment;
    request.environment.push_back("XDG_RUNTIME_DIR=" + directory_.path());
    request.log_file = log;
    auto child = spawn(request);
    EXPECT_TRUE(child.is_ok()) << child.status().text();
    if (!child) return {};
    const auto exit = child.value().reap_within(120000);
    EXPECT_TRUE(exit.has_value());
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    if (!exit || exit->by_signal) return {-1, text.str()};
    return {exit->code, text.str()};
  }
  const testing_support::TempDirectory directory_;
};

TEST_F(CommandLine, EveryCommandExplainsItself) {
  for (const char* command : {"run", "plan", "status", "monitor", "restart", "stop", "clean",
                              "digest", "export", "selftest", "bench"}) {
    const Outcome help = run({command, "--help"});
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_NE(help.output.find("Usage"), std::string::npos) << command << ": " << help.output;
  }
}

TEST_F(CommandLine, HelpAndThePageGiveTheSameMeaningOfEachExitCode) {
  std::ifstream page(OPTLEASE_SOURCE_DIR "/docs/OPERATING.md");
  std::vector<std::string> listed;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| ") && std::isdigit(line[2]) != 0) listed.push_back(line);
  }
  std::vector<std::string> expected;
  const std::string help = run({"--help"}).output;
  for (const ExitCode code : all_exit_codes()) {
    expected.push_back(format("| %d | %s | ", static_cast<int>(code), name_of(code)) +
                       meaning_of(code) + " |");
    const std::string line =
        format("%2d  %-18s ", static_cast<int>(code), name_of(code)) + meaning_of(code) + "\n";
    EXPECT_NE(help.find(line), std::string::npos) << line << help;
  }
  EXPECT_EQ(listed, expected);
}

TEST_F(CommandLine, HelpNamesTheDefaultsOfTheMonitorThatItStarts) {
  for (const Outcome& help :
       {run({"monitor", "--help"}), run_program({"optlease-monitor", "--help"}, {})}) {
    EXPECT_NE(help.output.find(format("=%d\n", kMonitorIntervalMs)), std::string::npos)
        << help.output;
    EXPECT_NE(help.output.find(format("=%d\n", kMonitorTimeoutMs)), std::string::npos)
        << help.output;
  }
}

TEST_F(CommandLine, VersionIsOneLine) {
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.output.find("optlease "), 0u) << version.output;
}

TEST_F(CommandLine, WrongUsageIsCodeTwo) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{},
        {"dance"},
        {"run"},
        {"restart", "job"},
        {"restart", "job", "--rank", "-1"},
        {"run", "x.toml", "--resume", "--fresh"},
        {"export", "job"},
        {"export", "job", "--out", "x", "--dtype", "f64"}}) {
    EXPECT_EQ(run(words).code, 2) << (words.empty() ? "(none)" : words[0]);
  }
}

TEST_F(CommandLine, AUsageErrorNamesTheHelpOfItsCommand) {
  const std::string hint = "; see `optlease";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"run", "x.toml", "--bogus"},
        {"run"},
        {"stop", "job", "--keep", "--discard"},
        {"restart", "job", "--rank", "-1"},
        {"export", "job", "--out", "x", "--dtype", "f64"}}) {
    const std::string output = run(words).output;
    EXPECT_EQ(output.find("optlease " + words[0] + ": "), 0u) << output;
    EXPECT_TRUE(output.ends_with(hint + " " + words[0] + " --help`\n")) << output;
  }
  for (const std::vector<std::string>& words : {std::vector<std::string>{}, {"dance"}}) {
    const std::string output = run(words).output;
    EXPECT_TRUE(output.ends_with(hint + " --help`\n")) << output;
  }
}

// It is no word about a state that a file or a program is not there.
TEST_F(CommandLine, AbsentFilesAndProgramsAreCodeFifteen) {
  const std::string absent = directory_.path() + "/absent";
  const std::string job = "absent-" + std::to_string(getpid());
  const std::string lonely = directory_.path() + "/lonely/optlease";
  std::filesystem::create_directory(directory_.path() + "/lonely");
  std::filesystem::copy_file(OPTLEASE_BIN_DIR "/optlease", lonely);
  const std::vector<std::string> config = {OPTLEASE_SOURCE_DIR "/configs/synthetic.toml", "--set",
                                           "job.name=" + job, "--set", "model.elements=1000"};
  const auto with_config = [&config](std::vector<std::string> words) {
    words.insert(words.end(), config.begin(), config.end());
    return words;
  };
  for (const auto& [words, named] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"optlease", "selftest", "--golden", absent}, absent},
           {{"optlease", "selftest", "--golden", directory_.path()}, "*.safetensors"},
           {{"optlease", "export", job, "--out", absent + "/x"}, absent + "/x"},
           {{"optlease", "export", job, "--out", directory_.path()}, "is a directory"},
           {{"optlease", "compare", absent, absent}, absent},
           {{"optlease", "digest", absent + ".toml"}, absent + ".toml"},
           {with_config({lonely, "run"}), "optlease-host-store cannot be executed"},
           {with_config({lonely, "bench"}), "optlease-floor cannot be executed"}}) {
    const Outcome outcome = run_program(words, {});
    EXPECT_EQ(outcome.code, 15) << words[1] << ": " << outcome.output;
    EXPECT_NE(outcome.output.find(named), std::string::npos) << outcome.output;
  }
  // Whose program it is decides: a trainer is the user's.
  const std::string path = directory_.path() + "/trainer.toml";
  std::ofstream(path) << "[job]\nname = \"" << job << "\"\nsteps = 3\n[ranks]\nworld_size = 1\n"
                      << "[model]\nelements = 1000\n[trainer]\ncommand = [\"" << absent << "\"]\n";
  const Outcome outcome = run({"run", path});
  EXPECT_EQ(outcome.code, 18) << outcome.output;
  EXPECT_NE(outcome.output.find(absent + " cannot be executed"), std::string::npos)
      << outcome.output;
  EXPECT_EQ(run({"clean", job}).code, 0);
}

TEST_F(CommandLine, ToolsSayWhenAJobDoesNotRun) {
  const std::string job = "no-such-job-" + std::to_string(getpid());
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"status", job}, {"stop", job}, {"restart", job, "--rank", "0"}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 16) << words[0] << ": " << outcome.output;
    EXPECT_NE(outcome.output.find(job), std::string::npos);
  }
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"digest", job},
        {"export", job, "--out", directory_.path() + "/x"}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 7) << words[0];
    for (const std::string& part :
         {"optlease " + words[0] + ": job " + job + " has no state on this node",
          std::string("`optlease status` lists")}) {
      EXPECT_NE(outcome.output.find(part), std::string::npos) << outcome.output;
    }
  }
}

TEST_F(CommandLine, BadJobNamesAreRefusedInWords) {
  const Outcome outcome = run({"status", "no job name"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.output.find("no job name"), std::string::npos);
}

TEST_F(CommandLine, AMissingOrWrongConfigurationIsRefusedBeforeAnythingStarts) {
  EXPECT_NE(run({"run", directory_.path() + "/absent.toml"}).code, 0);
  const std::string path = directory_.path() + "/wrong.toml";
  std::ofstream(path) << "[job]\nname = \"x\"\nunknown_key = 1\n";
  const Outcome outcome = run({"run", path});
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_NE(outcome.output.find("unknown_key"), std::string::npos);
  EXPECT_EQ(run({"plan", path}).code, 3);
}

TEST_F(CommandLine, AWrongInstructionSetIsRefusedByEveryProgramBeforeAnythingStarts) {
  const std::string config = OPTLEASE_SOURCE_DIR "/configs/synthetic.toml";
  const std::string report = directory_.path() + "/report.json";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"optlease", "status"},
        {"optlease", "selftest"},
        {"optlease", "plan", config},
        {"optlease", "run", config, "--report", report},
        {"optlease-host-store", "--job", "j"},
        {"optlease-gpu-actor", "--job", "j", "--rank", "0"},
        {"optlease-monitor", "--job", "j", "--once"},
        {"optlease-trainer", "--text", OPTLEASE_SOURCE_DIR "/docs"}}) {
    const Outcome outcome = run_program(words, {"OPTLEASE_ISA=avx9"});
    EXPECT_EQ(outcome.code, 3) << words[0] << ": " << outcome.output;
    EXPECT_NE(outcome.output.find("OPTLEASE_ISA=avx9: allowed are generic, v3 and v4"),
              std::string::npos)
        << words[0] << ": " << outcome.output;
    EXPECT_EQ(run_program(words, {"OPTLEASE_ISA=avx9"}).output.find("started"), std::string::npos);
  }
  const auto written = nlohmann::json::parse(std::ifstream(report), nullptr, false);
  EXPECT_EQ(written["status"], "refused") << "a refused run has a report";
  EXPECT_EQ(run_program({"optlease", "status"}, {"OPTLEASE_ISA=generic"}).code, 0);
}

TEST_F(CommandLine, StatusListsJobsAsJson) {
  const Outcome outcome = run({"status", "--json"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(nlohmann::json::parse(outcome.output)["jobs"].is_array());
}

TEST_F(CommandLine, SelftestComparesTheGoldenVectors) {
  const Outcome outcome =
      run({"selftest", "--golden", OPTLEASE_SOURCE_DIR "/tests/data/golden", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const auto out = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(out["status"], "passed");
  EXPECT_GE(out["results"].size(), 7u);
}

TEST_F(CommandLine, SelftestFailsForAFileThatIsNone) {
  const std::string path = directory_.path() + "/broken.safetensors";
  std::ofstream(path) << "not a tensor file";
  EXPECT_EQ(run({"selftest", "--golden", path}).code, 1);
}

TEST_F(CommandLine, CleanOfAJobThatLeftNothingSaysSo) {
  const std::string job = "no-such-job-" + std::to_string(getpid());
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"clean", job}, {"clean", "--dry-run", job}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 7) << outcome.output;
    EXPECT_NE(outcome.output.find("there is nothing of a job " + job), std::string::npos)
        << outcome.output;
  }
  EXPECT_EQ(run({"clean", "--dry-run"}).code, 0) << "all jobs' leftovers may be none";
}

// It is in no range, and compares as if it were in each.
TEST_F(CommandLine, NoTimeIsNoNumber) {
  for (const char* command : {"status", "stop", "digest"}) {
    const Outcome outcome = run({command, "no-such-job", "--timeout-s", "nan"});
    EXPECT_EQ(outcome.code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find("'nan' is no number"), std::string::npos) << outcome.output;
  }
}

}  // namespace
}  // namespace optlease
