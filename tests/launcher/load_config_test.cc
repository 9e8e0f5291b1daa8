// load_config: what needs the file itself, or a plan of it.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/launcher/config_fixture.h"
#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

// What load_config says of a file with this text.
std::string load_error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const testing_support::TempDirectory directory;
  const std::string path = directory.path() + "/job.toml";
  std::ofstream(path) << text;
  const Result<LoadedConfig> loaded = load_config(path, overrides);
  if (loaded.is_ok()) return "";
  EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidArgument);
  const std::string message = loaded.status().message();
  return message.starts_with(path) ? message.substr(directory.path().size() + 1) : message;
}

// The arithmetic of the plan shows it, and the key's place is said all the same.
TEST(LoadConfig, RefusesMoreChunksThanATableHoldsAtTheChunkSize) {
  const std::string huge = "[offload]\nchunk_size_mb = 0.0001\n";
  const std::string elements = "model.elements=10000000000000";
  const std::string text = load_error(kWholeJob + huge, {elements});
  EXPECT_TRUE(text.starts_with("job.toml:10:17: offload.chunk_size_mb: rank 0 would have "))
      << text;
  const std::string set = load_error(kWholeJob, {elements, "offload.chunk_size_mb=0.0001"});
  EXPECT_TRUE(set.starts_with("--set offload.chunk_size_mb=0.0001: offload.chunk_size_mb: rank 0"))
      << set;
}

TEST(LoadConfig, RefusesTheFirstGroupTooManyAtItsSpace) {
  std::string spaces = "job = { name = \"a\", steps = 10 }\n[ranks]\nworld_size = 1\n";
  spaces += "[gradients]\nsource = \"synthetic\"\n[model]\nparameters = [\n";
  for (int i = 0; i < 9; ++i) {
    const std::string n = std::to_string(i);
    spaces += "  { name = \"w\", shape = [10], space = \"s" + n + "\" },\n";
  }
  spaces += "]\n";
  for (int i = 0; i < 9; ++i) {
    const std::string n = std::to_string(i);
    spaces += "[[spaces]]\nname = \"s" + n + "\"\nlr_scale = 1." + n + "1\n";
  }
  // Line 17 closes the table; each space has three lines.
  const std::string text = load_error(spaces);
  EXPECT_TRUE(text.starts_with("job.toml:44:12: spaces.8.lr_scale: ")) << text;
  EXPECT_NE(text.find("9 different hyper-parameter groups"), std::string::npos) << text;
}

TEST(LoadConfig, RefusesAModelWithoutElementsAtItsTable) {
  const std::string text = load_error(
      "job = { name = \"a\", steps = 10 }\n[ranks]\nworld_size = 1\n[gradients]\n"
      "source = \"synthetic\"\n[model]\nparameters = [{ name = \"w\", shape = [0] }]\n");
  EXPECT_TRUE(text.starts_with("job.toml:7:14: model.parameters: ")) << text;
  EXPECT_NE(text.find("the model is empty"), std::string::npos) << text;
}

TEST(LoadConfig, KnowsWhereTheReplayedFilesAreNamed) {
  const testing_support::TempDirectory directory;
  const std::string path = directory.path() + "/job.toml";
  std::ofstream(path) << "job = { name = \"a\", steps = 10 }\nranks = { world_size = 1 }\n"
                         "model = { elements = 10 }\n[gradients]\nsource = \"replay\"\n"
                         "replay_path = \"g.{step}\"\n";
  const Result<LoadedConfig> loaded = load_config(path);
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().text();
  EXPECT_EQ(loaded.value().replay_place, path + ":6:15");
}

TEST(LoadConfig, SaysWhichFileIsNotThere) {
  const Result<LoadedConfig> loaded = load_config("/no/such/job.toml");
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kIo);
  EXPECT_NE(loaded.status().message().find("/no/such/job.toml"), std::string::npos);
  EXPECT_EQ(load_config("/").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace optlease
