// What was changed behind a job's back: bits of the summed gradients of an open step, under the
// actor that made them and between two of its lives, and all segments between two lives of the
// store.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <regex>

#include "actors/runtime/exit_code.h"
#include "shm/control_view.h"
#include "shm/segment.h"
#include "tests/support/system_job.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

constexpr Rank kVictim{1};
// About fifty chunks a rank: an actor is mostly in the middle of them.
const std::vector<std::string> kJob = {"job.steps=40", "model.elements=2000000",
                                       "offload.chunk_size_mb=0.25",
                                       "gradients.nonfinite_steps=[]"};
constexpr size_t kChunksLeft = 16;  // more than are on their way to the store at any time

std::string undisturbed() {
  static const std::string digest = [] {
    SystemJob job("undamaged");
    job.use("synthetic.toml", kJob);
    return job.run()["state_digest"].get<std::string>();
  }();
  return digest;
}

std::string segment_name(const SystemJob& job, const std::string& suffix) {
  return "/optlease." + std::to_string(getuid()) + "." + job.name() + "." + suffix;
}

// Chunks of the victim that a step that is open has still to update; 0 where none is open.
size_t chunks_behind(const SystemJob& job) {
  const auto control = Segment::open(segment_name(job, "ctl"), Segment::Access::kReadOnly);
  if (!control.is_ok()) return 0;
  const auto view = ControlView::over(control.value().data(), control.value().bytes());
  if (!view.is_ok() || !view.value().step_is_open()) return 0;
  const Step open = view.value().step_committed() + 1;
  size_t behind = 0;
  for (uint32_t c = 0; c < view.value().chunks(kVictim).size(); ++c) {
    behind += view.value().version(kVictim, ChunkIndex(c)) < open ? 1 : 0;
  }
  return open > 0 ? behind : 0;
}

// True where the victim has still much to do in a step that is open.
bool is_within_open_step(const SystemJob& job) { return chunks_behind(job) > kChunksLeft; }

// Stops the victim (SIGSTOP) in the middle of an open step. 0: the job was over before.
pid_t stop_within_a_step(SystemJob& job) {
  while (job.launcher_alive()) {
    const pid_t actor = job.pid_of("gpu_actor", static_cast<int>(kVictim.value));
    if (actor <= 0) continue;
    kill(actor, SIGSTOP);
    poll(nullptr, 0, 20);
    if (is_within_open_step(job)) return actor;
    kill(actor, SIGCONT);
    poll(nullptr, 0, 7);
  }
  return 0;
}

std::string sums_of(const SystemJob& job) { return Segment::path_of(segment_name(job, "g1")); }

void flip_a_bit_at(const SystemJob& job, uint64_t byte_index) {
  const std::string path = sums_of(job);
  const auto at = static_cast<std::streamoff>(byte_index);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(at);
  file.put(byte);
  ASSERT_TRUE(file.good()) << path;
}

// One bit of the last element, whose chunk is not updated yet.
void flip_a_bit_of_the_sums(const SystemJob& job) {
  flip_a_bit_at(job, fs::file_size(sums_of(job)) - 3);
}

void expect_refused_for_its_sums(const SystemJob& job, const CommandResult& result) {
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCorruptState)) << result.output;
  const std::regex digests("sum to ([0-9a-f]{16}), the step's record says ([0-9a-f]{16})");
  std::smatch both;
  ASSERT_TRUE(std::regex_search(result.output, both, digests)) << result.output;
  EXPECT_NE(both[1], both[2]);
  for (const std::string& words :
       {std::string("rank 1"), Segment::path_of(segment_name(job, "g1")), std::string("--fresh")}) {
    EXPECT_NE(result.output.find(words), std::string::npos) << words << ": " << result.output;
  }
  const Json report = job.report();
  EXPECT_EQ(report["status"], "failed");
  EXPECT_EQ(report["state_kept"], true);
}

TEST(Damage, OfTheSumsOfAnOpenStepIsNamedWhenTheActorIsReplacedAndCostsNothingElse) {
  SystemJob job("sums");
  job.use("synthetic.toml", kJob);
  job.start();
  const pid_t actor = stop_within_a_step(job);
  ASSERT_GT(actor, 0) << "the job was over before its actor was seen at work";
  ASSERT_NO_FATAL_FAILURE(flip_a_bit_of_the_sums(job));
  kill(actor, SIGKILL);
  const CommandResult result = job.wait(60);
  ASSERT_NO_FATAL_FAILURE(expect_refused_for_its_sums(job, result));
  // It was that bit alone.
  ASSERT_NO_FATAL_FAILURE(flip_a_bit_of_the_sums(job));
  EXPECT_EQ(job.run({"--resume"})["state_digest"], undisturbed());
}

TEST(Damage, OfTheSumsOfAnOpenStepIsNamedWhenTheJobIsResumed) {
  SystemJob job("sums-resume");
  job.use("synthetic.toml", kJob);
  job.start();
  ASSERT_GT(stop_within_a_step(job), 0) << "the job was over before its actor was seen at work";
  kill(job.launcher_pid(), SIGKILL);  // and with it, all
  job.wait();
  for (int i = 0; i < 500 && !job.processes().empty(); ++i) poll(nullptr, 0, 10);
  ASSERT_TRUE(is_within_open_step(job));
  ASSERT_NO_FATAL_FAILURE(flip_a_bit_of_the_sums(job));
  for (int again = 0; again < 2; ++again) {  // it is refused as often as it is tried
    job.start({"--resume"});
    const CommandResult result = job.wait(60);
    ASSERT_NO_FATAL_FAILURE(expect_refused_for_its_sums(job, result));
  }
  ASSERT_NO_FATAL_FAILURE(flip_a_bit_of_the_sums(job));
  EXPECT_EQ(job.run({"--resume"})["state_digest"], undisturbed());
}

// They were summed with the reduction, and the update sums what it reads of them.
TEST(Damage, OfTheSumsOfAnOpenStepIsNamedWhereTheActorThatMadeThemLives) {
  SystemJob job("sums-live");
  job.use("synthetic.toml", kJob);
  job.start();
  const pid_t actor = stop_within_a_step(job);
  ASSERT_GT(actor, 0) << "the job was over before its actor was seen at work";
  ASSERT_NO_FATAL_FAILURE(flip_a_bit_of_the_sums(job));
  kill(actor, SIGCONT);
  const CommandResult result = job.wait(60);
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCorruptState)) << result.output;
  const std::regex sums(
      "rank 1, chunk \\d+ \\(space 0, .* sum to ([0-9a-f]{16}), not ([0-9a-f]{16})");
  std::smatch both;
  ASSERT_TRUE(std::regex_search(result.output, both, sums)) << result.output;
  EXPECT_NE(both[1], both[2]);
  for (const std::string& words : {sums_of(job), std::string("--fresh")}) {
    EXPECT_NE(result.output.find(words), std::string::npos) << words << ": " << result.output;
  }
  const Json report = job.report();
  EXPECT_EQ(report["status"], "failed");
  EXPECT_EQ(report["state_kept"], true);
  ASSERT_GT(chunks_behind(job), 0u) << "the chunk was committed although its damage was seen";
  // Its successor does not believe them either; and it was that bit alone.
  job.start({"--resume"});
  const CommandResult again = job.wait(60);
  ASSERT_NO_FATAL_FAILURE(expect_refused_for_its_sums(job, again));
  ASSERT_NO_FATAL_FAILURE(flip_a_bit_of_the_sums(job));
  EXPECT_EQ(job.run({"--resume"})["state_digest"], undisturbed());
}

// Where the bit was used already, it changes nothing; else it is refused. There is no third way.
TEST(Damage, OfTheSumsAnywhereEndsTheJobOrChangesNoBitOfTheResult) {
  constexpr uint32_t kSeed = 20261130;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  int refused = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {
    SystemJob job("sums-any");
    job.use("synthetic.toml", kJob);
    job.start();
    const pid_t actor = stop_within_a_step(job);
    ASSERT_GT(actor, 0) << "the job was over before its actor was seen at work";
    const uint64_t at = random() % (fs::file_size(sums_of(job)) - 256);  // no padding
    ASSERT_NO_FATAL_FAILURE(flip_a_bit_at(job, at));
    kill(actor, SIGCONT);
    const CommandResult result = job.wait(90);
    if (result.exit_code == static_cast<int>(ExitCode::kCorruptState)) {
      ++refused;
      EXPECT_EQ(job.command({"clean", "{job}", "--include-kept"}).exit_code, 0);
      continue;
    }
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(job.report()["state_digest"], undisturbed()) << "byte " << at << " was used silently";
  }
  std::printf("%d of 6 were refused\n", refused);
}

TEST(Damage, NoneMeansThatAKillWithinAnOpenStepChangesNoBit) {
  SystemJob job("sums-whole");
  job.use("synthetic.toml", kJob);
  job.start();
  const pid_t actor = stop_within_a_step(job);
  ASSERT_GT(actor, 0) << "the job was over before its actor was seen at work";
  kill(actor, SIGKILL);
  EXPECT_EQ(job.wait(90).exit_code, 0);
  const Json report = job.report();
  EXPECT_EQ(report["restarts"].size(), 1u) << report["restarts"].dump(1);
  EXPECT_EQ(report["state_digest"], undisturbed());
}

// --- Segments that were exchanged -------------------------------------------------------------

const std::vector<std::string> kSegments = {"ctl", "r0", "r1", "g0", "g1"};

class OlderCopy {
 public:
  explicit OlderCopy(const SystemJob& job) : job_(job), folder_(job.directory() + "/older") {
    fs::create_directories(folder_);
    for (const std::string& suffix : kSegments) fs::copy_file(path(suffix), copy(suffix));
  }
  // Same files, older bytes.
  void write_over() const {
    for (const std::string& suffix : kSegments) {
      std::ifstream from(copy(suffix), std::ios::binary);
      std::fstream to(path(suffix), std::ios::in | std::ios::out | std::ios::binary);
      to << from.rdbuf();
      EXPECT_TRUE(to.flush().good()) << path(suffix);
    }
  }
  // Other files under the same names; the job's own processes keep what they have mapped.
  void put_in_place() const {
    for (const std::string& suffix : kSegments) {
      fs::remove(path(suffix));
      fs::copy_file(copy(suffix), path(suffix));
      fs::permissions(path(suffix), fs::perms::owner_read | fs::perms::owner_write);
    }
  }

 private:
  std::string path(const std::string& suffix) const {
    return Segment::path_of(segment_name(job_, suffix));
  }
  std::string copy(const std::string& suffix) const { return folder_ + "/" + suffix; }
  const SystemJob& job_;
  std::string folder_;
};

enum class Exchange { kBytes, kFiles };

// A job that was resumed from step k and is well past it loses its store, and while there is none
// (the launcher stands still), its segments become those of step k.
void go_back_in_time(const std::string& name, Exchange exchange, bool actors_die_too) {
  SystemJob job(name);
  job.use("synthetic.toml", {"job.steps=100000", "gradients.nonfinite_steps=[]",
                             "model.elements=60000", "offload.chunk_size_mb=0.0625"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(5));
  ASSERT_EQ(job.command({"stop", "{job}", "--keep"}).exit_code, 0);
  job.wait();
  const OlderCopy older(job);
  job.start({"--resume"});
  ASSERT_TRUE(job.wait_for_step(1));
  const int64_t from = job.status()["step_committed"].get<int64_t>();
  ASSERT_TRUE(job.wait_for_step(from + 10));
  const pid_t store = job.pid_of("host_store", 0);
  const pid_t actors[] = {job.pid_of("gpu_actor", 0), job.pid_of("gpu_actor", 1)};
  ASSERT_TRUE(store > 0 && actors[0] > 0 && actors[1] > 0);
  kill(job.launcher_pid(), SIGSTOP);
  for (const pid_t actor : actors) kill(actor, actors_die_too ? SIGKILL : SIGSTOP);
  kill(store, SIGKILL);
  poll(nullptr, 0, 100);
  if (exchange == Exchange::kBytes) older.write_over();
  if (exchange == Exchange::kFiles) older.put_in_place();
  for (const pid_t actor : actors) kill(actor, SIGCONT);
  kill(job.launcher_pid(), SIGCONT);
  const CommandResult result = job.wait(60);
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCorruptState)) << result.output;
  // An actor in the middle of an update may be the first to see it, by the sums of its gradients.
  EXPECT_TRUE(result.output.find("older copy") != std::string::npos ||
              result.output.find("bits of them changed since") != std::string::npos)
      << result.output;
  const Json report = job.report();
  EXPECT_EQ(report["status"], "failed");
  EXPECT_EQ(report["state_kept"], true);
  if (actors_die_too) {
    EXPECT_EQ(report["ending"], "state_went_back") << report.dump(1);
  }
  EXPECT_EQ(job.command({"clean", "{job}", "--include-kept"}).exit_code, 0);
}

TEST(Damage, ACommittedStepNeverGoesBackWhereTheSegmentsAreOverwrittenByAnOlderCopy) {
  go_back_in_time("back-bytes", Exchange::kBytes, false);
}
TEST(Damage, ACommittedStepNeverGoesBackWhereTheSegmentsAreReplacedByOlderFiles) {
  go_back_in_time("back-files", Exchange::kFiles, false);
}
TEST(Damage, ACommittedStepNeverGoesBackWhereOnlyTheLauncherKnowsOfIt) {
  go_back_in_time("back-alone", Exchange::kBytes, true);
}

// What stands in a segment's place when a process that maps it is started again.
struct Exchanged {
  const char* segment;
  const char* role;
  const char* words;
};

// The launcher stands still while a process is killed and a segment changes.
Json ends_at_once(SystemJob& job, const Exchanged& what,
                  const std::function<void(const std::string&)>& exchange) {
  job.start();
  EXPECT_TRUE(job.wait_for_step(3));
  const pid_t victim = job.pid_of(what.role, 0);
  EXPECT_GT(victim, 0);
  kill(job.launcher_pid(), SIGSTOP);
  kill(victim, SIGKILL);
  exchange(Segment::path_of(segment_name(job, what.segment)));
  kill(job.launcher_pid(), SIGCONT);
  const CommandResult result = job.wait(60);
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCorruptState)) << result.output;
  const Json report = job.report();
  EXPECT_EQ(report["ending"], "fatal_exit");
  EXPECT_EQ(report["state_kept"], true);
  EXPECT_LE(report["restarts"].size(), 2u)
      << "the killed one and the one that found the damage: " << report["restarts"];
  const std::string text = report["ending_text"].get<std::string>();
  for (const std::string& words : {Segment::path_of(segment_name(job, what.segment)),
                                   std::string(what.words), std::string(what.role)}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << ": " << text;
    EXPECT_NE(result.output.find(words), std::string::npos) << words << ": " << result.output;
  }
  return report;
}

const std::vector<std::string> kHalfResident = {
    "job.steps=100000",   "gradients.nonfinite_steps=[]", "model.elements=60000",
    "ranks.world_size=1", "offload.chunk_size_mb=0.0625", "offload.fraction=0.5"};

TEST(Damage, ASegmentOfAnotherModeEndsTheJobAtOnceAndIsNamed) {
  int index = 0;
  for (const Exchanged& what : {Exchanged{"r0", "gpu_actor", "mode 0644, not 0600"},
                                {"ctl", "host_store", "mode 0644, not 0600"},
                                {"d0", "gpu_actor", "mode 0644, not 0600"}}) {
    SystemJob job("mode" + std::to_string(index++));
    job.use("synthetic.toml", kHalfResident);
    ends_at_once(job, what, [](const std::string& path) { chmod(path.c_str(), 0644); });
    chmod(Segment::path_of(segment_name(job, what.segment)).c_str(), 0600);
    // Put right, it goes on.
    job.start({"--resume"});
    EXPECT_TRUE(job.wait_for_step(job.status()["step_committed"].get<int64_t>() + 1));
    EXPECT_EQ(job.command({"stop", "{job}", "--discard"}).exit_code, 0);
    job.wait(30);
  }
}

TEST(Damage, ALinkInASegmentsPlaceEndsTheJobAtOnceAndIsNotFollowed) {
  int index = 0;
  for (const Exchanged& what : {Exchanged{"r0", "host_store", "a symbolic link is never followed"},
                                {"r0", "gpu_actor", "a symbolic link is never followed"},
                                {"d0", "gpu_actor", "a symbolic link is never followed"}}) {
    SystemJob job("link" + std::to_string(index++));
    job.use("synthetic.toml", kHalfResident);
    const std::string target = job.directory() + "/target";
    std::ofstream(target) << "somebody else's";
    const std::string path = Segment::path_of(segment_name(job, what.segment));
    ends_at_once(job, what, [&](const std::string& at) {
      fs::remove(at);
      fs::create_symlink(target, at);
    });
    std::string text;
    std::getline(std::ifstream(target), text);
    EXPECT_EQ(text, "somebody else's");
    EXPECT_TRUE(fs::is_symlink(path));
    fs::remove(path);
    EXPECT_EQ(job.command({"clean", "{job}", "--include-kept"}).exit_code, 0);
  }
}

TEST(Damage, AnArenaThatIsMovedAwayWithoutAStoreIsDamageAndPutBack) {
  SystemJob job("moved");
  job.use("synthetic.toml", kHalfResident);
  const Json report = ends_at_once(job, {"r0", "host_store", "No such file"},
                                   [](const std::string& path) { fs::remove(path); });
  EXPECT_NE(report["ending_text"].get<std::string>().find("is put back"), std::string::npos);
  const int64_t step = report["steps_committed"].get<int64_t>();
  job.start({"--resume"});
  EXPECT_TRUE(job.wait_for_step(step + 3));
  EXPECT_EQ(job.command({"stop", "{job}", "--discard"}).exit_code, 0);
  job.wait(30);
}

}  // namespace
}  // namespace optlease
