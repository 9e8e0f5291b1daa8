// What `plan` and `run --json` say, against what there is: no process and no segment for a plan,
// the report itself for a run.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/system_job.h"

namespace optlease {
namespace {

const std::string kConfig = std::string(OPTLEASE_SOURCE_DIR) + "/configs/synthetic.toml";

TEST(Documents, APlanStartsNothingAndHoldsProcessesAndTheMemoryContract) {
  SystemJob job("plan");
  const CommandResult result =
      job.command({"plan", kConfig, "--json", "--set", "job.name=\"" + job.name() + "\""});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json document = Json::parse(result.output, nullptr, false);
  ASSERT_TRUE(document.is_object()) << result.output;
  EXPECT_EQ(document["plan"]["job"], job.name());
  std::multiset<std::string> roles;
  for (const Json& process : document["plan"]["processes"]) {
    roles.insert(process["role"].get<std::string>());
    EXPECT_NE(process["argv"].dump().find(job.name()), std::string::npos) << process;
  }
  EXPECT_EQ(roles, (std::multiset<std::string>{"gpu_actor", "gpu_actor", "host_store"}));
  // 4 million elements, 12 bytes each; both ranks' arenas and gradients, the control segment.
  const Json& memory = document["memory"];
  uint64_t state = 0, segments = memory["control_bytes"].get<uint64_t>();
  ASSERT_EQ(memory["ranks"].size(), 2u);
  for (const Json& rank : memory["ranks"]) {
    state += rank["state_bytes"].get<uint64_t>();
    EXPECT_GE(rank["arena_bytes"], rank["state_bytes"]);
    segments += rank["arena_bytes"].get<uint64_t>() + rank["gradient_shard_bytes"].get<uint64_t>();
  }
  EXPECT_EQ(state, 4'000'000u * 12u);
  EXPECT_GE(memory["shared_memory_bytes"].get<uint64_t>(), segments);
  std::set<std::string> limits;
  for (const Json& row : memory["limits"]) {
    limits.insert(row["name"].get<std::string>());
    EXPECT_EQ(row["fits"], true) << row;
  }
  EXPECT_TRUE(limits.contains("shared memory (/dev/shm)")) << memory["limits"];
  EXPECT_TRUE(job.segments().empty());
  EXPECT_TRUE(job.processes().empty());
  EXPECT_TRUE(std::filesystem::is_empty(job.directory())) << "a run directory was made";
}

TEST(Documents, ARunWithJsonPrintsItsReportAndNothingElseOnStandardOutput) {
  SystemJob job("json");
  const std::string program = std::string(OPTLEASE_BIN_DIR) + "/optlease";
  const std::string out = job.directory() + "/out.json", file = job.directory() + "/report.json";
  const std::string command = "XDG_RUNTIME_DIR=" + job.directory() + " " + program + " run " +
                              kConfig + " --json --report " + file + " --set 'job.name=\"" +
                              job.name() + "\"' --set job.steps=8 --set model.elements=60000 > " +
                              out + " 2> " + job.directory() + "/progress.txt";
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ifstream in(out), report_in(file);
  const Json printed = Json::parse(in, nullptr, false);
  ASSERT_TRUE(printed.is_object()) << "standard output is not one document";
  EXPECT_EQ(printed, Json::parse(report_in, nullptr, false));
  EXPECT_EQ(printed["job"], job.name());
  EXPECT_EQ(printed["status"], "passed") << printed["checks"].dump(1);
  EXPECT_EQ(printed["steps_committed"], 8);
  EXPECT_GT(std::filesystem::file_size(job.directory() + "/progress.txt"), 0u)
      << "progress goes to standard error";
}

TEST(Documents, ARefusedRunWithJsonPrintsItsRefusal) {
  SystemJob job("refused");
  const std::string program = std::string(OPTLEASE_BIN_DIR) + "/optlease";
  const std::string out = job.directory() + "/out.json";
  const std::string command = "XDG_RUNTIME_DIR=" + job.directory() + " " + program + " run " +
                              kConfig + " --json --set job.steps=-1 > " + out + " 2> /dev/null";
  EXPECT_NE(std::system(command.c_str()), 0);
  std::ifstream in(out);
  const Json printed = Json::parse(in, nullptr, false);
  ASSERT_TRUE(printed.is_object()) << "a script that asked for a document gets none";
  EXPECT_EQ(printed["status"], "refused");
  EXPECT_EQ(printed["exit_code"], 3);
}

}  // namespace
}  // namespace optlease
