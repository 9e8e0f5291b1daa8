#include "actors/runtime/life_figures.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "actors/runtime/death_page.h"
#include "actors/runtime/process_memory.h"

namespace optlease {
namespace {

TEST(LifeFigures, KeepEveryWordThatWasWritten) {
  LifeFigures figures;
  EXPECT_FALSE(figures.read().staging_known);
  EXPECT_EQ(figures.read().last_step, kNoStep);
  figures.add_copy(true, 100);
  figures.add_copy(false, 7);
  figures.add_copy(true, 11);
  figures.add_bounce(5);
  figures.set_pin_refused(9);
  figures.set_credit(3, 0.5);
  figures.set_staging(64, 128);
  figures.step_over(4, 0.25);
  figures.step_over(5, 0.75);
  const LifeTotals totals = figures.read();
  EXPECT_EQ(totals.bytes_h2d, 111u);
  EXPECT_EQ(totals.bytes_d2h, 7u);
  EXPECT_EQ(totals.bytes_bounced, 5u);
  EXPECT_EQ(totals.pin_refused_bytes, 9u);
  EXPECT_EQ(totals.leases_deferred, 3u);
  EXPECT_EQ(totals.credit_wait_seconds, 0.5);
  EXPECT_TRUE(totals.staging_known);
  EXPECT_EQ(totals.staging_bytes, 64u);
  EXPECT_EQ(totals.staging_budget_bytes, 128u);
  EXPECT_EQ(totals.last_step, 5);
  EXPECT_EQ(totals.step_seconds, (std::vector<double>{0.25, 0.75}));
}

TEST(LifeFigures, KeepTheLatestStepsInTheirOrder) {
  LifeFigures figures;
  const int steps = static_cast<int>(kStepTimesMax) + 10;
  for (int step = 1; step <= steps; ++step) figures.step_over(step, step);
  const std::vector<double> seconds = figures.read().step_seconds;
  ASSERT_EQ(seconds.size(), kStepTimesMax);
  EXPECT_EQ(seconds.front(), 11);
  EXPECT_EQ(seconds.back(), steps);
  EXPECT_TRUE(std::is_sorted(seconds.begin(), seconds.end()));
}

// A mad actor may write anything: percentiles are made of numbers all the same.
TEST(LifeFigures, GiveNoTimeThatIsNone) {
  alignas(LifeFigures) unsigned char memory[sizeof(LifeFigures)];
  for (const int byte : {0xff, 0x7f, 0x80}) {
    std::memset(memory, byte, sizeof memory);
    for (const double seconds : reinterpret_cast<const LifeFigures*>(memory)->read().step_seconds) {
      EXPECT_TRUE(std::isfinite(seconds) && seconds >= 0) << seconds;
    }
  }
}

TEST(LifeFigures, OutliveTheProcessThatWasKilledWhileItWrote) {
  auto made = DeathWatch::make();
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  DeathWatch& watch = *made.value();
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto hold = DeathPageHold::take(watch.child_fd());
    if (!hold.is_ok() || hold.value().figures() == nullptr) _exit(3);
    hold.value().figures()->set_staging(1, 2);
    hold.value().figures()->add_copy(true, 4096);
    (void)!write(said[1], "x", 1);
    for (;;) hold.value().figures()->add_copy(false, 1);
  }
  watch.close_child_fd();
  char byte = 0;
  ASSERT_EQ(read(said[0], &byte, 1), 1);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const LifeTotals totals = watch.totals();
  EXPECT_TRUE(watch.dead());
  EXPECT_EQ(totals.bytes_h2d, 4096u);
  EXPECT_EQ(totals.staging_budget_bytes, 2u);
  EXPECT_EQ(watch.totals().bytes_d2h, totals.bytes_d2h) << "nobody writes any more";
  for (const int fd : said) close(fd);
}

TEST(LifeFigures, AreNowhereWithoutAPage) { EXPECT_EQ(DeathPageHold().figures(), nullptr); }

TEST(ProcessMemory, GrowsWithWhatIsTouched) {
  const ProcessMemory before = own_memory();
  ASSERT_GT(before.rss_bytes, 0u);
  EXPECT_LE(before.private_bytes, before.rss_bytes);
  constexpr uint64_t kBytes = 32ull << 20;
  const auto memory = std::make_unique<char[]>(kBytes);
  std::memset(memory.get(), 1, kBytes);
  const ProcessMemory after = own_memory();
  EXPECT_GE(after.private_bytes, before.private_bytes + kBytes / 2) << memory[kBytes - 1];
  EXPECT_GE(after.rss_bytes, after.private_bytes);
}

}  // namespace
}  // namespace optlease
