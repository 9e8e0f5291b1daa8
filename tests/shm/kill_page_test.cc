// The page that tells running processes at which kill point one of them dies.
#include "shm/kill_page.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

class KillPageTest : public testing::Test {
 protected:
  KillPageTest() {
    char pattern[] = "/tmp/optlease-kill-page-XXXXXX";
    directory_ = mkdtemp(pattern);
    const std::string here = program_invocation_short_name;
    page_ = make_kill_page(path(), {{"test.here", here}, {"test.there", here}, {"test.here", "x"}})
                .value();
  }
  ~KillPageTest() override { std::filesystem::remove_all(directory_); }
  std::string path() const { return directory_ + "/page"; }
  KillRow& row(int index) { return page_->rows[index]; }
  // A process that visits test.here and test.there by turns; 5 where it lives on.
  pid_t visitor(int visits) {
    return start_child([this, visits] {
      KillPage* page = map_kill_page(path().c_str());
      if (page == nullptr) return 1;
      for (int i = 0; i < visits; ++i) {
        visit_kill_page(page, "test.here");
        visit_kill_page(page, "test.there");
      }
      return 5;
    });
  }

  std::string directory_;
  KillPage* page_ = nullptr;
};

TEST_F(KillPageTest, CountsWhereProcessesOfAProgramHaveBeen) {
  EXPECT_EQ(finish(visitor(7)), 5);
  EXPECT_EQ(finish(visitor(3)), 5);
  EXPECT_EQ(row(0).visits.load(), 10u);
  EXPECT_EQ(row(1).visits.load(), 10u);
  EXPECT_EQ(row(2).visits.load(), 0u) << "of another program";
  EXPECT_EQ(page_->strays.load(), 0u);
  visit_kill_page(page_, "test.nowhere");
  EXPECT_EQ(page_->strays.load(), 1u);
  EXPECT_EQ(page_->stray, std::string(program_invocation_short_name) + " test.nowhere");
}

TEST_F(KillPageTest, EndsAProcessAtTheVisitThatIsOrderedAndLetsTheNextOneLive) {
  row(1).countdown.store(4);
  const pid_t victim = visitor(100);
  EXPECT_EQ(finish(victim), -SIGKILL);
  EXPECT_EQ(row(0).visits.load(), 4u);
  EXPECT_EQ(row(1).visits.load(), 4u);
  EXPECT_EQ(row(1).struck.load(), 1u);
  EXPECT_EQ(row(1).struck_pid.load(), victim);
  EXPECT_GT(row(1).struck_ms.load(), 0);
  EXPECT_EQ(finish(visitor(100)), 5);
  EXPECT_EQ(row(1).struck.load(), 1u);
}

TEST_F(KillPageTest, EndsOneOfManyThatVisitAtOnce) {
  row(0).countdown.store(500);
  std::vector<pid_t> visitors;
  for (int i = 0; i < 8; ++i) visitors.push_back(visitor(1000));
  int ended = 0;
  for (const pid_t pid : visitors) ended += finish(pid) == -SIGKILL ? 1 : 0;
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(row(0).struck.load(), 1u);
}

TEST_F(KillPageTest, AFileThatIsNoPageIsIgnoredAndStaysAsItIs) {
  std::ofstream(directory_ + "/other") << "something else";
  EXPECT_EQ(map_kill_page((directory_ + "/other").c_str()), nullptr);
  EXPECT_EQ(map_kill_page((directory_ + "/absent").c_str()), nullptr);
  EXPECT_EQ(map_kill_page(nullptr), nullptr);
  std::ofstream(directory_ + "/large") << std::string(sizeof(KillPage), 'x');
  EXPECT_EQ(map_kill_page((directory_ + "/large").c_str()), nullptr);
  std::filesystem::create_symlink(path(), directory_ + "/link");
  EXPECT_EQ(map_kill_page((directory_ + "/link").c_str()), nullptr) << "a link is never followed";
}

}  // namespace
}  // namespace optlease::test
