#include "actors/runtime/log.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "actors/runtime/clock.h"

namespace optlease {
namespace {

TEST(Log, WritesTimeLevelProcessAndTextToStderr) {
  testing::internal::CaptureStderr();
  init_logging("gpu_actor.3", LogLevel::kInfo);
  log_info("step %d of %s", 7, "job");
  log_debug("not asked for");
  log_warn("braces {} and percent %% stay");
  log_error("%s", std::string(5000, 'x').c_str());
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(std::regex_search(
      text,
      std::regex("^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}\\.\\d{3}Z info +\\[gpu_actor\\.3\\] "
                 "step 7 of job\n")))
      << text.substr(0, 200);
  EXPECT_EQ(text.find("not asked for"), std::string::npos);
  EXPECT_NE(text.find("braces {} and percent % stay"), std::string::npos);
  EXPECT_NE(text.find(std::string(5000, 'x')), std::string::npos);
}

TEST(Log, LevelsComeBackByName) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError}) {
    LogLevel out = LogLevel::kInfo;
    EXPECT_TRUE(parse(std::string_view(name_of(level)), &out));
    EXPECT_EQ(out, level);
  }
  LogLevel out = LogLevel::kWarn;
  EXPECT_FALSE(parse(std::string_view("loud"), &out));
  EXPECT_EQ(out, LogLevel::kWarn);
}

TEST(Clock, DeadlinesPassAndClampTheirRest) {
  EXPECT_TRUE(Deadline::after_ms(0).passed());
  EXPECT_TRUE(Deadline::after_ms(-5).passed());
  EXPECT_EQ(Deadline::after_ms(-5).remaining_ms(), 0);
  const Deadline far = Deadline::after_ms(1000000);
  EXPECT_FALSE(far.passed());
  EXPECT_EQ(far.remaining_ms(100), 100);
  EXPECT_GT(far.remaining_ms(), 100);
  EXPECT_LE(now_ms(), now_us() / 1000);
}

}  // namespace
}  // namespace optlease
