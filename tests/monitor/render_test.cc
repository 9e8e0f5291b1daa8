#include "actors/monitor/render.h"

#include <gtest/gtest.h>

#include <cmath>

namespace optlease {
namespace {

ActorTelemetry busy_actor() {
  ActorTelemetry t;
  t.job = "job";
  t.rank = 0;
  t.incarnation = 2;
  t.sequence = 10;
  t.pid = 4242;
  t.phase = Phase::kStream;
  t.step_committed = 11;
  t.step = 12;
  t.chunks_done = 3;
  t.chunks_total = 8;
  t.step_h2d_bytes_per_second = 51.25e9;
  t.step_d2h_bytes_per_second = 49.5e9;
  t.step_seconds = 0.1234;
  t.step_seconds_history.p99 = 1.5;
  t.lease_wait_seconds_total = 0.25;
  t.exposed_stall_seconds_total = 2000;
  t.step_lease_wait_seconds = 0.0015;
  t.step_exposed_stall_seconds = 0.75;
  t.commits_total = 96;
  t.refusals_total = 5;
  t.steps_skipped_total = 7;
  t.restarts_total = 1;
  t.staging_bytes = 3 << 20;
  t.staging_budget_bytes = 6 << 20;
  t.resident_bytes = 5ull << 30;
  t.rss_bytes = 9 << 20;
  t.private_bytes = 7 << 20;
  return t;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

class RenderTest : public testing::Test {
 protected:
  void hear(const ActorTelemetry& t, int64_t now_ms) {
    const Status taken =
        state_.on_frame(t.rank, MonitorState::Source::kPublished, to_json(t), now_ms);
    EXPECT_TRUE(taken.is_ok()) << taken.text();
  }
  MonitorState state_{"job", 2, 100, 200};
};

TEST_F(RenderTest, ShowsEveryNumberOfARank) {
  hear(busy_actor(), 1000);
  const std::vector<std::string> lines = render(state_, 1300);
  ASSERT_EQ(lines.size(), 5u) << joined(lines);  // head, titles, two ranks, a note on rank 1
  EXPECT_EQ(lines[0], "job job: 1 of 2 ranks heard, step 11 of 100 committed");
  for (const char* cell :
       {" 12 ", " 11 ", "stream", "3/8", "51.25", "49.50", "123.4 ms", "1.50 s",
        "1.5 ms (250.0 ms)", "750.0 ms (2000 s)", "5.00 GiB", "7.00 MiB/9.00 MiB", " 96 ", " 5 ",
        " 7 ", " 1 ", "3.00 MiB/6.00 MiB", "300.0 ms ago"}) {
    EXPECT_NE(lines[2].find(cell), std::string::npos) << "'" << cell << "' in\n" << joined(lines);
  }
}

TEST_F(RenderTest, ColumnsAlign) {
  hear(busy_actor(), 1000);
  const std::vector<std::string> lines = render(state_, 1300);
  EXPECT_EQ(lines[1].size(), lines[2].size());
  EXPECT_EQ(lines[2].size(), lines[3].size());
  const size_t phase_end = lines[1].find("phase") + 5;
  EXPECT_EQ(lines[2].substr(phase_end - 6, 6), "stream");
}

TEST_F(RenderTest, SaysWhichRanksNeverAnswered) {
  const std::string text = joined(render(state_, 1000));
  EXPECT_NE(text.find("rank 0: no answer yet"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1: no answer yet"), std::string::npos) << text;
  EXPECT_NE(text.find("step - of 100"), std::string::npos) << text;
  EXPECT_NE(text.find("never"), std::string::npos) << text;
}

TEST_F(RenderTest, MarksADeadActorSilent) {
  hear(busy_actor(), 1000);
  EXPECT_EQ(joined(render(state_, 2000)).find("SILENT"), std::string::npos);
  const std::string text = joined(render(state_, 13500));
  EXPECT_NE(text.find("rank 0: SILENT for 12.50 s"), std::string::npos) << text;
  EXPECT_NE(text.find("4242"), std::string::npos) << text;
}

TEST_F(RenderTest, HoldsNoControlBytesWhateverTheActorSays) {
  ActorTelemetry t = busy_actor();
  t.device = "\x1b[2Jcuda\n";
  hear(t, 1000);
  for (const std::string& line : render(state_, 1000)) {
    for (const char c : line) EXPECT_GE(c, ' ') << line;
  }
}

TEST_F(RenderTest, UnknownNumbersAreDashes) {
  ActorTelemetry t = busy_actor();
  t.step_seconds = std::nan("");
  t.step_h2d_bytes_per_second = std::nan("");
  hear(t, 1000);
  EXPECT_EQ(joined(render(state_, 1000)).find("nan"), std::string::npos);
}

TEST(RenderText, BytesUseBinaryUnits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text((1ull << 20) - 1), "1.00 MiB");
  EXPECT_EQ(bytes_text(3ull << 29), "1.50 GiB");
  EXPECT_EQ(bytes_text(UINT64_MAX), "16.00 EiB");
}

TEST(RenderText, SecondsChooseTheirUnit) {
  EXPECT_EQ(seconds_text(0), "0.0 ms");
  EXPECT_EQ(seconds_text(0.0123), "12.3 ms");
  EXPECT_EQ(seconds_text(1), "1.00 s");
  EXPECT_EQ(seconds_text(0.99999), "1.00 s");
  EXPECT_EQ(seconds_text(12345), "12345 s");
  EXPECT_EQ(seconds_text(std::nan("")), "-");
}

}  // namespace
}  // namespace optlease
