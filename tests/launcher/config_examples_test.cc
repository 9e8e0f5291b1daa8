// Every file in configs/ is a whole run; and models that come from files.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "actors/tensor_files/safetensors.h"
#include "launcher/config_file.h"
#include "launcher/memory_contract.h"
#include "launcher/replay_files.h"
#include "launcher/run_plan.h"
#include "tests/launcher/config_fixture.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

const fs::path kConfigs = fs::path(OPTLEASE_SOURCE_DIR) / "configs";

JobPlan plan_of(const std::string& file, std::vector<std::string>* notes = nullptr) {
  // A build without CUDA refuses its jobs; everything else of the file holds there too.
  std::vector<std::string> overrides;
  if (file == "cuda.toml" && !cuda_is_built_in()) overrides.push_back("ranks.device=cpu");
  const Result<LoadedConfig> loaded = load_config((kConfigs / file).string(), overrides);
  EXPECT_TRUE(loaded.is_ok()) << loaded.status().text();
  if (!loaded.is_ok()) return {};
  Result<JobPlan> plan = make_plan(loaded.value().config, notes);
  EXPECT_TRUE(plan.is_ok()) << plan.status().text();
  return plan.is_ok() ? std::move(plan).value() : JobPlan();
}

TEST(Configs, AllLoadAndPlanAndAreListedInTheReadme) {
  std::ifstream readme(kConfigs / "README.md");
  const std::string text{std::istreambuf_iterator<char>(readme), {}};
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(kConfigs)) {
    if (entry.path().extension() != ".toml") continue;
    const std::string file = entry.path().filename().string();
    ++count;
    const JobPlan plan = plan_of(file);
    EXPECT_GT(plan.steps, 0) << file;
    EXPECT_EQ(plan.segment.world_size, 2u) << file;
    EXPECT_NE(text.find("| `" + file + "` |"), std::string::npos) << file;
    // What the children read must be what was planned.
    const Result<JobPlan> again = job_plan_from_json(to_json(plan));
    ASSERT_TRUE(again.is_ok()) << file << ": " << again.status().text();
    EXPECT_EQ(to_json(again.value()), to_json(plan)) << file;
    // Small enough for the shared memory that a container has unless told otherwise.
    EXPECT_LT(needs_of(plan).shared_memory_bytes(), 512ull << 20) << file;
  }
  EXPECT_GE(count, 5u);
}

TEST(Configs, QuickstartStreamsInSeveralWindowsAndRunsTheTrainer) {
  const JobPlan plan = plan_of("quickstart.toml");
  EXPECT_GE(arena_of(plan.segment, Rank(0)).chunks.size(), 4u);
  EXPECT_EQ(plan.segment.spaces[0].elements, 256u * 16 + 128 * 256 + 128 + 256 * 128 + 256);
  ASSERT_GE(plan.trainer.command.size(), 3u);
  EXPECT_EQ(plan.trainer.command[0], "optlease-trainer");
  EXPECT_TRUE(fs::is_directory(plan.trainer.command[2])) << plan.trainer.command[2];
}

TEST(Configs, TheRehearsedQuickstartIsTheQuickstartWithThreeKills) {
  JobPlan plain = plan_of("quickstart.toml");
  JobPlan rehearsed = plan_of("quickstart_rehearsed.toml");
  ASSERT_EQ(rehearsed.rehearsals.size(), 3u);
  EXPECT_EQ(rehearsed.rehearsals[0].role, Role::kGpuActor);
  EXPECT_EQ(rehearsed.rehearsals[1].role, Role::kHostStore);
  EXPECT_EQ(rehearsed.rehearsals[2].role, Role::kTrainer);
  rehearsed.rehearsals.clear();
  rehearsed.segment.job_name = plain.segment.job_name;
  EXPECT_EQ(to_json(plain), to_json(rehearsed));
}

TEST(Configs, MoeHasADenseSpaceOverBothRanksAndAnExpertOnEach) {
  const JobPlan plan = plan_of("moe.toml");
  ASSERT_EQ(plan.segment.spaces.size(), 3u);
  EXPECT_EQ(plan.segment.spaces[0].members, (std::vector<Rank>{Rank(0), Rank(1)}));
  EXPECT_EQ(plan.segment.spaces[1].members, std::vector<Rank>{Rank(0)});
  EXPECT_EQ(plan.segment.spaces[2].members, std::vector<Rank>{Rank(1)});
  EXPECT_EQ(plan.segment.spaces[1].elements, 2u * 256 * 64);
  ASSERT_EQ(plan.optimizer.groups.size(), 2u);
  EXPECT_EQ(plan.segment.spaces[0].group, 0u);
  EXPECT_EQ(plan.segment.spaces[1].group, 1u);
  EXPECT_EQ(plan.segment.spaces[2].group, 1u);
  EXPECT_DOUBLE_EQ(plan.optimizer.groups[1].lr, 1.5e-4);
  EXPECT_EQ(plan.optimizer.groups[1].weight_decay, 0.0);
}

TEST(Configs, ReplayTakesItsTensorTableFromTheModelFileAndHasItsGradients) {
  const JobPlan plan = plan_of("replay.toml");
  ASSERT_EQ(plan.segment.spaces[0].tensors.size(), 3u);
  EXPECT_EQ(plan.segment.spaces[0].tensors[0].name, "head.weight");
  EXPECT_EQ(plan.segment.spaces[0].tensors[0].shape, (std::vector<uint64_t>{8, 24}));
  for (int64_t step = 1; step <= plan.steps; ++step) {
    std::string path = plan.gradients.replay_path;
    path.replace(path.find("{step}"), 6, std::to_string(step));
    const Result<SafetensorsReader> file = SafetensorsReader::open(path);
    ASSERT_TRUE(file.is_ok()) << file.status().text();
    for (const TensorSpec& tensor : plan.segment.spaces[0].tensors) {
      const FileTensor* found = file.value().find(tensor.name);
      ASSERT_NE(found, nullptr) << path << " " << tensor.name;
      EXPECT_EQ(found->shape, tensor.shape) << path;
    }
  }
}

// A directory of this test alone, with a job file in it.
class ModelFiles : public ::testing::Test {
 protected:
  ModelFiles() {
    std::string name = (fs::temp_directory_path() / "optlease_config_XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~ModelFiles() override { fs::remove_all(directory_); }

  void write_model(const std::string& file, std::vector<FileTensor> table, size_t bytes) {
    Result<SafetensorsWriter> writer =
        SafetensorsWriter::begin((directory_ / file).string(), {}, std::move(table));
    ASSERT_TRUE(writer.is_ok()) << writer.status().text();
    const std::string zeros(bytes, '\0');
    ASSERT_TRUE(writer.value().append(zeros.data(), zeros.size()).is_ok());
    ASSERT_TRUE(writer.value().finish().is_ok());
  }
  Result<LoadedConfig> load(const std::string& model_keys) {
    std::string text = kWholeJob;
    text.replace(text.find("elements = 1000"), 15, model_keys);
    std::ofstream(directory_ / "job.toml") << text;
    return load_config((directory_ / "job.toml").string());
  }
  static FileTensor tensor(const char* name, const char* dtype, std::vector<uint64_t> shape) {
    FileTensor result;
    result.name = name;
    result.dtype = dtype;
    result.shape = std::move(shape);
    return result;
  }

  fs::path directory_;
};

TEST_F(ModelFiles, GiveTheTensorTableWhereTheJobFileHasNone) {
  write_model("m.safetensors", {tensor("w", "BF16", {2, 3}), tensor("b", "F32", {})}, 16);
  const Result<LoadedConfig> loaded = load("source = \"m.safetensors\"");
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().text();
  ASSERT_EQ(loaded.value().config.parameters.size(), 2u);
  EXPECT_EQ(loaded.value().config.parameters[0].name, "b");
  EXPECT_TRUE(loaded.value().config.parameters[0].shape.empty());
  EXPECT_EQ(loaded.value().config.parameters[1].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(loaded.value().config.model_source, (directory_ / "m.safetensors").string());
}

TEST_F(ModelFiles, AreRefusedWhereTheyAreMissing) {
  const Result<LoadedConfig> loaded = load("source = \"absent.safetensors\"");
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_NE(loaded.status().message().find("job.toml:6:10: model.source: "), std::string::npos)
      << loaded.status().message();
  EXPECT_NE(loaded.status().message().find("absent.safetensors"), std::string::npos);
}

TEST_F(ModelFiles, AreRefusedWhereTheyContradictTheTensorTable) {
  write_model("m.safetensors", {tensor("weight", "F32", {2, 3}), tensor("b", "F32", {4})}, 40);
  const Result<LoadedConfig> loaded = load(
      "source = \"m.safetensors\"\nparameters = [{ name = \"wieght\", shape = [2, 3] }, "
      "{ name = \"b\", shape = [5] }]");
  ASSERT_FALSE(loaded.is_ok());
  const std::string text = loaded.status().message();
  EXPECT_NE(text.find("parameter 'wieght'"), std::string::npos) << text;
  EXPECT_NE(text.find("is not there; did you mean 'weight'?"), std::string::npos) << text;
  EXPECT_NE(text.find("has shape [4], the configuration says [5]"), std::string::npos) << text;
}

TEST_F(ModelFiles, AreRefusedWhereATensorIsNoParameter) {
  write_model("m.safetensors", {tensor("ids", "I64", {2})}, 16);
  const Result<LoadedConfig> loaded = load("source = \"m.safetensors\"");
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_NE(loaded.status().message().find("has dtype I64, allowed: F32, BF16, F16"),
            std::string::npos)
      << loaded.status().message();
}

// Recorded gradients: those of the next step must be there and fit.
class ReplayFiles : public ModelFiles {
 protected:
  Result<LoadedConfig> load_replay(const std::string& pattern) {
    std::string text = kWholeJob;
    text.replace(text.find("elements = 1000"), 15, "parameters = [{ name = \"w\", shape = [4] }]");
    text.replace(text.find("\"synthetic\""), 11, "\"replay\"");
    std::ofstream(directory_ / "job.toml") << text + "replay_path = \"" + pattern + "\"\n";
    return load_config((directory_ / "job.toml").string());
  }
  // The words of the refusal; empty where there is none.
  std::string refusal(const std::string& pattern, Step next) {
    const Result<LoadedConfig> loaded = load_replay(pattern);
    EXPECT_TRUE(loaded.is_ok()) << loaded.status().message();
    const Status checked = check_replay_files(loaded.value(), next);
    if (checked.is_ok()) return "";
    EXPECT_EQ(checked.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(checked.message().find("job.toml:9:15: gradients.replay_path: step "),
              std::string::npos)
        << checked.message();
    return checked.message();
  }
};

TEST_F(ReplayFiles, AreRefusedAtTheirKeyWhereTheNextStepsAreMissing) {
  write_model("g.2.safetensors", {tensor("w", "F32", {4})}, 16);
  EXPECT_NE(refusal("g.{step}.safetensors", 1).find("g.1.safetensors"), std::string::npos);
  EXPECT_EQ(refusal("g.{step}.safetensors", 2), "") << "what was replayed may be gone";
  EXPECT_NE(refusal("g.{step}.safetensors", 3), "");
  EXPECT_EQ(refusal("g.{step}.safetensors", 11), "") << "the job is over after step 10";
}

TEST_F(ReplayFiles, AreLookedForOfEveryRank) {
  write_model("g.1.0.safetensors", {tensor("w", "BF16", {4})}, 8);
  EXPECT_NE(refusal("g.{step}.{rank}.safetensors", 1).find("g.1.1.safetensors"), std::string::npos);
  write_model("g.1.1.safetensors", {tensor("w", "F16", {4})}, 8);
  EXPECT_EQ(refusal("g.{step}.{rank}.safetensors", 1), "");
}

TEST_F(ReplayFiles, AreRefusedWhereTheyDoNotFitTheParameters) {
  const struct {
    FileTensor stored;
    size_t bytes;
    const char* words;
  } cases[] = {{tensor("v", "F32", {4}), 16, "tensor 'w' is not there"},
               {tensor("w", "F32", {2, 2}), 16, "tensor 'w' has another shape"},
               {tensor("w", "I64", {4}), 32, "tensor 'w' is I64; only F32, BF16 and F16"}};
  for (const auto& c : cases) {
    write_model("g.1.safetensors", {c.stored}, c.bytes);
    const std::string text = refusal("g.{step}.safetensors", 1);
    EXPECT_NE(text.find(c.words), std::string::npos) << text;
  }
  std::ofstream(directory_ / "g.1.safetensors") << "torn";
  EXPECT_NE(refusal("g.{step}.safetensors", 1), "");
}

}  // namespace
}  // namespace optlease
