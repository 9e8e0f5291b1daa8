// Lines that nobody reads: nothing waits for ever, and who reads again hears what is missing.
#include "actors/runtime/patient_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
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
