#include "actors/runtime/death_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/forked_threads.h"

namespace optlease {
namespace {

constexpr int kWaitMs = 60000;  // against a hang, not a measure
constexpr int kQuietMs = 700;   // longer than the watch sleeps at a time

bool is_readable(int fd, int timeout_ms) {
  pollfd item{fd, POLLIN, 0};
  return ::poll(&item, 1, timeout_ms) == 1;
}

// A forked child that takes the page, says so, and then does as it is told.
class DeathPageTest : public testing::Test {
 protected:
  DeathPageTest() {
    auto made = DeathWatch::make();
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    watch_ = std::move(made).value();
    EXPECT_EQ(::pipe2(said_, O_CLOEXEC), 0);
  }
  ~DeathPageTest() override {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    for (const int fd : said_) ::close(fd);
  }

  void start(const std::function<void()>& then, bool take = true) {
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      std::optional<Result<DeathPageHold>> hold;
      if (take) hold.emplace(DeathPageHold::take(watch_->child_fd()));
      if (take && !hold->is_ok()) ::_exit(3);
      say();
      then();
      hold.reset();
      ::_exit(0);
    }
    watch_->close_child_fd();
    hear();
  }
  void say() const { (void)!::write(said_[1], "x", 1); }
  void hear() const {
    char byte = 0;
    ASSERT_TRUE(is_readable(said_[0], kWaitMs));
    ASSERT_EQ(::read(said_[0], &byte, 1), 1);
  }
  // The exit of the child, which is then reaped.
  int reap() {
    int status = 0;
    EXPECT_EQ(::waitpid(child_, &status, 0), child_);
    child_ = -1;
    return status;
  }
  bool announced(int timeout_ms = kWaitMs) const { return is_readable(watch_->fd(), timeout_ms); }

  std::unique_ptr<DeathWatch> watch_;
  int said_[2] = {-1, -1};
  pid_t child_ = -1;
};

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

TEST_F(DeathPageTest, AnnouncesAChildThatIsKilled) {
  start(sleep_for_ever);
  EXPECT_FALSE(announced(kQuietMs));
  EXPECT_FALSE(watch_->dead());
  ASSERT_EQ(::kill(child_, SIGKILL), 0);
  EXPECT_TRUE(announced());
  EXPECT_TRUE(watch_->dead());
}

TEST_F(DeathPageTest, AnnouncesAChildThatCrashes) {
  start([] { ::raise(SIGKILL); });
  EXPECT_TRUE(announced());
}

// What the page is for: a dead process that cannot be reaped yet, its descriptors still open. Here
// another thread holds both up, as the teardown of a driver does.
TEST_F(DeathPageTest, AnnouncesTheMainThreadsEndWhileTheProcessAndItsDescriptorsLive) {
  OPTLEASE_SKIP_FORKED_THREADS();
  int lifeline[2];
  ASSERT_EQ(::pipe2(lifeline, O_CLOEXEC), 0);
  start([] {
    std::thread(sleep_for_ever).detach();
    ::syscall(SYS_exit, 0);  // of this thread alone
  });
  ::close(lifeline[1]);
  EXPECT_TRUE(announced());
  EXPECT_EQ(::waitpid(child_, nullptr, WNOHANG), 0) << "it can be reaped already";
  EXPECT_FALSE(is_readable(lifeline[0], 0)) << "its descriptors are closed already";
  ::close(lifeline[0]);
}

TEST_F(DeathPageTest, AnotherThreadsEndIsNoDeath) {
  OPTLEASE_SKIP_FORKED_THREADS();
  start([this] {
    std::thread([] {}).join();
    say();
    sleep_for_ever();
  });
  hear();
  EXPECT_FALSE(announced(kQuietMs));
}

TEST_F(DeathPageTest, AStoppedChildIsNotDead) {
  start(sleep_for_ever);
  ASSERT_EQ(::kill(child_, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child_, &status, WUNTRACED), child_);
  EXPECT_FALSE(announced(kQuietMs));
  ASSERT_EQ(::kill(child_, SIGCONT), 0);
  EXPECT_FALSE(announced(kQuietMs));
  ASSERT_EQ(::kill(child_, SIGKILL), 0);
  EXPECT_TRUE(announced());
}

TEST_F(DeathPageTest, SaysNothingOfAChildThatEndsBeforeItTookThePage) {
  start([] {}, false);
  EXPECT_TRUE(WIFEXITED(reap()));
  EXPECT_FALSE(announced(kQuietMs));
  EXPECT_FALSE(watch_->dead());
}

TEST_F(DeathPageTest, SaysNothingOfAnOrderlyEnd) {
  start([] {});
  EXPECT_EQ(reap(), 0);
  EXPECT_FALSE(announced(kQuietMs));
  EXPECT_FALSE(watch_->dead());
}

TEST_F(DeathPageTest, AnnouncesAChildThatExitsWithoutLettingGo) {
  start([] { ::_exit(7); });
  EXPECT_EQ(WEXITSTATUS(reap()), 7);
  EXPECT_TRUE(announced());
}

TEST_F(DeathPageTest, IsNotInheritedByAProcessThatTheChildForks) {
  start([this] {
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(0);
    ::waitpid(grandchild, nullptr, 0);
    say();
    sleep_for_ever();
  });
  hear();
  EXPECT_FALSE(announced(kQuietMs)) << "the end of the child's own child is not the child's";
  ASSERT_EQ(::kill(child_, SIGKILL), 0);
  EXPECT_TRUE(announced());
}

TEST_F(DeathPageTest, AProcessThatOutlivesTheChildHidesNothing) {
  start([this] {
    if (::fork() == 0) {
      ::poll(nullptr, 0, 3000);
      ::_exit(0);
    }
    say();
    sleep_for_ever();
  });
  hear();
  ASSERT_EQ(::kill(child_, SIGKILL), 0);
  EXPECT_TRUE(announced(2000)) << "not while the child's child lives";
}

TEST_F(DeathPageTest, AnotherProgramInTheChildsPlaceDoesNotHoldIt) {
  start([] { ::execl("/bin/sleep", "sleep", "1000", nullptr); });
  EXPECT_TRUE(announced());
}

TEST_F(DeathPageTest, AWatchEndsWhileItsChildLives) {
  start(sleep_for_ever);
  watch_.reset();
  EXPECT_EQ(::waitpid(child_, nullptr, WNOHANG), 0);
}

TEST_F(DeathPageTest, ScribblingOnThePageHarmsTheWatcherNot) {
  for (int round = 0; round < 20; ++round) {
    auto made = DeathWatch::make();
    ASSERT_TRUE(made.is_ok()) << made.status().text();
    Result<MappedBuffer> page = MappedBuffer::map(made.value()->child_fd(), 4096);
    ASSERT_TRUE(page.is_ok());
    std::fill_n(static_cast<unsigned char*>(page.value().data()), 4096,
                static_cast<unsigned char>(0x11 * round));
    (void)made.value()->dead();
    ::poll(nullptr, 0, 2);
  }
}

TEST(DeathPage, EachIsTakenOnce) {
  auto watch = DeathWatch::make();
  ASSERT_TRUE(watch.is_ok());
  const int first = ::dup(watch.value()->child_fd());
  const int second = ::dup(watch.value()->child_fd());
  const Result<DeathPageHold> hold = DeathPageHold::take(first);
  ASSERT_TRUE(hold.is_ok()) << hold.status().text();
  EXPECT_TRUE(hold.value().held());
  Status refused = Status::ok();
  std::thread([&] { refused = DeathPageHold::take(second).status(); }).join();
  EXPECT_EQ(refused.code(), StatusCode::kBusy) << refused.text();
}

TEST(DeathPage, WithoutADescriptorNothingIsHeld) {
  const Result<DeathPageHold> hold = DeathPageHold::take(-1);
  ASSERT_TRUE(hold.is_ok());
  EXPECT_FALSE(hold.value().held());
}

TEST(DeathPage, RefusesADescriptorOfSomethingElse) {
  const int empty = ::memfd_create("empty", MFD_CLOEXEC);
  EXPECT_EQ(DeathPageHold::take(empty).status().code(), StatusCode::kInvalidArgument);
  const int other = ::memfd_create("other", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(other, 4096), 0);
  EXPECT_EQ(DeathPageHold::take(other).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DeathPageHold::take(::open("/dev/null", O_RDWR)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(DeathPageHold::take(1000).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace optlease
