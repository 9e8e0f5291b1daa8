#include "launcher/job_claim.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "actors/tensor_files/safetensors.h"
#include "launcher/files.h"
#include "launcher/job_origin.h"
#include "shm/kill_point.h"
#include "tests/launcher/claim_fixture.h"

namespace optlease {
namespace {

TEST_F(JobClaimTest, ANewJobGetsItsLockAndItsPlanFile) {
  ClaimOutcome outcome = claim_job(plan_, StartMode::kNew);
  ASSERT_TRUE(outcome.claim.has_value()) << outcome.failure.text;
  EXPECT_FALSE(outcome.claim->resumed);
  const auto plan = read_job_plan(run_->job_file());
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  EXPECT_EQ(layout_hash(plan.value().segment), layout_hash(plan_.segment));
}

TEST_F(JobClaimTest, ARunningJobIsNotClaimedTwice) {
  const ClaimOutcome first = claim_job(plan_, StartMode::kNew);
  ASSERT_TRUE(first.claim.has_value());
  for (const StartMode mode : {StartMode::kNew, StartMode::kResume, StartMode::kFresh}) {
    const ClaimOutcome second = claim_job(plan_, mode);
    ASSERT_FALSE(second.claim.has_value());
    EXPECT_EQ(second.failure.code, ExitCode::kAlreadyRunning);
  }
  EXPECT_TRUE(std::filesystem::exists(run_->job_file())) << "the first job's file is untouched";
}

TEST_F(JobClaimTest, AValidStateIsRefusedWithTheThreeChoices) {
  make_state(7);
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kNew);
  ASSERT_FALSE(outcome.claim.has_value());
  EXPECT_EQ(outcome.failure.code, ExitCode::kStateExists);
  for (const char* word : {"step 7", "--resume", "--fresh", "optlease clean"}) {
    EXPECT_NE(outcome.failure.text.find(word), std::string::npos) << word;
  }
  EXPECT_TRUE(state_is_ready(*run_));
}

TEST_F(JobClaimTest, ResumeFindsStepAndIncarnations) {
  make_state(7);
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kResume);
  ASSERT_TRUE(outcome.claim.has_value()) << outcome.failure.text;
  EXPECT_TRUE(outcome.claim->resumed);
  EXPECT_EQ(outcome.claim->step_committed, 7);
  EXPECT_EQ(outcome.claim->last_incarnation, (std::vector<uint64_t>{0, 5}));
  EXPECT_TRUE(state_is_ready(*run_));
}

TEST_F(JobClaimTest, TheNextStepIsTheFirstOrTheOneAfterTheState) {
  const std::string& job = plan_.segment.job_name;
  EXPECT_EQ(next_step(job, StartMode::kResume), 1);
  make_state(7);
  EXPECT_EQ(next_step(job, StartMode::kNew), 1);
  EXPECT_EQ(next_step(job, StartMode::kResume), 8);
}

TEST_F(JobClaimTest, ResumeWithFewerStepsThanTheStateHasIsRefusedAndTouchesNothing) {
  make_state(7);
  plan_.steps = 6;
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kResume);
  ASSERT_FALSE(outcome.claim.has_value());
  EXPECT_EQ(outcome.failure.code, ExitCode::kBadConfiguration);
  EXPECT_TRUE(state_is_ready(*run_));
}

TEST_F(JobClaimTest, ResumeWithoutStateIsRefusedAndLeavesNothing) {
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kResume);
  ASSERT_FALSE(outcome.claim.has_value());
  EXPECT_EQ(outcome.failure.code, ExitCode::kStateAbsent);
  EXPECT_TRUE(segments_of_job(*run_).empty());
  EXPECT_FALSE(std::filesystem::exists(run_->path()));
}

TEST_F(JobClaimTest, ResumeUnderAnotherLayoutSaysWhatDiffers) {
  make_state(7);
  plan_.segment.window_chunks = 2;
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kResume);
  ASSERT_FALSE(outcome.claim.has_value());
  EXPECT_EQ(outcome.failure.code, ExitCode::kBadConfiguration);
  EXPECT_NE(outcome.failure.text.find("window_chunks was 1 and is now 2"), std::string::npos)
      << outcome.failure.text;
  EXPECT_TRUE(state_is_ready(*run_));
}

TEST_F(JobClaimTest, ResumeWithAnotherSeedIsRefusedAndTouchesNothing) {
  plan_.model.seed = 1;
  make_state(7);
  ASSERT_TRUE(run_->create().is_ok());
  ASSERT_TRUE(write_file_atomically(run_->job_file(), to_json(plan_)).is_ok());
  plan_.model.seed = 2;
  const auto is_refused = [&] {
    const ClaimOutcome outcome = claim_job(plan_, StartMode::kResume);
    EXPECT_FALSE(outcome.claim.has_value());
    EXPECT_EQ(outcome.failure.code, ExitCode::kBadConfiguration);
    EXPECT_NE(outcome.failure.text.find("model.seed was 1 and is now 2"), std::string::npos)
        << outcome.failure.text;
  };
  is_refused();
  is_refused();  // the first refusal did not forget the seed
  ASSERT_TRUE(keep_only_origin(*run_).is_ok());
  EXPECT_FALSE(std::filesystem::exists(run_->job_file()));
  is_refused();
  EXPECT_TRUE(state_is_ready(*run_));
  plan_.model.seed = 1;
  const ClaimOutcome same = claim_job(plan_, StartMode::kResume);
  ASSERT_TRUE(same.claim.has_value()) << same.failure.text;
  EXPECT_TRUE(same.claim->notes.empty());
}

TEST_F(JobClaimTest, ResumeThatIsKilledWhileItMakesRoomForgetsNoSeed) {
  plan_.model.seed = 1;
  make_state(7);
  ASSERT_TRUE(run_->create().is_ok());
  ASSERT_TRUE(write_file_atomically(run_->job_file(), to_json(plan_)).is_ok());
  ASSERT_TRUE(keep_only_origin(*run_).is_ok());
  for (const char* point : {"claim.plan_written", "claim.emptied"}) {
    const pid_t child = fork();
    if (child == 0) {
      arm_kill_point(point);
      (void)claim_job(plan_, StartMode::kResume);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << point << " is never passed";
    const auto stored = plan_of_stored_state(*run_, layout_hash(plan_.segment));
    ASSERT_TRUE(stored.has_value()) << point;
    EXPECT_EQ(stored->model.seed, 1u) << point;
  }
}

TEST_F(JobClaimTest, ResumeKeepsLogsAndThePlanAndNothingElse) {
  make_state(7);
  const std::vector<std::string> kept = {"host_store.log", "job.json", "loss.0.jsonl"};
  ASSERT_TRUE(run_->create().is_ok());
  for (const std::string& name :
       {kept[0], kept[2], std::string("launcher.sock"), std::string("kept.json")}) {
    ASSERT_TRUE(write_file_atomically(run_->path() + "/" + name, "x").is_ok());
  }
  ASSERT_TRUE(std::filesystem::create_directories(run_->path() + "/gloo/epoch"));
  ASSERT_TRUE(claim_job(plan_, StartMode::kResume).claim.has_value());
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(run_->path())) {
    left.push_back(entry.path().filename());
  }
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, kept);
  EXPECT_EQ(run_->job_file(), run_->path() + "/" + kept[1]);
}

TEST_F(JobClaimTest, ResumeSaysWhereTheSeedIsNotKnown) {
  make_state(7);
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kResume);
  ASSERT_TRUE(outcome.claim.has_value()) << outcome.failure.text;
  ASSERT_EQ(outcome.claim->notes.size(), 1u);
  EXPECT_NE(outcome.claim->notes[0].find("model.seed"), std::string::npos);
}

TEST(JobOrigin, ASeedThatNothingIsDrawnFromMakesNoDifference) {
  JobPlan stored, wanted;
  stored.model.init = wanted.model.init = {{TensorInit{}}};
  wanted.model.seed = 5;
  EXPECT_EQ(model_difference(stored, wanted, true), "model.seed was 0 and is now 5");
  EXPECT_EQ(model_difference(stored, wanted, false), "model.seed was 0 and is now 5");
  stored.model.init = wanted.model.init = {{TensorInit{InitKind::kZeros, 0}}};
  EXPECT_EQ(model_difference(stored, wanted, true), "");
  stored.model.source = wanted.model.source = "weights.safetensors";
  EXPECT_EQ(model_difference(stored, wanted, false), "");
  wanted.model.source = "moved.safetensors";
  EXPECT_EQ(model_difference(stored, wanted, true), "") << "the weights are in the state";
  EXPECT_NE(model_difference(stored, wanted, false).find("model.source was"), std::string::npos)
      << "half of them would come from another file";
}

TEST_F(JobClaimTest, FreshRemovesTheState) {
  make_state(7);
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kFresh);
  ASSERT_TRUE(outcome.claim.has_value()) << outcome.failure.text;
  EXPECT_EQ(segments_of_job(*run_), (std::vector<std::string>{run_->lock_segment()}));
}

TEST_F(JobClaimTest, AStateWithoutItsControlSegmentIsRefusedInWordsAndFreshDiscardsIt) {
  make_state(7);
  Segment::unlink(run_->control_segment());
  const ClaimOutcome refused = claim_job(plan_, StartMode::kNew);
  ASSERT_FALSE(refused.claim.has_value());
  EXPECT_EQ(refused.failure.code, ExitCode::kCorruptState);
  for (const std::string& words : {std::string("no control segment"), std::string("--fresh"),
                                   Segment::path_of(run_->arena_segment(Rank(0)))}) {
    EXPECT_NE(refused.failure.text.find(words), std::string::npos) << refused.failure.text;
  }
  EXPECT_EQ(segments_of_job(*run_).size(), 2u) << "the arenas, and no lock";
  const ClaimOutcome fresh = claim_job(plan_, StartMode::kFresh);
  ASSERT_TRUE(fresh.claim.has_value()) << fresh.failure.text;
  EXPECT_EQ(segments_of_job(*run_), (std::vector<std::string>{run_->lock_segment()}));
  ASSERT_EQ(fresh.claim->notes.size(), 1u);
}

// Of any segment: what is left is told from a damaged state, and every command may go on from it.
TEST_F(JobClaimTest, ARemovalThatIsKilledAnywhereIsFinishedByTheNextRun) {
  for (const char* point :
       {"removal.begun", "removal.segment:1", "removal.segment:2", "removal.segment:3"}) {
    SCOPED_TRACE(point);
    make_state(7);
    const pid_t child = fork();
    if (child == 0) {
      arm_kill_point(point);
      (void)claim_job(plan_, StartMode::kFresh);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it is never passed";
    EXPECT_EQ(claim_job(plan_, StartMode::kResume).failure.code, ExitCode::kStateAbsent);
    ClaimOutcome again = claim_job(plan_, StartMode::kNew);
    ASSERT_TRUE(again.claim.has_value()) << again.failure.text;
    EXPECT_EQ(segments_of_job(*run_), (std::vector<std::string>{run_->lock_segment()}));
    again.claim->lock.release_and_unlink();
  }
}

TEST_F(JobClaimTest, ASymlinkUnderOurNameIsLeftAlone) {
  const std::string target = directory_.path() + "/victim";
  const std::string path = Segment::path_of(run_->control_segment());
  ASSERT_EQ(symlink(target.c_str(), path.c_str()), 0);
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kFresh);
  EXPECT_FALSE(outcome.claim.has_value());
  struct stat found {};
  EXPECT_EQ(lstat(path.c_str(), &found), 0) << "the link was removed";
  EXPECT_EQ(segments_of_job(*run_).size(), 1u) << "the refused run left its lock";
  unlink(path.c_str());
}

TEST_F(JobClaimTest, AMachineThatIsTooSmallIsRefusedWithNumbers) {
  plan_.segment.spaces[0].tensors[0].shape = {1ull << 42};
  ASSERT_TRUE(lay_out(&plan_.segment, 1ull << 40).is_ok());
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kNew);
  ASSERT_FALSE(outcome.claim.has_value());
  EXPECT_EQ(outcome.failure.code, ExitCode::kNoResources);
  EXPECT_NE(outcome.failure.text.find("/dev/shm"), std::string::npos);
  EXPECT_TRUE(segments_of_job(*run_).empty());
}

// Whoever asks for a job that does not fit keeps the state that he has, also with --fresh.
TEST_F(JobClaimTest, ARefusalForMemoryCostsNoEarlierState) {
  make_state(7);
  const std::vector<std::string> before = segments_of_job(*run_);
  JobPlan larger = plan_;
  larger.segment.spaces[0].tensors[0].shape = {1ull << 40};
  larger.segment.spaces[0].tensors[0].elements = 0;
  ASSERT_TRUE(lay_out(&larger.segment, 64ull << 20).is_ok());
  const ClaimOutcome outcome = claim_job(larger, StartMode::kFresh);
  ASSERT_FALSE(outcome.claim);
  EXPECT_EQ(outcome.failure.code, ExitCode::kNoResources) << outcome.failure.text;
  for (const std::string& name : before) EXPECT_TRUE(Segment::exists(name)) << name;
  auto state = JobState::open(*run_);
  ASSERT_TRUE(state.is_ok()) << state.status().text();
  EXPECT_EQ(state.value().view().step_committed(), 7);
}

TEST_F(JobClaimTest, AStepThatWasLeftHalfWayIsNotAtRest) {
  make_state(7);
  auto store = ChunkStore::recover(plan_.segment, names());
  ASSERT_TRUE(store.is_ok());
  EXPECT_TRUE(JobState::open(*run_).value().check_at_rest().is_ok());
  store.value().commit_unchanged(Rank(0), ChunkIndex(0), 8);
  const Status rest = JobState::open(*run_).value().check_at_rest();
  ASSERT_FALSE(rest.is_ok());
  EXPECT_NE(rest.message().find("step 8 was left half-way: 1 of"), std::string::npos)
      << rest.message();
}

TEST_F(JobClaimTest, ExportWritesTheMainWeights) {
  make_state(7);
  const auto state = JobState::open(*run_);
  ASSERT_TRUE(state.is_ok());
  const std::string path = directory_.path() + "/weights.safetensors";
  const auto go_on = [] { return Status::ok(); };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ASSERT_TRUE(export_weights(state.value(), {path, dtype}, go_on).is_ok());
    const auto reader = SafetensorsReader::open(path);
    ASSERT_TRUE(reader.is_ok()) << reader.status().text();
    const FileTensor* tensor = reader.value().find("b");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->shape, (std::vector<uint64_t>{100, 10}));
    EXPECT_EQ(tensor->dtype, name_of(dtype));
    if (dtype != DType::kF32) continue;
    std::vector<float> values(tensor->elements);
    ASSERT_TRUE(reader.value().read(*tensor, 0, tensor->bytes(), values.data()).is_ok());
    for (uint64_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], static_cast<float>(1000 + i));
    }
  }
}

TEST_F(JobClaimTest, ExportThatLosesItsHoldLeavesNoFile) {
  make_state(7);
  const auto state = JobState::open(*run_);
  ASSERT_TRUE(state.is_ok());
  const std::string path = directory_.path() + "/weights.safetensors";
  int calls = 0;
  const auto lose = [&] {
    return ++calls < 3 ? Status::ok() : Status(StatusCode::kPeerLost, "lost");
  };
  EXPECT_FALSE(export_weights(state.value(), {path, DType::kF32}, lose).is_ok());
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 0u);
}

TEST_F(JobClaimTest, ACorruptChunkIsNamed) {
  make_state(7);
  {
    auto arena = Segment::open(run_->arena_segment(Rank(1)), Segment::Access::kReadWrite);
    ASSERT_TRUE(arena.is_ok());
    static_cast<char*>(arena.value().data())[kArenaSlotsOffset + 5] ^= 1;
  }
  const auto state = JobState::open(*run_);
  ASSERT_TRUE(state.is_ok());
  const auto digest = digest_job(state.value(), [] { return Status::ok(); });
  ASSERT_FALSE(digest.is_ok());
  EXPECT_EQ(digest.status().code(), StatusCode::kCorrupt);
}

TEST_F(JobClaimTest, ARefusalForALiveLockLeavesNoRunDirectory) {
  auto lock = JobLock::acquire(run_->lock_segment(), false);
  ASSERT_TRUE(lock.is_ok());
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kNew);
  EXPECT_EQ(outcome.failure.code, ExitCode::kAlreadyRunning);
  EXPECT_FALSE(std::filesystem::exists(run_->path()));
  lock.value().release_and_unlink();
}

TEST_F(JobClaimTest, ASocketInADirectoryThatIsNotOursAloneIsNotConnectedTo) {
  ASSERT_TRUE(run_->create().is_ok());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", run_->launcher_socket().c_str());
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 4), 0);
  const auto connections = [&] {
    int count = 0;
    while (UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))) ++count;
    return count;
  };
  for (const std::string& folder : {run_->path(), run_root()}) {
    ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
    EXPECT_FALSE(job_answers(*run_)) << folder;
    EXPECT_EQ(connections(), 0) << folder;
    make_state(7);
    {
      auto store = Segment::open(run_->control_segment(), Segment::Access::kReadWrite);
      ASSERT_TRUE(store.is_ok());
      ASSERT_TRUE(store.value().mark_in_use().is_ok());
      EXPECT_TRUE(job_answers(*run_)) << "its segment says so";
      EXPECT_EQ(connections(), 0) << folder;
    }
    for (const std::string& name : segments_of_job(*run_)) Segment::unlink(name);
    ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
    EXPECT_TRUE(job_answers(*run_)) << folder;
    EXPECT_EQ(connections(), 1) << folder;
  }
}

TEST_F(JobClaimTest, APlanThatCannotBeWrittenCostsNoState) {
  make_state(7);
  ASSERT_TRUE(run_->create().is_ok());
  std::filesystem::create_directories(run_->job_file());  // a directory stands in its place
  const ClaimOutcome outcome = claim_job(plan_, StartMode::kFresh);
  EXPECT_FALSE(outcome.claim.has_value());
  EXPECT_FALSE(outcome.failure.text.empty());
  const auto state = JobState::open(*run_);
  ASSERT_TRUE(state.is_ok()) << "the state is gone: " << state.status().text();
  EXPECT_EQ(state.value().view().step_committed(), 7);
}

}  // namespace
}  // namespace optlease
