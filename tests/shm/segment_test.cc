#include "shm/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "shm/kill_point.h"
#include "tests/shm/test_support.h"
#include "tests/support/small_shm.h"

namespace optlease::test {
namespace {

using testing_support::fill_shm;
using testing_support::in_small_shm;
using testing_support::kNoRightToMount;
using testing_support::stands_still;

class SegmentTest : public testing::Test {
 protected:
  std::string name(const std::string& what = "a") const { return names_.segment(what, ".ctl"); }
  std::string path(const std::string& what = "a") const { return Segment::path_of(name(what)); }
  static StatusCode open_code(const std::string& name) {
    return Segment::open(name, Segment::Access::kReadOnly).status().code();
  }
  Names names_;
};

TEST_F(SegmentTest, CreatesZeroFilledReservedMemoryThatOnlyThisUserReads) {
  const mode_t umask_before = ::umask(0);
  const uint64_t bytes = 3 * 4096 + 17;
  const Result<Segment> made = Segment::create(name(), bytes);
  ::umask(umask_before);
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  struct stat info {};
  ASSERT_EQ(::fstat(made.value().fd(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), bytes);
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, bytes) << "the space is not reserved";
  EXPECT_EQ(::fcntl(made.value().fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  const char* data = static_cast<const char*>(made.value().data());
  EXPECT_TRUE(std::all_of(data, data + bytes, [](char c) { return c == 0; }));
}

TEST_F(SegmentTest, KeepsModeUnderARestrictiveUmask) {
  const mode_t umask_before = ::umask(0777);
  const Result<Segment> made = Segment::create(name(), 4096);
  ::umask(umask_before);
  ASSERT_TRUE(made.is_ok());
  EXPECT_TRUE(Segment::open(name(), Segment::Access::kReadWrite).is_ok());
}

TEST_F(SegmentTest, SharesBytesBetweenTwoOpenings) {
  Result<Segment> made = Segment::create(name(), 4096);
  Result<Segment> other = Segment::open(name(), Segment::Access::kReadOnly);
  ASSERT_TRUE(made.is_ok() && other.is_ok());
  static_cast<char*>(made.value().data())[4095] = 'x';
  EXPECT_EQ(static_cast<const char*>(other.value().data())[4095], 'x');
  EXPECT_EQ(other.value().bytes(), 4096u);
}

TEST_F(SegmentTest, KeepsTheDescriptorAfterUnmap) {
  Result<Segment> made = Segment::create(name(), 4096);
  ASSERT_TRUE(made.is_ok());
  made.value().unmap();
  EXPECT_EQ(made.value().data(), nullptr);
  EXPECT_TRUE(made.value().name_still_ours());
}

TEST_F(SegmentTest, RefusesATakenNameAndLeavesItAlone) {
  Result<Segment> made = Segment::create(name(), 8192);
  ASSERT_TRUE(made.is_ok());
  EXPECT_EQ(Segment::create(name(), 4096).status().code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(made.value().name_still_ours());
}

TEST_F(SegmentTest, RefusesNamesThatAreNone) {
  for (const char* bad : {"", "/", "a", "/a/b", "/..", "/."}) {
    EXPECT_EQ(Segment::create(bad, 4096).status().code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(open_code(bad), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(Segment::create("/" + std::string(300, 'a'), 1).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Segment::create(name(), 0).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SegmentTest, OpeningAnAbsentNameIsNotFound) {
  EXPECT_EQ(open_code(name()), StatusCode::kNotFound);
}

TEST_F(SegmentTest, RefusesASymbolicLinkEvenToAGoodSegment) {
  ASSERT_TRUE(Segment::create(name("target"), 4096).is_ok());
  ASSERT_EQ(::symlink(path("target").c_str(), path("link").c_str()), 0);
  EXPECT_EQ(open_code(name("link")), StatusCode::kPermission);
  EXPECT_EQ(Segment::create(name("link"), 4096).status().code(), StatusCode::kAlreadyExists);
}

TEST_F(SegmentTest, RefusesOtherModesAndSaysWhich) {
  ASSERT_TRUE(Segment::create(name(), 4096).is_ok());
  for (const mode_t mode : {0640u, 0660u, 0604u, 0644u, 0666u, 0700u}) {
    ASSERT_EQ(::chmod(path().c_str(), mode), 0);
    const Status status = Segment::open(name(), Segment::Access::kReadOnly).status();
    EXPECT_EQ(status.code(), StatusCode::kPermission);
    EXPECT_NE(status.message().find(format("%04o", mode)), std::string::npos) << status.text();
  }
}

TEST_F(SegmentTest, RefusesAnotherOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_TRUE(Segment::create(name(), 4096).is_ok());
  ASSERT_EQ(::chown(path().c_str(), 65534, 65534), 0);
  EXPECT_EQ(open_code(name()), StatusCode::kPermission);
}

TEST_F(SegmentTest, RefusesAFifoWithoutWaitingForItsOtherEnd) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(open_code(name()), StatusCode::kPermission);
}

TEST_F(SegmentTest, RefusesZeroLength) {
  const int fd = ::open(path().c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(fd, 0);
  ::close(fd);
  EXPECT_EQ(open_code(name()), StatusCode::kCorrupt);
}

TEST_F(SegmentTest, SeesItsNameRemovedOrReplaced) {
  Result<Segment> made = Segment::create(name(), 4096);
  ASSERT_TRUE(made.is_ok());
  Segment::unlink(name());
  EXPECT_FALSE(made.value().name_still_ours());
  Result<Segment> second = Segment::create(name(), 4096);
  ASSERT_TRUE(second.is_ok());
  EXPECT_FALSE(made.value().name_still_ours());
  EXPECT_TRUE(second.value().name_still_ours());
}

TEST_F(SegmentTest, ARequestThatCannotFitIsNoSpaceWithNumbersAndLeavesNothing) {
  const uint64_t bytes = 1ull << 50;
  const Status status = Segment::create(name(), bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_NE(status.message().find(std::to_string(bytes)), std::string::npos) << status.text();
  EXPECT_NE(status.message().find("free"), std::string::npos) << status.text();
  EXPECT_TRUE(names_.left_in_shm().empty());
}

TEST_F(SegmentTest, AFullFileSystemIsNoSpaceAndLeavesNothing) {
  const int end = in_small_shm("1m", [&] {
    Result<Segment> first = Segment::create(name("a"), 700u << 10);
    if (!first.is_ok()) return 1;
    const Status second = Segment::create(name("b"), 700u << 10).status();
    if (second.code() != StatusCode::kNoSpace) return 2;
    if (second.message().find("716800") == std::string::npos) return 3;
    if (Segment::exists(name("b")) || !Segment::exists(name("a"))) return 4;
    std::memset(first.value().data(), 1, first.value().bytes());  // SIGBUS where space is missing
    return 0;
  });
  if (end == kNoRightToMount) GTEST_SKIP() << "mounting is not permitted";
  EXPECT_EQ(end, 0);
}

// Fault case 1, between the check and the reservation.
TEST_F(SegmentTest, SpaceThatIsTakenAfterTheCheckIsNoSpaceAndLeavesNothing) {
  const int end = in_small_shm("1m", [&] {
    const pid_t creator = start_child([&] {
      arm_kill_point("stop:reserve.checked");
      const Status made = Segment::create(name(), 700u << 10).status();
      if (made.code() != StatusCode::kNoSpace) return 1;
      if (made.message().find("716800") == std::string::npos) return 2;
      return Segment::exists(name()) ? 3 : 0;
    });
    if (!stands_still(creator)) return 4;
    if (!Segment::exists(name())) return 5;
    if (!fill_shm()) return 6;
    ::kill(creator, SIGCONT);
    return finish(creator);
  });
  if (end == kNoRightToMount) GTEST_SKIP() << "mounting is not permitted";
  EXPECT_EQ(end, 0);
}

TEST_F(SegmentTest, AFileSizeLimitIsNoSpaceAndNoSignal) {
  EXPECT_EQ(run_in_child([&] {
              const rlimit limit{1u << 20, 1u << 20};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
              const Status status = Segment::create(name(), 2u << 20).status();
              if (status.code() != StatusCode::kNoSpace) return 2;
              return Segment::exists(name()) ? 3 : 0;
            }),
            0);
}

TEST_F(SegmentTest, CreatesUnderAStormOfSignals) {
  EXPECT_EQ(run_in_child([&] {
              struct sigaction action {};
              action.sa_handler = [](int) {};  // no SA_RESTART: every slow call returns EINTR
              ::sigaction(SIGALRM, &action, nullptr);
              const itimerval storm{{0, 1000}, {0, 1000}};
              ::setitimer(ITIMER_REAL, &storm, nullptr);
              const uint64_t bytes = (96u << 20) + 4096;
              for (int i = 0; i < 3; ++i) {
                Result<Segment> made = Segment::create(name(), bytes);
                if (!made.is_ok()) return 1;
                Result<Segment> opened = Segment::open(name(), Segment::Access::kReadWrite);
                if (!opened.is_ok() || opened.value().bytes() != bytes) return 2;
                Segment::unlink(name());
              }
              return 0;
            }),
            0);
}

TEST_F(SegmentTest, ACreatorKilledAnywhereLeavesSomethingThatIsRefusedOrRemoved) {
  for (const char* point : {"segment.created", "segment.reserved", "segment.mapped"}) {
    SCOPED_TRACE(point);
    EXPECT_EQ(run_in_child([&] {
                arm_kill_point(point);
                (void)Segment::create(name(), 1u << 20);
                return 0;
              }),
              -SIGKILL);
    const bool reserved = std::strcmp(point, "segment.created") != 0;
    EXPECT_EQ(open_code(name()), reserved ? StatusCode::kOk : StatusCode::kCorrupt);
    EXPECT_EQ(Segment::create(name(), 4096).status().code(), StatusCode::kAlreadyExists);
    Segment::unlink(name());
    EXPECT_TRUE(Segment::create(name(), 4096).is_ok());
    Segment::unlink(name());
  }
}

TEST(KillPoint, EndsTheProcessAtTheNamedOccurrenceOnly) {
  const auto visits_before_death = [](const char* specification) {
    int report[2];
    EXPECT_EQ(::pipe(report), 0);
    const int end = run_in_child([&] {
      arm_kill_point(specification);
      for (int i = 0; i < 5; ++i) {
        KILL_POINT("test.here");
        KILL_POINT("test.there");
        if (::write(report[1], "x", 1) != 1) return 1;
      }
      return 0;
    });
    ::close(report[1]);
    char bytes[16];
    const ssize_t visits = ::read(report[0], bytes, sizeof bytes);
    ::close(report[0]);
    return std::pair<int, int>(end, static_cast<int>(visits));
  };
  EXPECT_EQ(visits_before_death("test.here"), std::pair(-SIGKILL, 0));
  EXPECT_EQ(visits_before_death("test.there:4"), std::pair(-SIGKILL, 3));
  EXPECT_EQ(visits_before_death("test.there:9"), std::pair(0, 5));
  EXPECT_EQ(visits_before_death("test.there:none"), std::pair(0, 5));
  EXPECT_EQ(visits_before_death(nullptr), std::pair(0, 5));
}

TEST(KillPoint, StopsTheProcessWhereItIsToldToAndLetsItGoOn) {
  const pid_t child = start_child([] {
    arm_kill_point("stop:test.here:2");
    for (int i = 0; i < 3; ++i) KILL_POINT("test.here");
    return 5;
  });
  ASSERT_TRUE(stands_still(child));
  ::kill(child, SIGCONT);
  EXPECT_EQ(finish(child), 5);
}

}  // namespace
}  // namespace optlease::test
