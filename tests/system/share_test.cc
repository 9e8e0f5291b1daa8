// Ranks with uneven shards share the node: who is ahead waits for credit, the bits stay the same,
// and nothing that dies takes credit with it. And where the arenas lie.
#include <gtest/gtest.h>

#include "tests/support/system_job.h"

namespace optlease {
namespace {

// Rank 0 holds 100000 elements (19 chunks), rank 1 four times as many.
const std::vector<std::string> kUneven = {
    "job.steps=6",
    R"(model.parameters=[{name="both",shape=[200000],space="dense"},)"
    R"({name="mine",shape=[300000],space="expert"}])",
    R"(spaces=[{name="dense",ranks="all"},{name="expert",ranks=[1],lr_scale=0.5}])",
    "offload.chunk_size_mb=0.0625",
    "restart.intensity=1000",
    "restart.backoff_ms=1"};

void use_uneven(SystemJob* job, const std::vector<std::string>& more) {
  job->use("moe.toml", kUneven);
  for (const std::string& each : more) job->add(each);
}

std::string digest_of(const Json& report) {
  expect_passed(report);
  return report["state_digest"].is_string() ? report["state_digest"].get<std::string>() : "none";
}

std::string undisturbed_digest() {
  static const std::string digest = [] {
    SystemJob job("share-oracle");
    use_uneven(&job, {});
    return digest_of(job.run());
  }();
  return digest;
}

TEST(Share, TheRankThatIsAheadWaitsMoreThanTheLongest) {
  SystemJob job("share");
  use_uneven(&job, {});
  const Json report = job.run();
  EXPECT_NE(digest_of(report), "none");
  EXPECT_EQ(digest_of(report), undisturbed_digest());
  EXPECT_GE(report["ranks"][0]["leases_deferred"].get<uint64_t>(), 7u)
      << "each of steps 0 to 6 begins with one window of rank 0 and two that wait";
  EXPECT_GT(report["ranks"][0]["credit_wait_seconds"].get<double>(), 0.0);
  // It waits only where the other one was held up and has more left: a loaded machine does that.
  EXPECT_LT(report["ranks"][1]["leases_deferred"].get<uint64_t>(),
            report["ranks"][0]["leases_deferred"].get<uint64_t>());
}

TEST(Share, EqualRanksWithoutACeilingNeverWaitAtTheirStart) {
  SystemJob job("share-even");
  job.use("synthetic.toml", {"job.steps=2", "model.elements=30000", "offload.chunk_size_mb=0.0625",
                             "gradients.nonfinite_steps=[]"});
  // Three chunks a rank are one pipeline: all of them are asked for at once and nobody is ahead.
  const Json report = job.run();
  for (const Json& rank : report["ranks"]) EXPECT_EQ(rank["leases_deferred"], 0);
}

TEST(Share, NoCeilingChangesABit) {
  for (const char* ceiling : {"0.0001", "0.25", "1024"}) {
    SystemJob job("share-ceiling");
    use_uneven(&job, {std::string("offload.in_flight_mb=") + ceiling});
    EXPECT_EQ(digest_of(job.run()), undisturbed_digest()) << ceiling;
  }
}

TEST(Share, KillsUnderATightCeilingChangeNoBit) {
  SystemJob job("share-kills");
  use_uneven(&job, {"offload.in_flight_mb=0.2"});
  job.rehearse("gpu_actor", 1, 1, "copy_out", 1);
  job.rehearse("gpu_actor", 0, 2, "before_commit", 0);
  job.rehearse("host_store", 0, 3, "before_lease", 1);
  job.rehearse("host_store", 0, 4, "after_commit", 0);
  job.rehearse("gpu_actor", 0, 5, "before_lease", 1);
  const Json report = job.run();
  EXPECT_EQ(digest_of(report), undisturbed_digest());
  EXPECT_EQ(report["rehearsals"]["done"], 5);
}

// Windows are leased before their step is open, wait for credit there too, and are given back.
TEST(Share, ReadAheadCreditsAndResidentPartsTogetherChangeNoBitUnderKills) {
  const std::vector<std::vector<std::string>> splits = {
      {},
      {"optimizer.main=bf16+remainder"},
      {"offload.fraction=0.4"},
      {"optimizer.main=bf16+remainder", "offload.fraction=0"}};
  for (const auto& split : splits) {
    SCOPED_TRACE(split.empty() ? "no split" : split.back());
    SystemJob job("share-split");
    use_uneven(&job, {"offload.in_flight_mb=0.2"});
    for (const std::string& each : split) job.add(each);
    job.rehearse("gpu_actor", 0, 1, "prepared", 0);
    job.rehearse("gpu_actor", 1, 2, "prepared", 0);
    job.rehearse("host_store", 0, 3, "prepared", 1);
    job.rehearse("gpu_actor", 1, 4, "answered", 1);
    job.rehearse("host_store", 0, 5, "answered", 0);
    job.rehearse("gpu_actor", 0, 6, "before_commit", 1);
    const Json report = job.run();
    EXPECT_EQ(digest_of(report), undisturbed_digest());
    EXPECT_EQ(report["rehearsals"]["done"], 6);
  }
}

TEST(Share, NamedNumaNodesAreTakenVerifiedAndReported) {
  SystemJob job("share-numa");
  use_uneven(&job, {"ranks.numa=[0,-1]", "job.steps=1"});
  const Json report = job.run();
  expect_passed(report);
  EXPECT_TRUE(report["ranks"][1]["numa"].is_null());
  const Json& numa = report["ranks"][0]["numa"];
  ASSERT_TRUE(numa.is_object());
  EXPECT_EQ(numa["node"], 0);
  if (numa["pages_sampled"] == 0) GTEST_SKIP() << numa["text"];  // a container's filter
  EXPECT_EQ(numa["pages_elsewhere"], 0) << numa["text"];
}

TEST(Share, ANumaNodeThatIsNotThereIsRefusedBeforeAnythingStarts) {
  SystemJob job("share-no-node");
  use_uneven(&job, {"ranks.numa=[0,1000]"});
  job.start();
  const CommandResult refused = job.wait();
  EXPECT_EQ(refused.exit_code, 3) << refused.output;
  EXPECT_NE(refused.output.find("node 1000 for rank 1 is not online"), std::string::npos)
      << refused.output;
}

}  // namespace
}  // namespace optlease
