#include "launcher/memory_contract.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launcher/run_plan.h"
#include "shm/control_build.h"
#include "tests/launcher/config_fixture.h"

namespace optlease {
namespace {

JobPlan plan_of(const std::vector<std::string>& overrides) {
  const Parsed parsed = parse_whole("", overrides);
  EXPECT_TRUE(parsed.ok) << parsed.text;
  Result<JobPlan> plan = make_plan(parsed.config);
  EXPECT_TRUE(plan.is_ok()) << plan.status().text();
  return plan.is_ok() ? std::move(plan).value() : JobPlan();
}

// 200000 elements in BF16 over two ranks: shards of 100032 and 99968 elements.
JobPlan bf16_plan() {
  return plan_of({"model.elements=200000", "model.param_dtype=BF16", "model.grad_dtype=F32",
                  "offload.chunk_size_mb=0.1"});
}

TEST(MemoryContract, CountsWhatEachRankNeeds) {
  const JobPlan plan = bf16_plan();
  const MemoryNeeds needs = needs_of(plan);
  ASSERT_EQ(needs.ranks.size(), 2u);
  const RankNeeds& rank = needs.ranks[0];
  const ArenaSpec arena = arena_of(plan.segment, Rank(0));
  EXPECT_EQ(rank.state_bytes, 100032u * 12);
  EXPECT_EQ(rank.shadow_bytes, 4 * arena.slot_bytes);
  EXPECT_EQ(rank.arena_bytes, 4096 + arena.slot_bytes * arena.slot_count);
  EXPECT_EQ(rank.gradient_shard_bytes, 100096u * 4 - 256);  // 100032 is 64 x 1563: no padding
  EXPECT_EQ(rank.parameter_bytes, 200000u * 2);
  EXPECT_EQ(rank.gradient_bytes, 200000u * 4);
  EXPECT_EQ(rank.staging_bytes, 3 * arena.slot_bytes);
  EXPECT_EQ(rank.pinned_bytes, 0u);
}

TEST(MemoryContract, CountsWhatStaysOnTheDevice) {
  const MemoryNeeds plain = needs_of(bf16_plan());
  EXPECT_EQ(plain.ranks[0].resident_bytes, 0u);
  const JobPlan plan = plan_of({"model.elements=200000", "model.param_dtype=BF16",
                                "model.grad_dtype=F32", "offload.chunk_size_mb=0.1",
                                "optimizer.main=bf16+remainder", "offload.fraction=0.5"});
  EXPECT_EQ(plan.segment.split, (StateSplit{MainForm::kBf16Remainder, 500'000}));
  const ArenaSpec arena = arena_of(plan.segment, Rank(0));
  const MemoryNeeds needs = needs_of(plan);
  const RankNeeds& rank = needs.ranks[0];
  EXPECT_EQ(rank.resident_bytes, 4096 + arena.resident_slot_bytes * arena.slot_count);
  EXPECT_EQ(rank.state_bytes, plain.ranks[0].state_bytes);
  EXPECT_LT(rank.arena_bytes, plain.ranks[0].arena_bytes / 2);
  EXPECT_LT(rank.staging_bytes, plain.ranks[0].staging_bytes / 2);
  uint64_t shared = needs.control_bytes;
  for (const RankNeeds& each : needs.ranks) {
    shared += each.arena_bytes + each.resident_bytes + each.gradient_shard_bytes;
  }
  EXPECT_EQ(needs.shared_memory_bytes(), shared);
  EXPECT_NE(memory_text(needs, {}).find("of resident slots, in shared memory"), std::string::npos);
}

TEST(MemoryContract, AddsUpSegmentsAndBuffersOnceEach) {
  const JobPlan plan = bf16_plan();
  const MemoryNeeds needs = needs_of(plan);
  const std::vector<ArenaSpec> arenas{arena_of(plan.segment, Rank(0)),
                                      arena_of(plan.segment, Rank(1))};
  EXPECT_EQ(needs.control_bytes, control_shape(plan.segment, arenas).total_bytes);
  EXPECT_GE(needs.control_bytes, 4u * kUserBlobBytesMax);
  uint64_t shared = needs.control_bytes, buffers = 0;
  for (const RankNeeds& rank : needs.ranks) {
    shared += rank.arena_bytes + rank.gradient_shard_bytes;
    buffers += rank.parameter_bytes + rank.gradient_bytes + rank.staging_bytes;
  }
  EXPECT_EQ(needs.shared_memory_bytes(), shared);
  EXPECT_EQ(needs.memory_bytes(), shared + buffers + needs.process_bytes);
}

TEST(MemoryContract, SaysInOneLineWhatSharedMemoryIsMadeOf) {
  MemoryNeeds needs;
  needs.ranks.resize(2);
  needs.control_bytes = 1 << 20;
  for (RankNeeds& rank : needs.ranks) {
    rank.arena_bytes = 3 << 20;
    rank.state_bytes = 2 << 20;
    rank.gradient_shard_bytes = 1 << 20;
  }
  EXPECT_EQ(needs.shared_memory_bytes(), 9u << 20);
  EXPECT_EQ(shared_memory_text(needs),
            "9.00 MiB of shared memory: arenas 6.00 MiB (of it state 4.00 MiB), gradient shards "
            "2.00 MiB, control 1.00 MiB");
}

TEST(MemoryContract, CountsOnlyTheSpacesOfARank) {
  Config config;
  {
    const Parsed parsed = parse_whole("[[spaces]]\nname = \"d\"\n");
    ASSERT_TRUE(parsed.ok) << parsed.text;
    config = parsed.config;
  }
  SpaceConfig expert = config.spaces[0];
  expert.name = "e";
  expert.ranks = {Rank(1)};
  config.spaces.push_back(expert);
  config.parameters.push_back({"x", {6400}, "e", {}});
  Result<JobPlan> plan = make_plan(config);
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  const MemoryNeeds needs = needs_of(plan.value());
  EXPECT_EQ(needs.ranks[0].parameter_bytes, 1000u * 4);
  EXPECT_EQ(needs.ranks[1].parameter_bytes, (1000u + 6400) * 4);
  EXPECT_EQ(needs.ranks[1].state_bytes, (488u + 6400) * 12);
}

TEST(MemoryContract, CountsPinnedArenasOnTheCudaDeviceAlone) {
  JobPlan plan = bf16_plan();
  const uint64_t shard_bytes = needs_of(plan).ranks[0].gradient_shard_bytes;
  plan.device = "cuda";
  const MemoryNeeds needs = needs_of(plan);
  EXPECT_EQ(needs.ranks[0].gradient_shard_bytes, shard_bytes + kSavedShardsOffset)
      << "the segment that saves them has a header";
  EXPECT_EQ(needs.pinned_bytes(), std::max(needs.ranks[0].arena_bytes, needs.ranks[1].arena_bytes));
}

const MemoryRow& row_named(const std::vector<MemoryRow>& rows, const std::string& word) {
  for (const MemoryRow& row : rows) {
    if (row.name.find(word) != std::string::npos) return row;
  }
  ADD_FAILURE() << "no row " << word;
  return rows.front();
}

TEST(MemoryContract, FitsAMachineWithoutLimits) {
  EXPECT_TRUE(check(memory_rows(needs_of(bf16_plan()), MachineFacts())).is_ok());
}

TEST(MemoryContract, RefusesTheSharedMemoryOfAPlainContainerWithNumbersAndTheRemedy) {
  MachineFacts facts;
  facts.shm_free_bytes = 64ull << 20;  // what Docker gives a container
  const MemoryNeeds needs = needs_of(plan_of({"model.elements=100_000_000"}));
  const std::vector<MemoryRow> rows = memory_rows(needs, facts);
  const Status status = check(rows);
  ASSERT_FALSE(status.is_ok());
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  const std::string& text = status.message();
  EXPECT_TRUE(text.starts_with("shared memory (/dev/shm): the job needs ")) << text;
  EXPECT_NE(text.find(bytes_text(needs.shared_memory_bytes())), std::string::npos) << text;
  EXPECT_NE(text.find("available are 64.0 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("--shm-size"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << "one row alone does not fit: " << text;
}

TEST(MemoryContract, CountsSegmentsOfAnEarlierLifeAsAvailable) {
  const MemoryNeeds needs = needs_of(bf16_plan());
  MachineFacts facts;
  facts.shm_free_bytes = 100;
  facts.cgroup_free_bytes = needs.memory_bytes() - needs.shared_memory_bytes();
  EXPECT_FALSE(check(memory_rows(needs, facts)).is_ok());
  facts.shm_held_bytes = needs.shared_memory_bytes();
  EXPECT_TRUE(check(memory_rows(needs, facts)).is_ok());
}

TEST(MemoryContract, RefusesOneByteTooLittleAndTakesTheExactAmount) {
  const MemoryNeeds needs = needs_of(bf16_plan());
  MachineFacts facts;
  facts.cgroup_free_bytes = needs.memory_bytes();
  EXPECT_TRUE(check(memory_rows(needs, facts)).is_ok());
  facts.cgroup_free_bytes -= 1;
  facts.cgroup_limit_file = "/sys/fs/cgroup/memory.max";
  const Status status = check(memory_rows(needs, facts));
  ASSERT_FALSE(status.is_ok());
  EXPECT_NE(status.message().find("memory of this cgroup"), std::string::npos);
  EXPECT_NE(status.message().find("/sys/fs/cgroup/memory.max"), std::string::npos);
}

TEST(MemoryContract, NamesEveryRowThatDoesNotFit) {
  MachineFacts facts;
  facts.shm_free_bytes = 0;
  facts.host_free_bytes = 1;
  facts.descriptor_limit = 10;
  const Status status = check(memory_rows(needs_of(bf16_plan()), facts));
  for (const char* words : {"/dev/shm", "memory of this node", "RLIMIT_NOFILE"}) {
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
  EXPECT_EQ(status.message().find("RLIMIT_MEMLOCK"), std::string::npos);
}

TEST(MemoryContract, TellsOfPinningBeyondTheLimitAndRefusesNothing) {
  JobPlan plan = bf16_plan();
  plan.device = "cuda";
  MachineFacts facts;
  facts.memlock_limit_bytes = 64 << 10;
  const std::vector<MemoryRow> rows = memory_rows(needs_of(plan), facts);
  EXPECT_FALSE(row_named(rows, "RLIMIT_MEMLOCK").fits());
  EXPECT_TRUE(check(rows).is_ok());
  EXPECT_NE(memory_text(needs_of(plan), rows).find("bounce buffers"), std::string::npos);
}

TEST(MemoryContract, CountsDeviceMemoryOnTheGpuAndNotOnTheHost) {
  JobPlan plan = bf16_plan();
  plan.gradients.source = GradientSource::kSynthetic;
  const MemoryNeeds host = needs_of(plan);
  EXPECT_FALSE(host.uses_gpus);
  EXPECT_EQ(host.ranks[0].device_bytes, 0u);
  EXPECT_EQ(host.device_bytes(1), 0u);
  plan.device = "cuda";
  const MemoryNeeds needs = needs_of(plan);
  // 400000, 800000 and 400128 bytes and the staging, each in pieces of 2 MiB.
  EXPECT_EQ(needs.ranks[0].device_shard_bytes, 100032u * 4);
  EXPECT_EQ(needs.ranks[0].device_bytes, 4u * (2 << 20));
  EXPECT_GT(needs.ranks[0].device_headroom_bytes, 256u << 20);
  EXPECT_EQ(needs.shared_memory_bytes(), host.shared_memory_bytes() + 2 * kSavedShardsOffset);
  EXPECT_EQ(needs.memory_bytes(), needs.shared_memory_bytes() + needs.process_bytes);
  const uint64_t a_rank = needs.ranks[0].device_bytes + needs.ranks[0].device_headroom_bytes;
  EXPECT_EQ(needs.device_bytes(2), a_rank);
  EXPECT_EQ(needs.device_bytes(1), 2 * a_rank);
  EXPECT_EQ(needs.device_bytes(kNoLimit), a_rank);
  EXPECT_EQ(needs.device_bytes(0), a_rank) << "a GPU of its own, wherever that is";
  EXPECT_EQ(needs.descriptors, host.descriptors + 2);
}

TEST(MemoryContract, RefusesAMachineWithTooFewGpusAndSaysWhoAsksForTheirMemory) {
  JobPlan plan = bf16_plan();
  plan.device = "cuda";
  const MemoryNeeds needs = needs_of(plan);
  MachineFacts facts;
  for (const uint64_t too_few : {0, 1}) {
    facts.gpu_count = too_few;
    const Status status = check(memory_rows(needs, facts));
    EXPECT_EQ(status.code(), StatusCode::kNoSpace);
    EXPECT_NE(status.message().find("each rank needs a GPU of its own"), std::string::npos);
  }
  facts.gpu_count = 2;
  const std::vector<MemoryRow> rows = memory_rows(needs, facts);
  EXPECT_TRUE(check(rows).is_ok());
  const std::string text = memory_text(needs, rows);
  EXPECT_NE(text.find("HBM     "), std::string::npos) << text;
  EXPECT_NE(text.find("asked by each actor at its start"), std::string::npos) << text;
  EXPECT_NE(text.find("not asked"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(memory_json(needs, rows));
  EXPECT_EQ(json["ranks"][0]["device_bytes"], needs.ranks[0].device_bytes);
  EXPECT_NE(json["limits"].back()["note"], "");
  const std::vector<MemoryRow> cpu = memory_rows(needs_of(bf16_plan()), facts);
  for (const MemoryRow& row : cpu) EXPECT_EQ(row.name.find("GPU"), std::string::npos) << row.name;
}

TEST(MemoryContract, NeedsMoreDescriptorsForMoreRanks) {
  const uint64_t two = needs_of(bf16_plan()).descriptors;
  const uint64_t ten = needs_of(plan_of({"ranks.world_size=10"})).descriptors;
  EXPECT_EQ(ten - two, 8u * 6 + 8 * 2);
}

TEST(MemoryContract, IsPrintedAsATableAndAsJson) {
  const MemoryNeeds needs = needs_of(bf16_plan());
  MachineFacts facts;
  facts.shm_free_bytes = 1024;
  const std::vector<MemoryRow> rows = memory_rows(needs, facts);
  const std::string text = memory_text(needs, rows);
  EXPECT_NE(text.find("DOES NOT FIT: enlarge it"), std::string::npos) << text;
  EXPECT_NE(text.find("no limit"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(memory_json(needs, rows));
  EXPECT_EQ(json["ranks"][1]["rank"], 1);
  EXPECT_EQ(json["ranks"][0]["state_bytes"], needs.ranks[0].state_bytes);
  EXPECT_EQ(json["limits"][0]["fits"], false);
  EXPECT_EQ(json["limits"][0]["available"], 1024);
  EXPECT_TRUE(json["limits"][1]["available"].is_null());
  EXPECT_EQ(row_named(rows, "NOFILE").is_bytes, false);
}

TEST(MemoryContract, WritesBytesForPeople) {
  EXPECT_EQ(bytes_text(17), "17 B");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text(64 << 20), "64.0 MiB");
  EXPECT_EQ(bytes_text(1536ull << 20), "1.50 GiB");
  EXPECT_EQ(bytes_text(300ull << 30), "300 GiB");
}

TEST(MachineFacts, AreReadFromThisMachine) {
  Result<RunDirectory> run = RunDirectory::of("no-such-job-of-this-user");
  ASSERT_TRUE(run.is_ok()) << run.status().text();
  const MachineFacts facts = read_machine_facts(run.value(), 2);
  EXPECT_EQ(facts.shm_held_bytes, 0u);
  EXPECT_GT(facts.host_free_bytes, 0u);
  EXPECT_GT(facts.descriptor_limit, 3u);
  EXPECT_EQ(facts.cgroup_free_bytes == kNoLimit, facts.cgroup_limit_file.empty());
}

}  // namespace
}  // namespace optlease
