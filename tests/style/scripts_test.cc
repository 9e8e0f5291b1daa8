// What the shell scripts say and refuse, without what they build or run; and the build itself.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;
const std::string kRoot = OPTLEASE_SOURCE_DIR;

struct Outcome {
  int code = -1;
  std::string output;  // stdout and stderr
};

Outcome run(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen(("exec 2>&1; cd '" + kRoot + "'; " + command).c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t got = 0; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    outcome.output.append(buffer, got);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

bool has_gpu() {
  for (const auto& entry : fs::directory_iterator("/dev")) {
    const std::string name = entry.path().filename();
    if (name == "dxg") return true;
    if (name.starts_with("nvidia") && name.size() > 6 && isdigit(name[6]) != 0) return true;
  }
  return false;
}

TEST(Scripts, OfTheGpuEndInWordsBeforeTheyBuildWhereThereIsNone) {
  if (has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  const bool built_before = fs::exists(kRoot + "/build/gpu");
  for (const std::string script : {"run.sh", "jobs.sh"}) {
    const Outcome outcome = run("bash tests/gpu/" + script);
    EXPECT_EQ(outcome.code, 14) << outcome.output;
    EXPECT_EQ(outcome.output.find(script + ": no GPU on this machine"), 0u) << outcome.output;
    EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1) << "one line, and no more";
  }
  EXPECT_EQ(fs::exists(kRoot + "/build/gpu"), built_before);
}

TEST(Scripts, TheQuickstartInstallsNothingThatOnlyTestsNeed) {
  const Outcome programs = run("bash tests/install_dependencies.sh --programs --list");
  const Outcome all = run("bash tests/install_dependencies.sh --list");
  EXPECT_EQ(programs.code, 0) << programs.output;
  EXPECT_EQ(all.code, 0) << all.output;
  EXPECT_EQ(all.output.find(programs.output), 0u) << "the tests need all that the programs need";
  for (const char* package :
       {"libgtest-dev", "libgmock-dev", "libbenchmark-dev", "clang-tidy", "libclang-rt-dev"}) {
    EXPECT_EQ(programs.output.find(package), std::string::npos) << package;
    EXPECT_NE(all.output.find(package), std::string::npos) << package;
  }
  EXPECT_NE(programs.output.find("libzmq3-dev\n"), std::string::npos);
  EXPECT_EQ(run("grep -c 'install_dependencies.sh --programs$' launcher/quickstart.sh").code, 0);
  EXPECT_EQ(run("bash tests/install_dependencies.sh --everything").code, 2);
}

TEST(Scripts, OfTheFuzzersSayWhatTheyDoNotHave) {
  const Outcome unknown = run("bash tests/fuzz/run.sh --only nothing_fuzz");
  EXPECT_EQ(unknown.code, 2) << unknown.output;
  EXPECT_NE(unknown.output.find("there are message_fuzz "), std::string::npos) << unknown.output;
  EXPECT_EQ(run("bash tests/fuzz/run.sh --for-ever").code, 2);
  // Only what the script needs before it builds is found there, and no clang++.
  const Outcome bare = run(
      "folder=$(mktemp -d); for tool in bash dirname nproc; do ln -s $(command -v $tool) $folder; "
      "done; PATH=$folder bash tests/fuzz/run.sh; code=$?; rm -r $folder; exit $code");
  EXPECT_EQ(bare.code, 1) << bare.output;
  EXPECT_NE(bare.output.find("tests/run.sh --no-fuzz"), std::string::npos) << bare.output;
  const Outcome help = run("bash tests/run.sh --help");
  EXPECT_NE(help.output.find("--no-fuzz"), std::string::npos) << help.output;
}

std::string text_of(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Whoever configures again must not build anew what a running job executes.
TEST(Build, ASecondConfigureChangesNoCommandLine) {
  char build[] = "/tmp/optlease-configure-XXXXXX";
  ASSERT_NE(mkdtemp(build), nullptr);
  const std::string configure =
      std::string("cmake -S . -B ") + build +
      " -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DOPTLEASE_CUDA=OFF -DOPTLEASE_TESTS=OFF";
  const Outcome first = run(configure);
  const std::string before = text_of(fs::path(build) / "compile_commands.json");
  const Outcome second = run(configure);
  const std::string after = text_of(fs::path(build) / "compile_commands.json");
  fs::remove_all(build);
  ASSERT_EQ(first.code, 0) << first.output;
  ASSERT_EQ(second.code, 0) << second.output;
  EXPECT_NE(before.find("socket.cc"), std::string::npos);
  EXPECT_EQ(before, after);
}

}  // namespace
