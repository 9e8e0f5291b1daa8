#include "tests/soak/soak_job.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "actors/runtime/clock.h"
#include "actors/runtime/exit_code.h"
#include "shm/contract/status.h"

namespace optlease::soak {
namespace {

constexpr int kEndMs = 90'000;
constexpr int kGoneMs = 20'000;
constexpr int kPollMs = 1;

int number_of(ExitCode code) { return static_cast<int>(code); }

}  // namespace

Pages::Pages(const std::string& directory)
    : job_path_(directory + "/job.page"), tools_path_(directory + "/tools.page") {
  const auto make = [](const std::string& path, bool tools) {
    const Result<KillPage*> page = make_kill_page(path, places_of(tools));
    OPTLEASE_CHECK(page.is_ok(), "%s", page.status().text().c_str());
    return page.value();
  };
  job_ = make(job_path_, false);
  tools_ = make(tools_path_, true);
  size_t jobs = 0, tools = 0;
  for (const KillPoint& row : kill_points()) {
    rows_[&row] = row.who == Who::kTool ? &tools_->rows[tools++] : &job_->rows[jobs++];
  }
}

KillRow& Pages::of(const KillPoint& row) { return *rows_.at(&row); }

void Pages::reset() {
  for (auto& [row, counts] : rows_) {
    counts->visits.store(0);
    counts->countdown.store(0);
    counts->struck.store(0);
    counts->signal.store(SIGKILL);
  }
}

SoakJob::SoakJob(Pages& pages, Tally& tally, const Shape& shape, std::vector<std::string> more)
    : pages_(pages), tally_(tally), shape_(shape), job_("soak") {
  more.insert(more.begin(), shape.overrides.begin(), shape.overrides.end());
  more.push_back(format("job.steps=%d", shape.steps));
  more.push_back("job.keep_state=true");
  job_.use(shape.config, std::move(more));
  pages_.reset();
}

void SoakJob::launch(const std::vector<std::string>& flags) {
  setenv("OPTLEASE_KILL_PAGE", pages_.job_path().c_str(), 1);
  job_.start(flags);
  unsetenv("OPTLEASE_KILL_PAGE");
  resumes_ = !flags.empty();
  keep_asked_ = false;
  open_files_.clear();
  ++tally_.launches;
}

void SoakJob::start() { launch({}); }

uint64_t SoakJob::steps_seen() const {
  return pages_.of(kill_point("step_word.written", Who::kStore)).visits.load();
}

uint64_t SoakJob::commits_seen() const {
  return pages_.of(kill_point("commit.flipped", Who::kStore)).visits.load() +
         pages_.of(kill_point("commit_unchanged.flipped", Who::kStore)).visits.load() -
         void_commits_;
}

void SoakJob::await_all_gone() {
  const Deadline deadline = Deadline::after_ms(kGoneMs);
  while (!job_.processes().empty() && !deadline.passed()) poll(nullptr, 0, 5);
  EXPECT_TRUE(job_.processes().empty()) << "children outlive their launcher";
}

bool SoakJob::goes_on() {
  while (!over_ && !job_.launcher_alive()) {
    const CommandResult result = job_.wait();
    await_all_gone();
    on_launcher_end(result);
    if (testing::Test::HasFailure()) over_ = true;
  }
  return !over_;
}

void SoakJob::on_launcher_end(const CommandResult& result) {
  if (result.signal == SIGKILL || result.exit_code == number_of(ExitCode::kInterrupted)) {
    return launch({"--resume"});
  }
  if (result.exit_code == number_of(ExitCode::kStateAbsent) && resumes_) return begin_again();
  EXPECT_EQ(result.exit_code, 0) << result.output;
  if (result.exit_code != 0 || kept_) {
    over_ = true;
    if (keep_asked_) clean();
    return;
  }
  kept_ = true;
  report_ = job_.report();
  // Once more, for the removal of what was compared: whoever is killed in it leaves nothing to.
  job_.add("job.keep_state=false");
  launch({"--resume"});
}

// There is nothing to resume: nothing was committed, or the job was over and is being removed.
void SoakJob::begin_again() {
  if (steps_seen() == 0) {
    void_commits_ += commits_seen();
    return launch({});
  }
  EXPECT_TRUE(kept_) << steps_seen() << " steps were committed, and the state is gone";
  over_ = true;
  clean();
}

void SoakJob::clean() {
  const CommandResult cleaned = job_.command({"clean", "{job}"});
  EXPECT_TRUE(cleaned.exit_code == 0 || cleaned.exit_code == number_of(ExitCode::kStateAbsent))
      << cleaned.output;
}

void SoakJob::finish() {
  disarm();
  const Deadline deadline = Deadline::after_ms(kEndMs);
  while (goes_on()) {
    if (deadline.passed()) {
      ADD_FAILURE() << "the job does not end: " << job_.status().dump(1);
      over_ = true;
      return;
    }
    poll(nullptr, 0, 5);
  }
}

void SoakJob::arm(const KillPoint& row, uint64_t occurrence) {
  pages_.of(row).countdown.store(static_cast<int64_t>(occurrence));
}

void SoakJob::disarm() {
  for (const KillPoint& row : kill_points()) {
    if (row.when != When::kOver) pages_.of(row).countdown.store(0);
  }
}

bool SoakJob::await(const KillPoint& row, int timeout_ms) {
  const Deadline deadline = Deadline::after_ms(timeout_ms);
  const KillRow& counts = pages_.of(row);
  while (counts.countdown.load() > 0) {
    if (deadline.passed() || (row.who != Who::kTool && !job_.launcher_alive())) return false;
    poll(nullptr, 0, kPollMs);
  }
  death_ms_ = std::max(death_ms_, counts.struck_ms.load());
  return true;
}

CommandResult SoakJob::tool(const std::vector<std::string>& args) {
  setenv("OPTLEASE_KILL_PAGE", pages_.tools_path().c_str(), 1);
  const CommandResult result = job_.command(args);
  unsetenv("OPTLEASE_KILL_PAGE");
  return result;
}

void SoakJob::stop_and_keep() {
  keep_asked_ = true;
  (void)tool({"stop", "{job}", "--keep"});
}

void SoakJob::clean_away(const std::vector<const KillPoint*>& rows) {
  (void)job_.wait();
  await_all_gone();
  for (const KillPoint* row : rows) {
    arm(*row, 1);
    const CommandResult killed = tool({"clean", "{job}"});
    if (killed.signal == SIGKILL) continue;
    break;  // nothing of it was left for this point
  }
  disarm();
  const CommandResult cleaned = tool({"clean", "{job}"});
  EXPECT_TRUE(cleaned.exit_code == 0 || cleaned.exit_code == number_of(ExitCode::kStateAbsent))
      << cleaned.output;
  over_ = cleaned_ = true;
}

void SoakJob::count_visits(bool ended_right) {
  for (const KillPoint& row : kill_points()) {
    const KillRow& seen = pages_.of(row);
    RowCounts& counts = tally_.of(row);
    counts.visits += seen.visits.load();
    counts.kills += seen.struck.load();
    if (ended_right) counts.ended_right += seen.struck.load();
  }
}

void SoakJob::check(const Reference& reference) {
  ++tally_.jobs;
  if (!cleaned_ && !testing::Test::HasFailure()) {
    ++tally_.digests_compared;
    const Json digest = report_.value("state_digest", Json());
    const bool same = digest == reference.digest;
    tally_.digests_differing += same ? 0 : 1;
    EXPECT_TRUE(same) << digest << " is not the undisturbed run's " << reference.digest;
    EXPECT_EQ(report_["status"], "passed") << report_["checks"].dump(1);
    // No commit is lost, and none is made twice.
    EXPECT_LE(commits_seen(), reference.commits) << "a committed chunk was done again";
    EXPECT_GE(commits_seen() + uncertain_commits_, reference.commits);
  }
  EXPECT_TRUE(job_.segments().empty()) << job_.segments().front();
  EXPECT_TRUE(job_.processes().empty());
  EXPECT_FALSE(std::filesystem::exists(job_.directory() + "/optlease/" + job_.name()));
  // A killed process is gone from /proc before the last of its threads has let go of its memory.
  const Deadline freed = Deadline::after_ms(kGoneMs);
  while (shm_bytes_taken() > 0 && !freed.passed()) poll(nullptr, 0, kPollMs);
  EXPECT_EQ(shm_bytes_taken(), 0u) << "of /dev/shm";
  for (KillPage* page : {&pages_.job(), &pages_.tools()}) {
    EXPECT_EQ(page->strays.load(), 0u) << "the table has no row for " << page->stray;
  }
  count_visits(!testing::Test::HasFailure());
}

}  // namespace optlease::soak
