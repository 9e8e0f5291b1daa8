#include "launcher/compare_reports.h"

#include <gtest/gtest.h>

namespace optlease {
namespace {

std::string report(const std::string& digest, double last_loss, const std::string& deaths = "[]") {
  return R"({"status": "passed", "loss_curve": [{"step": 1, "loss": 5.5}, {"step": 2, "loss": )" +
         std::to_string(last_loss) + R"(}], "restarts": )" + deaths + R"(, "state_digest": )" +
         (digest.empty() ? "null" : "\"" + digest + "\"") + "}";
}

TEST(CompareReports, FindsEqualStatesAndCurves) {
  const auto result = compare_reports("a", report("ab12", 4.5), "b", report("ab12", 4.5));
  ASSERT_TRUE(result.is_ok()) << result.status().text();
  EXPECT_TRUE(result.value().same_state);
  EXPECT_TRUE(result.value().both_passed);
  EXPECT_NE(result.value().text.find("All 2 losses are equal"), std::string::npos);
}

TEST(CompareReports, SaysWhenStatesOrCurvesDiffer) {
  const auto result = compare_reports("a", report("ab12", 4.5), "b", report("ab13", 4.25));
  ASSERT_TRUE(result.is_ok());
  EXPECT_FALSE(result.value().same_state);
  EXPECT_NE(result.value().text.find("DIFFER"), std::string::npos);
  EXPECT_NE(result.value().text.find("curves differ"), std::string::npos);
}

TEST(CompareReports, AShorterCurveIsEqualAsFarAsItGoes) {
  const std::string longer = report("ab", 4.5);
  std::string shorter = longer;
  const std::string tail = shorter.substr(shorter.find(", {\"step\": 2"));
  shorter.replace(shorter.find(tail), tail.find(']'), "");
  const auto result = compare_reports("a", longer, "b", shorter);
  ASSERT_TRUE(result.is_ok()) << result.status().text();
  EXPECT_NE(result.value().text.find("The first 1 losses are equal to the last bit; only the first "
                                     "has 1 more."),
            std::string::npos)
      << result.value().text;
}

TEST(CompareReports, TwoMissingDigestsAreNotEqual) {
  const auto result = compare_reports("a", report("", 4.5), "b", report("", 4.5));
  ASSERT_TRUE(result.is_ok());
  EXPECT_FALSE(result.value().same_state);
}

TEST(CompareReports, NamesWhoDiedAndHowLongItTook) {
  const std::string deaths =
      R"([{"role": "gpu_actor", "rank": 1, "cause": "rehearsal", "step_committed": 24,
           "rehearsal": {"step": 25, "phase": "copy_out", "at_rank": 0},
           "restart_seconds": 0.05, "recovery_seconds": 0.25},
          {"role": "host_store", "rank": 0, "cause": "signal", "step_committed": 49,
           "restart_seconds": null, "recovery_seconds": null}])";
  const auto result = compare_reports("a", report("ab", 4.5), "b", report("ab", 4.5, deaths));
  ASSERT_TRUE(result.is_ok());
  const std::string& text = result.value().text;
  EXPECT_NE(text.find("gpu_actor 1  killed in step 25, copy_out of rank 0: new process"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("host_store   died with step 49 committed (signal): new process"),
            std::string::npos)
      << text;
  EXPECT_NE(result.value().text.find("0.250 s"), std::string::npos);
  EXPECT_NE(result.value().text.find("not seen"), std::string::npos);
}

// Documents are compared by recursion: one deep enough would end the process.
TEST(CompareReports, RefusesAReportThatNestsWithoutEnd) {
  const std::string deep(1'000'000, '[');
  const std::string text =
      R"({"loss_curve": [{"step": 1, "loss": )" + deep + std::string(deep.size(), ']') + "}]}";
  const auto result = compare_reports("a", text, "b", text);
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("'a' is no JSON, or nests too deep"), std::string::npos)
      << result.status().text();
}

TEST(CompareReports, RefusesWhatIsNoReport) {
  EXPECT_EQ(compare_reports("a", "{}", "b", report("ab", 1)).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(compare_reports("a", "not json", "b", "").status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace optlease
