#include "shm/leftovers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "shm/chunk_store.h"
#include "shm/job_lock.h"
#include "shm/kill_point.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

class LeftoversTest : public testing::Test {
 protected:
  // A job that reached `step` and whose processes are all gone.
  void leave_job(const std::string& job, Step step, bool kept = false) {
    Result<ChunkStore> store = ChunkStore::create(small_plan(job), names_.all(job, 2));
    ASSERT_TRUE(store.is_ok()) << store.status().text();
    for (Step s = 0; s <= step; ++s) write_step(&store.value(), names_.all(job, 2), s);
    store.value().set_kept_on_purpose(kept);
    make_run_directory(job);
  }
  void make_run_directory(const std::string& job) {
    const std::string path = names_.run_root() + "/" + job;
    ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
    ASSERT_EQ(::mkdir((path + "/groups").c_str(), 0700), 0);
    write_file(path + "/job.json", "{}");
    write_file(path + "/groups/1", "x");
  }
  static void write_file(const std::string& path, const char* text) {
    const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
    ASSERT_GE(fd, 0);
    ASSERT_GT(::write(fd, text, 1), 0);
    ::close(fd);
  }
  LeftoverJob find(const std::string& job) {
    const Result<std::vector<LeftoverJob>> all = scan_leftovers(names_.places());
    EXPECT_TRUE(all.is_ok());
    for (const LeftoverJob& found : all.value()) {
      if (found.job == job) return found;
    }
    ADD_FAILURE() << "no job " << job;
    return {};
  }
  CleanReport clean(const CleanOptions& options = {}) {
    Result<CleanReport> report = clean_leftovers(names_.places(), options);
    EXPECT_TRUE(report.is_ok()) << report.status().text();
    return std::move(report).value();
  }
  bool run_directory_exists(const std::string& job) {
    return ::access((names_.run_root() + "/" + job).c_str(), F_OK) == 0;
  }
  std::string lock_name(const std::string& job) { return names_.segment(job, ".lock"); }

  Names names_;
};

TEST_F(LeftoversTest, FindsNothingWhereNothingIs) {
  EXPECT_TRUE(scan_leftovers(names_.places()).value().empty());
  EXPECT_TRUE(scan_leftovers({names_.prefix(), names_.run_root() + "/absent"}).value().empty());
  EXPECT_TRUE(clean().removed.empty());
}

TEST_F(LeftoversTest, TellsLiveResumableAndKeptJobsFromRemains) {
  leave_job("crashed", 2);
  leave_job("kept", 1, true);
  leave_job("unfinished", -1);
  leave_job("live", 0);
  const JobLock lock = JobLock::acquire(lock_name("live"), false).value();
  { ASSERT_TRUE(Segment::create(names_.segment("torn", ".ctl"), 8192).is_ok()); }
  { ASSERT_TRUE(Segment::create(names_.segment("orphan", ".r0"), 8192).is_ok()); }
  make_run_directory("shell");
  EXPECT_EQ(find("crashed").state, LeftoverState::kResumable);
  EXPECT_EQ(find("crashed").step_committed, 2);
  EXPECT_GT(find("crashed").bytes, 0u);
  EXPECT_EQ(find("kept").state, LeftoverState::kKept);
  EXPECT_EQ(find("live").state, LeftoverState::kLive);
  EXPECT_EQ(find("unfinished").state, LeftoverState::kRemains);
  EXPECT_EQ(find("torn").state, LeftoverState::kRemains);
  EXPECT_NE(find("torn").why.find("never finished"), std::string::npos) << find("torn").why;
  EXPECT_NE(find("orphan").why.find("no control segment"), std::string::npos);
  EXPECT_NE(find("shell").why.find("only a run directory"), std::string::npos);
}

TEST_F(LeftoversTest, AStateWithoutAnArenaOrWithAnothersIsDamagedAndGoesByNameAlone) {
  leave_job("a", 3);
  leave_job("b", 3);
  Segment::unlink(names_.segment("a", ".r1"));
  ASSERT_EQ(::rename(Segment::path_of(names_.segment("b", ".r0")).c_str(),
                     Segment::path_of(names_.segment("b", ".r1")).c_str()),
            0);
  for (const std::string job : {"a", "b"}) {
    EXPECT_EQ(find(job).state, LeftoverState::kDamaged) << find(job).why;
    EXPECT_FALSE(find(job).why.empty());
  }
  const auto before = names_.left_in_shm();
  const CleanReport spared = clean({.include_kept = true});
  EXPECT_TRUE(spared.removed.empty());
  ASSERT_EQ(spared.kept.size(), 2u);
  EXPECT_NE(spared.kept[0].find("`optlease clean a` removes it"), std::string::npos)
      << spared.kept[0];
  EXPECT_EQ(names_.left_in_shm(), before);
  clean({.include_damaged = true, .only_job = "a"});
  EXPECT_FALSE(run_directory_exists("a"));
  EXPECT_TRUE(run_directory_exists("b"));
}

TEST_F(LeftoversTest, LeavesFilesThatAreNoSegmentsOfAJob) {
  leave_job("a", 0);
  const std::string copy = names_.segment("a", ".r0.bak");
  { ASSERT_TRUE(Segment::create(copy, 4096).is_ok()); }
  clean({.only_job = "a"});
  EXPECT_FALSE(Segment::exists(names_.segment("a", ".ctl")));
  EXPECT_TRUE(Segment::exists(copy));
}

// Anybody may make files in /dev/shm, and a terminal obeys what it is shown.
TEST_F(LeftoversTest, ShowsNoNameThatNoJobCanHave) {
  std::vector<std::string> files;
  for (const char* job : {"a\xff", "a\x1b[2J", "a\nok: nothing here", "a b"}) {
    files.push_back(names_.segment(job, ".ctl"));
    ASSERT_TRUE(Segment::create(files.back(), 4096).is_ok());
  }
  EXPECT_TRUE(scan_leftovers(names_.places()).value().empty());
  clean();
  for (const std::string& file : files) {
    EXPECT_TRUE(Segment::exists(file));
    (void)::unlink(Segment::path_of(file).c_str());
  }
}

TEST_F(LeftoversTest, CleansOneOfTwoJobsAndLeavesTheOther) {
  leave_job("a", 0);
  leave_job("ab", 0);
  const CleanReport report = clean({.only_job = "a"});
  EXPECT_GT(report.bytes, 0u);
  EXPECT_FALSE(run_directory_exists("a"));
  EXPECT_TRUE(run_directory_exists("ab"));
  EXPECT_EQ(find("ab").state, LeftoverState::kResumable);
  for (const std::string& left : names_.left_in_shm()) {
    EXPECT_NE(left.find(names_.prefix() + "ab."), std::string::npos) << left;
  }
}

TEST_F(LeftoversTest, LeavesLiveAndKeptJobsAndSaysWhy) {
  leave_job("kept", 1, true);
  leave_job("live", 0);
  const JobLock lock = JobLock::acquire(lock_name("live"), false).value();
  const CleanReport report = clean();
  EXPECT_TRUE(report.removed.empty());
  ASSERT_EQ(report.kept.size(), 2u);
  EXPECT_NE(report.kept[0].find("--include-kept"), std::string::npos) << report.kept[0];
  EXPECT_NE(report.kept[1].find("runs"), std::string::npos) << report.kept[1];
  EXPECT_EQ(find("kept").state, LeftoverState::kKept);
  clean({.include_kept = true});
  EXPECT_FALSE(run_directory_exists("kept"));
  EXPECT_TRUE(run_directory_exists("live"));
  EXPECT_TRUE(lock.name_still_ours());
}

TEST_F(LeftoversTest, ADryRunNamesWhatCleaningRemovesAndTouchesNothing) {
  leave_job("a", 0);
  const auto before = names_.left_in_shm();
  const CleanReport dry = clean({.dry_run = true});
  EXPECT_EQ(names_.left_in_shm(), before);
  EXPECT_TRUE(run_directory_exists("a"));
  const CleanReport real = clean();
  ASSERT_EQ(dry.removed.size(), real.removed.size());
  for (size_t i = 0; i < dry.removed.size(); ++i) {
    EXPECT_EQ(dry.removed[i].path, real.removed[i].path);
  }
  EXPECT_EQ(dry.bytes, real.bytes);
  EXPECT_TRUE(names_.left_in_shm().empty());
}

TEST_F(LeftoversTest, NeverFollowsSymbolicLinks) {
  const std::string outside = names_.run_root() + ".outside";
  ASSERT_EQ(::mkdir(outside.c_str(), 0700), 0);
  write_file(outside + "/precious", "x");
  make_run_directory("a");
  ASSERT_EQ(::symlink(outside.c_str(), (names_.run_root() + "/a/link").c_str()), 0);
  ASSERT_EQ(::symlink(outside.c_str(), (names_.run_root() + "/b").c_str()), 0);
  ASSERT_EQ(::symlink((outside + "/precious").c_str(),
                      Segment::path_of(names_.segment("c", ".ctl")).c_str()),
            0);
  const CleanReport report = clean({.include_kept = true, .include_damaged = true});
  EXPECT_EQ(::access((outside + "/precious").c_str(), F_OK), 0);
  EXPECT_FALSE(run_directory_exists("a"));
  EXPECT_TRUE(run_directory_exists("b")) << "a link is no run directory of ours";
  EXPECT_EQ(names_.left_in_shm().size(), 1u) << "the link itself stays, too";
  ASSERT_EQ(report.kept.size(), 1u);
  EXPECT_NE(report.kept[0].find("a symbolic link is never followed"), std::string::npos)
      << report.kept[0];
  EXPECT_EQ(find("c").state, LeftoverState::kForeign);
  ::unlink((outside + "/precious").c_str());
  ::rmdir(outside.c_str());
}

TEST_F(LeftoversTest, LeavesWhatBelongsToAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  leave_job("a", 0);
  const std::string foreign = names_.segment("b", ".ctl");
  { ASSERT_TRUE(Segment::create(foreign, 4096).is_ok()); }
  ASSERT_EQ(::chown(Segment::path_of(foreign).c_str(), 65534, 65534), 0);
  const std::string file = names_.run_root() + "/a/theirs";
  write_file(file, "x");
  ASSERT_EQ(::chown(file.c_str(), 65534, 65534), 0);
  const CleanReport report = clean();
  EXPECT_TRUE(Segment::exists(foreign));
  EXPECT_EQ(::access(file.c_str(), F_OK), 0);
  ASSERT_EQ(report.kept.size(), 2u);
  for (const std::string& kept : report.kept) {
    EXPECT_NE(kept.find("uid 65534"), std::string::npos) << kept;
  }
}

TEST_F(LeftoversTest, ACleanerKilledAnywhereIsFinishedByTheNext) {
  for (const char* point : {"lock.taken", "clean.locked", "clean.segment_removed:1",
                            "clean.segment_removed:2", "lock.unlinked"}) {
    SCOPED_TRACE(point);
    leave_job("a", 0);
    EXPECT_EQ(run_in_child([&] {
                arm_kill_point(point);
                (void)clean_leftovers(names_.places(), {});
                return 0;
              }),
              -SIGKILL);
    clean();
    EXPECT_TRUE(names_.left_in_shm().empty());
    EXPECT_FALSE(run_directory_exists("a"));
  }
}

TEST_F(LeftoversTest, RemovesSocketsAndDeepFolders) {
  make_run_directory("a");
  std::string path = names_.run_root() + "/a";
  for (int depth = 0; depth < 10; ++depth) {
    path += "/d";
    ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  }
  clean();
  EXPECT_FALSE(run_directory_exists("a"));
}

}  // namespace
}  // namespace optlease::test
