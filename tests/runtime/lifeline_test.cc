#include "actors/runtime/lifeline.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

namespace optlease {
namespace {

using Kind = LifelineEvent::Kind;

class LifelineTest : public testing::Test {
 protected:
  LifelineTest() {
    const Result<LifelinePair> pair = make_lifeline();
    EXPECT_TRUE(pair.is_ok()) << pair.status().text();
    launcher_fd_ = pair.value().launcher_fd;
    child_ = Lifeline::adopt(pair.value().child_fd).value();
  }
  ~LifelineTest() override { close_launcher(); }
  void close_launcher() {
    if (launcher_fd_ >= 0) ::close(launcher_fd_);
    launcher_fd_ = -1;
  }
  LifelineEvent wait_for_event() const {
    pollfd item{launcher_fd_, POLLIN, 0};
    EXPECT_EQ(::poll(&item, 1, 60000), 1);
    return read_lifeline(launcher_fd_);
  }

  int launcher_fd_ = -1;
  Lifeline child_;
};

TEST_F(LifelineTest, IsOpenUntilTheLauncherEnds) {
  EXPECT_FALSE(child_.closed());
  close_launcher();
  EXPECT_TRUE(child_.closed());
  EXPECT_TRUE(child_.closed());
}

TEST_F(LifelineTest, LauncherSeesTheChildsEnd) {
  EXPECT_EQ(read_lifeline(launcher_fd_).kind, Kind::kNothing);
  child_ = Lifeline();
  EXPECT_EQ(read_lifeline(launcher_fd_).kind, Kind::kClosed);
  EXPECT_EQ(answer_rehearsal(launcher_fd_).code(), StatusCode::kPeerLost);
}

TEST_F(LifelineTest, LauncherSeesAKilledChild) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  child_ = Lifeline();  // only the forked process holds that end now
  EXPECT_EQ(read_lifeline(launcher_fd_).kind, Kind::kNothing);
  ::kill(child, SIGKILL);
  EXPECT_EQ(wait_for_event().kind, Kind::kClosed);
  ::waitpid(child, nullptr, 0);
}

TEST_F(LifelineTest, RehearsalIsHeardAndAnswered) {
  Status status(StatusCode::kInternal, "not run");
  std::thread child([&] { status = child_.rehearse(4294967295u, 60000); });
  const LifelineEvent event = wait_for_event();
  EXPECT_EQ(event.kind, Kind::kRehearsal);
  EXPECT_EQ(event.rehearsal, 4294967295u);
  EXPECT_TRUE(answer_rehearsal(launcher_fd_).is_ok());
  child.join();
  EXPECT_TRUE(status.is_ok()) << status.text();
}

TEST_F(LifelineTest, RehearsalEndsWithoutAnAnswer) {
  EXPECT_EQ(child_.rehearse(3, 20).code(), StatusCode::kTimeout);
  // The late answer to it must not pass for an answer to the next one.
  EXPECT_TRUE(answer_rehearsal(launcher_fd_).is_ok());
  EXPECT_EQ(child_.rehearse(4, 20).code(), StatusCode::kTimeout);
}

TEST_F(LifelineTest, RehearsalEndsWhenTheLauncherDies) {
  Status status;
  std::thread child([&] { status = child_.rehearse(1, 60000); });
  EXPECT_EQ(wait_for_event().kind, Kind::kRehearsal);
  close_launcher();
  child.join();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
}

TEST_F(LifelineTest, LauncherThatReadsNothingNeverBlocksTheChild) {
  Status status;
  for (int i = 0; i < 100000 && status.code() != StatusCode::kBusy; ++i) {
    status = child_.rehearse(7, 0);
  }
  EXPECT_EQ(status.code(), StatusCode::kBusy) << status.text();
}

TEST_F(LifelineTest, DescriptorsCloseOnExec) {
  EXPECT_NE(::fcntl(child_.fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(launcher_fd_, F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Lifeline, AbsentOneIsNeverClosedAndRehearsesNothing) {
  Lifeline none = Lifeline::adopt(-1).value();
  EXPECT_EQ(none.fd(), -1);
  EXPECT_FALSE(none.closed());
  EXPECT_EQ(none.rehearse(0, 1000).code(), StatusCode::kUnsupported);
}

TEST(Lifeline, RefusesDescriptorsThatAreNone) {
  EXPECT_EQ(Lifeline::adopt(9999).status().code(), StatusCode::kInvalidArgument);
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  EXPECT_EQ(Lifeline::adopt(fds[0]).status().code(), StatusCode::kInvalidArgument);
  ::close(fds[0]);
  ::close(fds[1]);
}

TEST(Lifeline, DatagramsAreTakenExactlyAsWritten) {
  EXPECT_EQ(parse_lifeline_datagram("R0").kind, Kind::kRehearsal);
  EXPECT_EQ(parse_lifeline_datagram("R17").rehearsal, 17u);
  for (const std::string noise :
       {"", "R", "R-1", "R+1", "R 1", "R1 ", "r1", "1", "R4294967296", "R0x1", "RR1"}) {
    EXPECT_EQ(parse_lifeline_datagram(noise).kind, Kind::kNoise) << noise;
  }
}

}  // namespace
}  // namespace optlease
