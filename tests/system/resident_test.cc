// States of which a part stays on the device: whatever dies, and whatever the split, the digest is
// that of the undisturbed job that offloads everything in FP32.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "actors/runtime/exit_code.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

const std::vector<std::string> kJob = {"gradients.nonfinite_steps=[7]", "job.steps=30",
                                       "model.elements=60000",          "model.param_dtype=BF16",
                                       "offload.chunk_size_mb=0.0625",  "offload.window_chunks=2",
                                       "restart.intensity=1000",        "restart.backoff_ms=1"};

std::vector<std::string> job_with(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = kJob;
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

std::string digest_of(const Json& report) {
  if (!report.contains("state_digest") || !report["state_digest"].is_string()) return "none";
  return report["state_digest"].get<std::string>();
}

// All offloaded, FP32, undisturbed: of 30 steps, or of as many as are asked for.
std::string oracle(const std::string& steps = "30") {
  static std::map<std::string, std::string> known;
  std::string& digest = known[steps];
  if (digest.empty()) {
    SystemJob job("oracle");
    job.use("synthetic.toml", job_with({"job.steps=" + steps}));
    digest = digest_of(job.run());
    EXPECT_NE(digest, "none");
  }
  return digest;
}

const std::string kRemainder = "optimizer.main=bf16+remainder";
const std::vector<std::vector<std::string>> kSplits = {{kRemainder},
                                                       {"offload.fraction=0"},
                                                       {"offload.fraction=0.3"},
                                                       {"offload.fraction=0.9"},
                                                       {kRemainder, "offload.fraction=0.7"},
                                                       {kRemainder, "offload.fraction=0"}};

std::string words_of(const std::vector<std::string>& split) {
  std::string words;
  for (const std::string& each : split) words += each + " ";
  return words;
}

TEST(Resident, EverySplitGivesTheDigestOfNone) {
  for (const auto& split : kSplits) {
    SCOPED_TRACE(words_of(split));
    SystemJob job("splits");
    job.use("synthetic.toml", job_with(split));
    const Json report = job.run();
    EXPECT_EQ(digest_of(report), oracle());
    expect_passed(report);
  }
}

TEST(Resident, AnyChunkSizeGivesTheDigestOfNone) {
  for (const char* size : {"0", "0.02", "0.3"}) {
    SCOPED_TRACE(size);
    SystemJob job("chunks");
    job.use("synthetic.toml", job_with({kRemainder, "offload.fraction=0.85",
                                        std::string("offload.chunk_size_mb=") + size}));
    EXPECT_EQ(digest_of(job.run()), oracle());
  }
}

// A kill of each role at every phase, in one run; those before a step is open and between its
// answer and its commit included.
void kill_at_every_phase(const std::vector<std::string>& split, const std::string& role) {
  SCOPED_TRACE(words_of(split) + role);
  SystemJob job("phases");
  job.use("synthetic.toml", job_with(split));
  int64_t step = 3;
  for (const char* phase : {"before_lease", "copy_in", "update", "copy_out", "before_commit",
                            "after_commit", "between_steps", "prepared", "answered"}) {
    step += step == 7 ? 1 : 0;  // nothing streams in a skipped step
    job.rehearse(role, 1, step, phase, 1);
    step += 3;
  }
  const Json report = job.run();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(digest_of(report), oracle());
  EXPECT_EQ(report["rehearsals"]["done"], 9);
  expect_passed(report);
}

TEST(Resident, AnActorMayDieAtEveryPhase) {
  for (const auto& split : kSplits) kill_at_every_phase(split, "gpu_actor");
}
TEST(Resident, TheHostStoreMayDieAtEveryPhase) {
  kill_at_every_phase({kRemainder}, "host_store");
  kill_at_every_phase({"offload.fraction=0"}, "host_store");
  kill_at_every_phase({"offload.fraction=0.3"}, "host_store");
}

TEST(Resident, TrainersGoOnFromTheSameBitsWithRemainders) {
  const std::vector<std::string> job_keys = {
      "job.steps=20", "restart.intensity=1000", "restart.backoff_ms=1", "model.param_dtype=BF16",
      kRemainder,     "offload.fraction=0.8"};
  std::string undisturbed;
  {
    SystemJob job("trainers");
    job.use("quickstart.toml", job_keys);
    undisturbed = digest_of(job.run());
    EXPECT_NE(undisturbed, "none");
  }
  SystemJob job("trainers-killed");
  job.use("quickstart.toml", job_keys);
  job.rehearse("trainer", 0, 5, "copy_in", 0);
  job.rehearse("gpu_actor", 0, 5, "update", 0);
  job.rehearse("gpu_actor", 1, 10, "between_steps", 1);
  job.rehearse("host_store", 0, 15, "before_commit", 1);
  job.rehearse("gpu_actor", 0, 17, "prepared", 1);
  job.rehearse("trainer", 1, 18, "answered", 0);
  job.rehearse("gpu_actor", 1, 19, "answered", 1);
  EXPECT_EQ(digest_of(job.run()), undisturbed);
}

TEST(Resident, ResumesAfterEveryProcessOfTheNodeIsKilledAtOnce) {
  const std::vector<std::string> split = {kRemainder, "offload.fraction=0.6", "job.steps=300"};
  SystemJob job("node");
  job.use("synthetic.toml", job_with(split));
  for (int64_t step : {15, 100}) {
    job.start(step == 15 ? std::vector<std::string>{} : std::vector<std::string>{"--resume"});
    ASSERT_TRUE(job.wait_for_step(step));
    const Json status = job.status();
    for (const Json& process : status["processes"]) {
      if (process["pid"].is_number() && process["role"] != "launcher")
        kill(process["pid"].get<pid_t>(), SIGKILL);
    }
    kill(job.launcher_pid(), SIGKILL);
    job.wait();
    for (int i = 0; i < 500 && !job.processes().empty(); ++i) poll(nullptr, 0, 10);
  }
  EXPECT_EQ(digest_of(job.run({"--resume"})), oracle("300"));
}

// The name goes, the bytes stay with those who have them: the job is told, and they are put back.
TEST(Resident, SlotsWhoseNameWasRemovedArePutBackAndTheJobGoesOn) {
  SystemJob job("removed");
  job.use("synthetic.toml", job_with({kRemainder, "offload.fraction=0.6", "job.steps=100000"}));
  job.start();
  ASSERT_TRUE(job.wait_for_step(5));
  for (const std::string& segment : job.segments()) {
    if (segment.ends_with(".d1")) std::filesystem::remove(segment);
  }
  kill(job.pid_of("gpu_actor", 1), SIGKILL);
  const CommandResult ended = job.wait(60);
  EXPECT_EQ(ended.exit_code, static_cast<int>(ExitCode::kCorruptState)) << ended.output;
  EXPECT_NE(ended.output.find("the resident part of its state is not there"), std::string::npos)
      << ended.output;
  EXPECT_NE(ended.output.find("is put back"), std::string::npos) << ended.output;
  const int64_t step = job.report()["steps_committed"].get<int64_t>();
  job.start({"--resume"});
  EXPECT_TRUE(job.wait_for_step(step + 3));
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  job.wait(30);
  EXPECT_TRUE(job.segments().empty()) << "a stop without --keep removes what was put back, too";
}

// What follows the header of a safetensors file.
std::string data_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t header = 0;
  if (all.size() < sizeof header) return "";
  std::memcpy(&header, all.data(), sizeof header);
  return header > all.size() - sizeof header ? "" : all.substr(sizeof header + header);
}

TEST(Resident, AKeptStateIsExportedAndDigestedAsOneWithoutASplit) {
  std::string tensors[2], digests[2];
  for (int i = 0; i < 2; ++i) {
    SystemJob job("export");
    std::vector<std::string> more = {"job.keep_state=true"};
    if (i == 1) more.insert(more.end(), {kRemainder, "offload.fraction=0.75"});
    job.use("synthetic.toml", job_with(more));
    EXPECT_EQ(digest_of(job.run()), oracle());
    const std::string path = job.directory() + "/weights.safetensors";
    const CommandResult exported = job.command({"export", "{job}", "--out", path});
    EXPECT_EQ(exported.exit_code, 0) << exported.output;
    tensors[i] = data_of(path);
    digests[i] = job.command({"digest", "{job}"}).output.substr(0, 32);
    EXPECT_EQ(job.command({"clean", "{job}", "--include-kept"}).exit_code, 0);
  }
  EXPECT_EQ(digests[0], oracle());
  EXPECT_EQ(digests[1], oracle());
  EXPECT_EQ(tensors[0].size(), 60000u * 4);
  EXPECT_TRUE(tensors[0] == tensors[1]) << "exported weights differ";
}

TEST(Resident, AHoldOfARunningJobReadsTheWholeState) {
  SystemJob job("hold");
  job.use("synthetic.toml", job_with({kRemainder, "offload.fraction=0.4", "job.steps=400"}));
  job.start();
  ASSERT_TRUE(job.wait_for_step(5));
  for (int i = 0; i < 3; ++i) {
    const CommandResult digest = job.command({"digest", "{job}", "--json"});
    EXPECT_EQ(digest.exit_code, 0) << digest.output;
  }
  job.wait();
  EXPECT_EQ(digest_of(job.report()), oracle("400"));
}

TEST(Resident, AStateIsNotResumedUnderAnotherSplit) {
  SystemJob job("other");
  job.use("synthetic.toml", job_with({kRemainder, "job.keep_state=true"}));
  job.run();
  job.add("optimizer.main=fp32");
  job.start({"--resume"});
  const CommandResult refused = job.wait();
  EXPECT_EQ(refused.exit_code, static_cast<int>(ExitCode::kBadConfiguration)) << refused.output;
  EXPECT_EQ(job.command({"clean", "{job}", "--include-kept"}).exit_code, 0);
}

}  // namespace
}  // namespace optlease
