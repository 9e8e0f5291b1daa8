// What the store sees of names that somebody else removes, and who sees that it serves them.
#include "actors/host_store/name_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace optlease {
namespace {

class NameWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& name : {names_.control, names_.arenas[0], names_.arenas[1]}) {
      ASSERT_TRUE(Segment::create(name, 4096).is_ok());
    }
  }
  void TearDown() override {
    for (const std::string& name : {names_.control, names_.arenas[0], names_.arenas[1]}) {
      Segment::unlink(name);
    }
  }
  const std::string stem_ = "/optlease-name-watch." + std::to_string(getpid());
  const SegmentNames names_{stem_ + ".ctl", {stem_ + ".r0", stem_ + ".r1"}};
};

TEST_F(NameWatchTest, TellsEachRemovedOrReplacedNameOnce) {
  auto watch = NameWatch::over(names_);
  ASSERT_TRUE(watch.is_ok()) << watch.status().text();
  EXPECT_TRUE(watch.value().lost_now().empty());
  Segment::unlink(names_.arenas[1]);
  EXPECT_EQ(watch.value().lost_now(), std::vector<std::string>{Segment::path_of(names_.arenas[1])});
  EXPECT_TRUE(watch.value().lost_now().empty()) << "told twice";
  Segment::unlink(names_.control);
  ASSERT_TRUE(Segment::create(names_.control, 4096).is_ok()) << "replaced by another file";
  EXPECT_EQ(watch.value().lost_now(), std::vector<std::string>{Segment::path_of(names_.control)});
}

TEST_F(NameWatchTest, MarksTheControlSegmentAsServedForAsLongAsItLives) {
  EXPECT_FALSE(Segment::in_use(names_.control));
  {
    auto watch = NameWatch::over(names_);
    ASSERT_TRUE(watch.is_ok());
    EXPECT_TRUE(Segment::in_use(names_.control));
    EXPECT_FALSE(Segment::in_use(names_.arenas[0]));
    EXPECT_EQ(NameWatch::over(names_).status().code(), StatusCode::kBusy);
  }
  EXPECT_FALSE(Segment::in_use(names_.control));
  EXPECT_FALSE(Segment::in_use(stem_ + ".absent"));
}

TEST_F(NameWatchTest, ANameThatIsMissingIsAnError) {
  Segment::unlink(names_.arenas[0]);
  EXPECT_EQ(NameWatch::over(names_).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace optlease
