#include "shm/job_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "shm/kill_point.h"
#include "shm/leftovers.h"
#include "shm/processes.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

class JobLockTest : public testing::Test {
 protected:
  JobLock take(bool inheritable = false) {
    Result<JobLock> lock = JobLock::acquire(name_, inheritable);
    OPTLEASE_CHECK(lock.is_ok(), "%s", lock.status().text().c_str());
    return std::move(lock).value();
  }
  JobLock::State probe() { return JobLock::try_probe(name_).value(); }

  Names names_;
  std::string name_ = names_.segment("job", ".lock");
};

TEST_F(JobLockTest, IsAbsentThenHeldThenGone) {
  EXPECT_EQ(probe(), JobLock::State::kAbsent);
  JobLock lock = take();
  EXPECT_EQ(probe(), JobLock::State::kHeld);
  lock.release_and_unlink();
  EXPECT_EQ(probe(), JobLock::State::kAbsent);
  EXPECT_TRUE(names_.left_in_shm().empty());
}

TEST_F(JobLockTest, IsFreeWhenItsHolderEndsWithoutAWord) {
  EXPECT_EQ(run_in_child([&] {
              const JobLock lock = take();
              ::raise(SIGKILL);
              return 0;
            }),
            -SIGKILL);
  EXPECT_EQ(probe(), JobLock::State::kFree);
  JobLock lock = take();
  EXPECT_TRUE(lock.name_still_ours());
}

TEST_F(JobLockTest, ASecondTakerIsToldWhoHasIt) {
  const JobLock lock = take();
  const Status status = JobLock::acquire(name_, false).status();
  EXPECT_EQ(status.code(), StatusCode::kBusy);
  EXPECT_NE(status.message().find("running"), std::string::npos) << status.text();
  EXPECT_NE(status.message().find(std::to_string(::getpid())), std::string::npos) << status.text();
}

TEST_F(JobLockTest, StaysHeldWhileAChildThatInheritedItLives) {
  int ready[2], go[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
  // A launcher takes the lock, starts a child that executes another program, and is killed.
  const pid_t launcher = start_child([&] {
    const JobLock lock = take(true);
    if (::fork() == 0) {
      ::dup2(go[0], 0);
      ::dup2(ready[1], 1);
      ::execl("/bin/sh", "sh", "-c", "echo ready; read line; exit 0", nullptr);
      ::_exit(127);
    }
    ::raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(finish(launcher), -SIGKILL);
  ::close(ready[1]);
  ::close(go[0]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(probe(), JobLock::State::kHeld) << "the child lives";
  ::close(go[1]);  // its read ends, and with it the child
  while (::read(ready[0], &byte, 1) > 0) {
  }
  ::close(ready[0]);
  // The pipe's end is closed before the lock is: wait for the kernel, without a limit of our own.
  while (probe() != JobLock::State::kFree) ::usleep(1000);
}

// A launcher is killed while a child of it stands between fork and exec: the child has every
// descriptor still. Nobody waits for it longer than for any holder, and it is named.
TEST_F(JobLockTest, AChildThatStandsBetweenForkAndExecIsNamed) {
  int report[2];
  ASSERT_EQ(::pipe2(report, O_CLOEXEC), 0);
  const pid_t launcher = start_child([&] {
    const JobLock lock = take(false);
    const pid_t child = ::fork();
    if (child == 0) {
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    (void)!::write(report[1], &child, sizeof child);
    ::raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(finish(launcher), -SIGKILL);
  pid_t child = 0;
  ASSERT_EQ(::read(report[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  while (!is_stopped(child)) ::usleep(1000);
  EXPECT_EQ(probe(), JobLock::State::kHeld);
  const Status status = JobLock::acquire(name_, false).status();
  EXPECT_EQ(status.code(), StatusCode::kBusy);
  const std::string named = "process " + std::to_string(child) + " (";
  EXPECT_NE(status.message().find(named), std::string::npos) << status.text();
  EXPECT_NE(status.message().find("kill -CONT " + std::to_string(child)), std::string::npos)
      << status.text();
  ::kill(child, SIGKILL);
  while (probe() != JobLock::State::kFree) ::usleep(1000);
  ::close(report[0]);
  ::close(report[1]);
}

TEST_F(JobLockTest, ItsDescriptorsCloseOnExecUnlessTheyAreToBeInherited) {
  const JobLock lock = take(false);
  const auto open_in_a_program = [&] {
    return run_in_child([&] {
      ::execl("/bin/sh", "sh", "-c", format("[ -e /proc/self/fd/%d ]", lock.fd()).c_str(), nullptr);
      return 127;
    });
  };
  EXPECT_EQ(open_in_a_program(), 1);
  ASSERT_TRUE(const_cast<JobLock&>(lock).set_inheritable(true).is_ok());
  EXPECT_EQ(open_in_a_program(), 0);
}

TEST_F(JobLockTest, ACloseOnExecLockEndsWithItsHolder) {
  const JobLock lock = take(false);
  EXPECT_EQ(::fcntl(lock.fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  JobLock copy = std::move(const_cast<JobLock&>(lock));
  ASSERT_TRUE(copy.set_inheritable(true).is_ok());
  EXPECT_EQ(::fcntl(copy.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(JobLockTest, RefusesLinksForeignFilesAndFilesWithContent) {
  const std::string path = Segment::path_of(name_);
  ASSERT_EQ(::symlink("/dev/null", path.c_str()), 0);
  EXPECT_EQ(JobLock::acquire(name_, false).status().code(), StatusCode::kPermission);
  EXPECT_EQ(JobLock::try_probe(name_).status().code(), StatusCode::kPermission);
  Segment::unlink(name_);
  { ASSERT_TRUE(Segment::create(name_, 4096).is_ok()); }
  EXPECT_EQ(JobLock::acquire(name_, false).status().code(), StatusCode::kCorrupt);
  Segment::unlink(name_);
  const int fd = ::open(path.c_str(), O_CREAT | O_RDWR, 0600);
  ASSERT_EQ(::fchmod(fd, 0644), 0);
  EXPECT_EQ(JobLock::acquire(name_, false).status().code(), StatusCode::kPermission);
  ASSERT_EQ(::fchmod(fd, 0600), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::fchown(fd, 65534, 65534), 0);
    EXPECT_EQ(JobLock::acquire(name_, false).status().code(), StatusCode::kPermission);
  }
  ::close(fd);
}

TEST_F(JobLockTest, AHolderSeesThatItsNameWasReplaced) {
  const JobLock lock = take();
  Segment::unlink(name_);
  EXPECT_FALSE(lock.name_still_ours());
  JobLock second = take();
  EXPECT_TRUE(second.name_still_ours());
}

TEST_F(JobLockTest, ATakerKilledBeforeItHasTheLockLeavesAFreeOne) {
  EXPECT_EQ(run_in_child([&] {
              arm_kill_point("lock.opened");
              (void)take();
              return 0;
            }),
            -SIGKILL);
  EXPECT_EQ(probe(), JobLock::State::kFree);
  EXPECT_TRUE(take().name_still_ours());
}

TEST_F(JobLockTest, AHolderKilledAfterItsUnlinkLeavesNothing) {
  EXPECT_EQ(run_in_child([&] {
              arm_kill_point("lock.unlinked");
              take().release_and_unlink();
              return 0;
            }),
            -SIGKILL);
  EXPECT_EQ(probe(), JobLock::State::kAbsent);
}

// 64 processes start, stop, are killed and clean the same job at once. Whoever has the lock makes a
// segment and must find it untouched, alone, until it lets go.
TEST_F(JobLockTest, SixtyFourStartersAndCleanersNeverShareAJob) {
  struct Shared {
    std::atomic<int> owners;
    std::atomic<int> wins;
  };
  auto* shared = static_cast<Shared*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(shared, MAP_FAILED);
  const std::string segment = names_.segment("job", ".r0");
  const auto starter = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      Result<JobLock> lock = JobLock::acquire(name_, false);
      if (!lock.is_ok()) {
        if (lock.status().code() != StatusCode::kBusy) return 10;
        continue;
      }
      if (shared->owners.fetch_add(1) != 0) return 11;
      Segment::unlink(segment);  // of a starter that died
      Result<Segment> made = Segment::create(segment, 4096);
      if (!made.is_ok()) return 12;
      ::usleep(200);
      if (!made.value().name_still_ours()) return 13;
      if (!lock.value().name_still_ours()) return 14;
      Segment::unlink(segment);
      shared->wins.fetch_add(1);
      if (shared->owners.fetch_sub(1) != 1) return 15;
      lock.value().release_and_unlink();
    }
    return 0;
  };
  std::vector<pid_t> children;
  for (int p = 0; p < 64; ++p) {
    children.push_back(start_child([&, p] {
      if (p % 4 != 0) return starter(6);
      for (int i = 0; i < 12; ++i) {
        if (!clean_leftovers(names_.places(), {}).is_ok()) return 20;
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(finish(child), 0);
  EXPECT_GT(shared->wins.load(), 0);
  EXPECT_EQ(shared->owners.load(), 0);
  ::munmap(shared, 4096);
  EXPECT_TRUE(clean_leftovers(names_.places(), {}).is_ok());
  EXPECT_TRUE(names_.left_in_shm().empty());
}

}  // namespace
}  // namespace optlease::test
