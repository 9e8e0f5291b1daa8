#include "launcher/run_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/launcher/config_fixture.h"

namespace optlease {
namespace {

Config config_of(const std::string& added, const std::vector<std::string>& overrides = {}) {
  const Parsed parsed = parse_whole(added, overrides);
  EXPECT_TRUE(parsed.ok) << parsed.text;
  return parsed.config;
}

JobPlan plan_of(const Config& config, std::vector<std::string>* notes = nullptr) {
  Result<JobPlan> plan = make_plan(config, notes);
  EXPECT_TRUE(plan.is_ok()) << plan.status().text();
  return plan.is_ok() ? std::move(plan).value() : JobPlan();
}

bool has_note(const std::vector<std::string>& notes, const std::string& words) {
  for (const std::string& note : notes) {
    if (note.find(words) != std::string::npos) return true;
  }
  return false;
}

TEST(RunPlan, CutsTheModelIntoShardsAndChunks) {
  // 100000 elements over two ranks: 50048 (a multiple of 64) and the rest. A chunk of at most
  // 96 KiB holds 8192 elements, so seven pieces; the even cut is 50048 / 7 -> 7168 elements.
  const JobPlan plan =
      plan_of(config_of("", {"model.elements=100000", "offload.chunk_size_mb=0.09375"}));
  const SpaceSpec& space = plan.segment.spaces[0];
  EXPECT_EQ(space.elements, 100000u);
  EXPECT_EQ(space.shard_elements, 50048u);
  EXPECT_LE(space.chunk_elements, 8192u);
  EXPECT_EQ(space.chunk_elements % kShardAlignElements, 0u);
  const ArenaSpec first = arena_of(plan.segment, Rank(0));
  const ArenaSpec second = arena_of(plan.segment, Rank(1));
  EXPECT_EQ(first.chunks.size(), 7u);
  EXPECT_EQ(first.chunks.back().range.end, 50048u);
  EXPECT_EQ(second.chunks.front().range.begin, 50048u);
  EXPECT_EQ(second.chunks.back().range.end, 100000u);
  EXPECT_EQ(first.slot_count, 7u + 4);
  EXPECT_EQ(first.state_bytes + second.state_bytes, 100000u * 12);
}

TEST(RunPlan, MakesOneChunkAShardForAChunkSizeOfZero) {
  std::vector<std::string> notes;
  const JobPlan plan = plan_of(config_of("", {"offload.chunk_size_mb=0"}), &notes);
  EXPECT_EQ(arena_of(plan.segment, Rank(0)).chunks.size(), 1u);
  EXPECT_TRUE(has_note(notes, "one chunk a shard"));
}

TEST(RunPlan, SaysWhereACeilingCannotHoldOrNeverBinds) {
  // Two ranks of 50000 elements, a chunk and a window a twelfth of a MiB or less, three in flight.
  const auto notes_of = [](const char* ceiling) {
    std::vector<std::string> notes;
    const JobPlan plan =
        plan_of(config_of("", {"model.elements=100000", "offload.chunk_size_mb=0.09375",
                               std::string("offload.in_flight_mb=") + ceiling}),
                &notes);
    EXPECT_EQ(static_cast<double>(plan.in_flight_bytes), std::stod(ceiling) * (1 << 20));
    return notes;
  };
  EXPECT_TRUE(has_note(notes_of("0.125"), "less than one window of each rank"));
  EXPECT_TRUE(has_note(notes_of("1"), "never binds"));
  for (const char* ceiling : {"0", "0.25"}) EXPECT_FALSE(has_note(notes_of(ceiling), "in_flight"));
}

TEST(RunPlan, CopiesWhatTheConfigurationSays) {
  const JobPlan plan = plan_of(config_of(
      "seed = 6\nnonfinite_steps = [2]\n[optimizer]\nmax_norm = 0.5\n[telemetry]\ninterval_ms = "
      "70\n[restart]\nlease_ms = 800\n[[rehearse]]\nrole = \"gpu_actor\"\nstep = 3\n",
      {"model.seed=4", "job.keep_state=true", "offload.staging_buffers=2",
       "offload.window_chunks=3", "offload.prefetch_windows=4"}));
  EXPECT_EQ(plan.segment.job_name, "a");
  EXPECT_EQ(plan.segment.window_chunks, 3u);
  EXPECT_EQ(plan.segment.prefetch_windows, 4u);
  EXPECT_EQ(plan.steps, 10);
  EXPECT_TRUE(plan.keep_state);
  EXPECT_EQ(plan.staging_buffers, 2u);
  EXPECT_EQ(plan.model.seed, 4u);
  EXPECT_EQ(plan.gradients.synthetic_seed, 6u);
  EXPECT_EQ(plan.gradients.synthetic_nonfinite_steps, std::vector<int64_t>{2});
  EXPECT_EQ(plan.gradients.max_norm, 0.5);
  EXPECT_EQ(plan.telemetry.interval_ms, 70u);
  EXPECT_EQ(plan.restart.lease_ms, 800u);
  EXPECT_EQ(plan.rehearsals.size(), 1u);
}

// `count` spaces on both ranks, one parameter each, each with a weight decay of its own or not.
Config many_spaces(uint32_t count, bool different) {
  Config config = config_of("");
  config.spaces.resize(1);
  config.parameters.clear();
  const SpaceConfig pattern = config.spaces[0];
  config.spaces.clear();
  for (uint32_t i = 0; i < count; ++i) {
    SpaceConfig space = pattern;
    space.name = "s" + std::to_string(i);
    if (different) space.weight_decay = 0.01 * i;
    config.spaces.push_back(space);
    config.parameters.push_back({"w", {100 + i}, space.name, {}});
  }
  return config;
}

TEST(RunPlan, SharesHyperParameterGroupsBetweenSpaces) {
  const JobPlan plan = plan_of(many_spaces(20, false));
  EXPECT_EQ(plan.optimizer.groups.size(), 1u);
  for (const SpaceSpec& space : plan.segment.spaces) EXPECT_EQ(space.group, 0u);
  EXPECT_EQ(plan.model.init.size(), 20u);
}

TEST(RunPlan, RefusesMoreGroupsThanAStepRecordHolds) {
  EXPECT_EQ(plan_of(many_spaces(kGroupCountMax, true)).optimizer.groups.size(), kGroupCountMax);
  const Result<JobPlan> plan = make_plan(many_spaces(kGroupCountMax + 1, true));
  ASSERT_FALSE(plan.is_ok());
  EXPECT_NE(plan.status().message().find("9 different hyper-parameter groups, allowed: at most 8"),
            std::string::npos)
      << plan.status().message();
}

TEST(RunPlan, ScalesTheLearningRateOfASpace) {
  const JobPlan plan = plan_of(config_of(
      "[[spaces]]\nname = \"d\"\nlr_scale = 0.5\nweight_decay = 0.3\n", {"optimizer.lr=0.25"}));
  ASSERT_EQ(plan.optimizer.groups.size(), 1u);
  EXPECT_EQ(plan.optimizer.groups[0].lr, 0.125);
  EXPECT_EQ(plan.optimizer.lr, 0.25);
  EXPECT_EQ(plan.optimizer.groups[0].weight_decay, 0.3);
}

TEST(RunPlan, RefusesAModelWithoutElements) {
  Config config = config_of("");
  config.parameters[0].shape = {0, 5};
  const Result<JobPlan> plan = make_plan(config);
  ASSERT_FALSE(plan.is_ok());
  EXPECT_NE(plan.status().message().find("the model is empty"), std::string::npos);
}

TEST(RunPlan, RefusesMoreChunksThanATableCanHoldBeforeItCountsThem) {
  const Result<JobPlan> plan =
      make_plan(config_of("", {"model.elements=10000000000000", "offload.chunk_size_mb=0.0001"}));
  ASSERT_FALSE(plan.is_ok());
  EXPECT_NE(plan.status().message().find("raise offload.chunk_size_mb"), std::string::npos);
}

TEST(RunPlan, NotesWhatItsAuthorMayNotHaveMeant) {
  std::vector<std::string> notes;
  plan_of(config_of("", {"gradients.source=trainer", "job.steps=0", "restart.intensity=0"}),
          &notes);
  EXPECT_TRUE(has_note(notes, "start one trainer a rank yourself"));
  EXPECT_TRUE(has_note(notes, "job.steps is 0"));
  EXPECT_TRUE(has_note(notes, "the first death ends the job"));
  EXPECT_TRUE(has_note(notes, "holds a rank's longest shard"));
}

TEST(RunPlan, NotesHowChunksCompareWithParameters) {
  std::vector<std::string> smaller, larger, tiny;
  plan_of(config_of("", {"model.elements=100000", "offload.chunk_size_mb=0.05"}), &smaller);
  EXPECT_TRUE(has_note(smaller, "smaller than the smallest parameter (100000)"));
  Config config = many_spaces(1, false);
  config.parameters.clear();
  for (int i = 0; i < 40; ++i) {
    config.parameters.push_back({"w" + std::to_string(i), {100}, "s0", {}});
  }
  config.chunk_size_bytes = 8192;
  plan_of(config, &larger);
  EXPECT_TRUE(has_note(larger, "several parameters share a chunk"));
  plan_of(config_of("", {"model.elements=10"}), &tiny);
  EXPECT_TRUE(has_note(tiny, "rank 1 owns no element"));
}

TEST(RunPlan, SaysNothingAboutAPlainPlan) {
  std::vector<std::string> notes;
  plan_of(
      config_of("[optimizer]\nlr = 0.1\n", {"model.elements=100000", "offload.chunk_size_mb=0.05"}),
      &notes);
  EXPECT_EQ(notes.size(), 1u) << notes.back();  // that the one parameter is cut
}

RunDirectory run_directory() {
  Result<RunDirectory> run = RunDirectory::of("a");
  EXPECT_TRUE(run.is_ok()) << run.status().text();
  return std::move(run).value();
}

TEST(ProcessPlan, ListsStoreActorsAndTrainersWithTheirArguments) {
  const JobPlan plan = plan_of(config_of(
      "[trainer]\ncommand = [\"optlease-trainer\", \"--log\", \"{job}.{rank}\"]\nenvironment = { "
      "SEED = \"{rank}\" }\n",
      {"gradients.source=trainer"}));
  const auto processes = make_process_plan(plan, run_directory(), "/opt/bin");
  ASSERT_EQ(processes.size(), 5u);
  EXPECT_EQ(processes[0].role, Role::kHostStore);
  EXPECT_EQ(processes[0].argv,
            (std::vector<std::string>{"/opt/bin/optlease-host-store", "--job", "a"}));
  EXPECT_EQ(processes[2].role, Role::kGpuActor);
  EXPECT_EQ(processes[2].argv,
            (std::vector<std::string>{"/opt/bin/optlease-gpu-actor", "--job", "a", "--rank", "1"}));
  EXPECT_EQ(processes[4].role, Role::kTrainer);
  EXPECT_EQ(processes[4].argv,
            (std::vector<std::string>{"/opt/bin/optlease-trainer", "--log", "a.1"}));
  EXPECT_EQ(processes[4].environment,
            (std::vector<std::string>{"OPTLEASE_JOB=a", "OPTLEASE_RANK=1", "OPTLEASE_WORLD_SIZE=2",
                                      "SEED=1"}));
}

TEST(ProcessPlan, LeavesOtherProgramsToThePath) {
  const JobPlan plan = plan_of(
      config_of("[trainer]\ncommand = [\"python\", \"t.py\"]\n", {"gradients.source=trainer"}));
  EXPECT_EQ(make_process_plan(plan, run_directory(), "/opt/bin").back().argv[0], "python");
}

TEST(ProcessPlan, IsPrintedAsTextAndAsJson) {
  std::vector<std::string> notes;
  const JobPlan plan =
      plan_of(config_of("[[rehearse]]\nrole = \"host_store\"\nstep = 2\nat_rank = 1\n"), &notes);
  const auto processes = make_process_plan(plan, run_directory(), "/opt/bin");
  const std::string text = plan_text(plan, processes, notes);
  EXPECT_NE(text.find("job a: 10 steps on 2 ranks (cpu), gradients from synthetic"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("gpu_actor 1: /opt/bin/optlease-gpu-actor --job a --rank 1"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("step 2, when rank 1 reaches copy_out: kill host_store"), std::string::npos)
      << text;
  const auto json = nlohmann::json::parse(plan_json(plan, processes, notes));
  EXPECT_EQ(json["processes"][2]["argv"][4], "1");
  EXPECT_EQ(json["spaces"][0]["elements"], 1000);
  EXPECT_EQ(json["groups"][0]["betas"][1], 0.999);
  EXPECT_EQ(json["ranks"][0]["state_bytes"], 512 * 12);
  EXPECT_EQ(json["notes"].size(), notes.size());
}

}  // namespace
}  // namespace optlease
