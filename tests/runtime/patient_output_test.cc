// Lines that nobody reads: nothing waits for ever, and who reads again hears what is missing.
#include "actors/runtime/patient_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace optlease {
namespace {

class PatientPipe : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe2(ends_, O_CLOEXEC), 0); }
  void TearDown() override {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  // What lies in the pipe now.
  std::string drain() {
    EXPECT_EQ(::fcntl(ends_[0], F_SETFL, O_NONBLOCK), 0);
    std::string text;
    char piece[4096];
    ssize_t got;
    while ((got = ::read(ends_[0], piece, sizeof piece)) > 0) {
      text.append(piece, static_cast<size_t>(got));
    }
    return text;
  }

  int ends_[2];
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

TEST_F(PatientPipe, LeavesOutWhatNobodyReadsAndSaysHowMuch) {
  PatientOutput output(ends_[1]);
  const std::string line = "a line of some length, and its end\n";
  uint64_t put = 0;
  for (; output.lines_left_out() < 3; ++put) {
    ASSERT_LT(put, 100'000u) << "a pipe without end";
    output.put(line);
  }
  const std::string first = drain();
  EXPECT_EQ(count_of(first, line), put - 3);
  output.put("somebody reads again\n");
  EXPECT_EQ(drain(), "(lines left out here, which nobody read: 3)\nsomebody reads again\n");
  output.put("and again\n");
  EXPECT_EQ(drain(), "and again\n");
  EXPECT_EQ(output.lines_left_out(), 3u);
}

TEST_F(PatientPipe, ALineOfWhichAPartWentIsEndedBeforeTheNext) {
  PatientOutput output(ends_[1]);
  output.put(std::string(1 << 20, 'x') + "\n");
  EXPECT_EQ(output.lines_left_out(), 1u);
  EXPECT_GT(drain().size(), 0u);
  output.put("next\n");
  EXPECT_EQ(drain(), "\n(lines left out here, which nobody read: 1)\nnext\n");
}

TEST_F(PatientPipe, TakesALongLineWhole) {
  const std::string line = std::string(20'000, 'x') + "\n";
  PatientOutput output(ends_[1]);
  output.put(line);
  EXPECT_EQ(drain(), line);
  EXPECT_EQ(output.lines_left_out(), 0u);
}

// A terminal calls itself writable however little room it has; whoever writes more then waits in
// the kernel.
TEST(PatientTerminal, ALineThatIsLongerThanTheRoomIsLeftOut) {
  const int screen = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (screen < 0) GTEST_SKIP() << "no terminal can be made here";
  ASSERT_EQ(::grantpt(screen), 0);
  ASSERT_EQ(::unlockpt(screen), 0);
  const std::string name = ::ptsname(screen);
  const int terminal = ::open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0) << name;
  const int filler = ::open(name.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(filler, 0) << name;
  const std::string piece(100, 'f');
  for (int i = 0; ::write(filler, piece.data(), piece.size()) > 0; ++i) ASSERT_LT(i, 100'000);
  PatientOutput output(terminal);
  const std::string line = std::string(50'000, 'x') + "\n";
  char read_here[4096];
  uint64_t heard = 0;
  for (int round = 1; round <= 3; ++round) {
    const ssize_t got = ::read(screen, read_here, sizeof read_here);  // so much room, and no more
    ASSERT_GT(got, 0);
    heard += static_cast<uint64_t>(got);
    output.put(line);
    EXPECT_EQ(output.lines_left_out(), static_cast<uint64_t>(round));
  }
  EXPECT_GT(heard, 0u);
  EXPECT_EQ(::fcntl(terminal, F_GETFL) & O_NONBLOCK, 0) << "it is its owner's, who may wait";
  for (const int fd : {screen, terminal, filler}) ::close(fd);
}

TEST(PatientSocket, LeavesOutWhatNobodyReads) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  PatientOutput output(ends[0]);
  const std::string line = std::string(3000, 'x') + "\n";
  for (int i = 0; output.lines_left_out() == 0; ++i) {
    ASSERT_LT(i, 100'000) << "a socket without end";
    output.put(line);
  }
  ::close(ends[1]);
  output.put("to nobody\n");
  EXPECT_EQ(output.lines_left_out(), 1u);
  ::close(ends[0]);
}

// As standard error is, once somebody has put another file there.
TEST_F(PatientPipe, WhatTheDescriptorBecomesIsWrittenTo) {
  int others[2];
  ASSERT_EQ(::pipe2(others, O_CLOEXEC), 0);
  PatientOutput output(ends_[1]);
  output.put("one\n");
  ASSERT_GE(::dup2(others[1], ends_[1]), 0);
  output.put("two\n");
  EXPECT_EQ(drain(), "one\n");
  ASSERT_GE(::dup2(others[0], ends_[0]), 0);
  EXPECT_EQ(drain(), "two\n");
  for (const int fd : others) ::close(fd);
}

TEST_F(PatientPipe, WhoIsGoneIsNoReasonToWait) {
  ::signal(SIGPIPE, SIG_IGN);
  ::close(ends_[0]);
  PatientOutput output(ends_[1]);
  for (int i = 0; i < 10'000; ++i) output.put("to nobody\n");
  EXPECT_EQ(output.lines_left_out(), 0u);
  ASSERT_GE(ends_[0] = ::open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
  ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace optlease
