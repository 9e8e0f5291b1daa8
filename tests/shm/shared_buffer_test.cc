#include "shm/shared_buffer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>

#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

TEST(UniqueFd, ClosesWhatItOwnsAndNothingElse) {
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  {
    UniqueFd first(fd);
    UniqueFd second = std::move(first);
    EXPECT_FALSE(first);
    EXPECT_EQ(second.get(), fd);
    EXPECT_GE(::fcntl(fd, F_GETFD), 0);
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  UniqueFd kept(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int raw = kept.release();
  kept = UniqueFd();
  EXPECT_GE(::fcntl(raw, F_GETFD), 0);
  ::close(raw);
}

TEST(CreateMemfd, IsReservedSealedAndCloseOnExec) {
  Result<UniqueFd> fd = create_memfd("param.0.dense", 3 * 4096 + 5);
  ASSERT_TRUE(fd.is_ok()) << fd.status().text();
  struct stat info {};
  ASSERT_EQ(::fstat(fd.value().get(), &info), 0);
  EXPECT_EQ(info.st_size, 3 * 4096 + 5);
  EXPECT_GE(info.st_blocks * 512, 3 * 4096 + 5);
  EXPECT_EQ(::fcntl(fd.value().get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(::ftruncate(fd.value().get(), 4096), -1) << "it can be shrunk under its users";
  EXPECT_EQ(::ftruncate(fd.value().get(), 1 << 20), -1) << "it can be grown";
  EXPECT_EQ(create_memfd("x", 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(create_memfd(std::string(400, 'n'), 4096).is_ok());
}

TEST(MappedBuffer, SharesBytesBetweenProcesses) {
  Result<UniqueFd> fd = create_memfd("shared", 8192);
  ASSERT_TRUE(fd.is_ok());
  Result<MappedBuffer> ours = MappedBuffer::map(fd.value().get(), 8192);
  ASSERT_TRUE(ours.is_ok());
  EXPECT_EQ(run_in_child([&] {
              Result<MappedBuffer> theirs = MappedBuffer::map(fd.value().get(), 8192);
              std::memset(theirs.value().data(), 7, 8192);
              ::raise(SIGKILL);
              return 0;
            }),
            -SIGKILL);
  EXPECT_EQ(static_cast<char*>(ours.value().data())[8191], 7);
  MappedBuffer moved = std::move(ours.value());
  EXPECT_EQ(ours.value().data(), nullptr);
  EXPECT_EQ(moved.bytes(), 8192u);
}

TEST(MappedBuffer, RefusesAnFdThatIsShorterWithNumbers) {
  Result<UniqueFd> fd = create_memfd("short", 4096);
  ASSERT_TRUE(fd.is_ok());
  const Status status = MappedBuffer::map(fd.value().get(), 4097).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("4097"), std::string::npos);
  EXPECT_NE(status.message().find("4096"), std::string::npos);
}

TEST(MappedBuffer, OfNothingIsNoMapping) {
  Result<MappedBuffer> buffer = MappedBuffer::map(-1, 0);
  ASSERT_TRUE(buffer.is_ok());
  EXPECT_EQ(buffer.value().data(), nullptr);
}

TEST(CreateMemfd, WorksUnderAStormOfSignals) {
  EXPECT_EQ(run_in_child([] {
              struct sigaction action {};
              action.sa_handler = [](int) {};
              ::sigaction(SIGALRM, &action, nullptr);
              const itimerval storm{{0, 1000}, {0, 1000}};
              ::setitimer(ITIMER_REAL, &storm, nullptr);
              return create_memfd("storm", 80u << 20).is_ok() ? 0 : 1;
            }),
            0);
}

TEST(VaultKey, NamesKindRankAndSpace) { EXPECT_EQ(vault_key("grad", 3, "dense"), "grad.3.dense"); }

}  // namespace
}  // namespace optlease::test
