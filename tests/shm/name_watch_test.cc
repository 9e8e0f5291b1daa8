// Names that somebody else removes: seen, told once, restored; and who is seen to serve a segment.
#include "shm/name_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace optlease {
namespace {

constexpr uint64_t kBytes = 3u << 20;

class NameWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& name : names_) {
      auto made = Segment::create(name, kBytes);
      ASSERT_TRUE(made.is_ok());
      std::memset(made.value().data(), name.back(), kBytes);
    }
  }
  void TearDown() override {
    for (const std::string& name : names_) Segment::unlink(name);
  }
  static bool holds(const std::string& name, char byte) {
    auto opened = Segment::open(name, Segment::Access::kReadOnly);
    if (!opened.is_ok() || opened.value().bytes() != kBytes) return false;
    const char* bytes = static_cast<const char*>(opened.value().data());
    return std::string_view(bytes, kBytes).find_first_not_of(byte) == std::string_view::npos;
  }
  const std::string stem_ = "/optlease-name-watch." + std::to_string(getpid());
  const std::vector<std::string> names_{stem_ + ".r0", stem_ + ".r1", stem_ + ".ctl"};
};

TEST_F(NameWatchTest, TellsEachRemovedOrReplacedNameOnce) {
  auto watch = NameWatch::over(names_);
  ASSERT_TRUE(watch.is_ok()) << watch.status().text();
  EXPECT_TRUE(watch.value().lost_now().empty());
  Segment::unlink(names_[1]);
  EXPECT_EQ(watch.value().lost_now(), std::vector<std::string>{Segment::path_of(names_[1])});
  EXPECT_TRUE(watch.value().lost_now().empty()) << "told twice";
  Segment::unlink(names_[2]);
  ASSERT_TRUE(Segment::create(names_[2], 4096).is_ok()) << "replaced by another file";
  EXPECT_EQ(watch.value().lost_now(), std::vector<std::string>{Segment::path_of(names_[2])});
}

TEST_F(NameWatchTest, RestoresWhatWasRemovedWithItsBytes) {
  auto watch = NameWatch::over(names_);
  ASSERT_TRUE(watch.is_ok());
  Segment::unlink(names_[0]);
  Segment::unlink(names_[2]);
  std::vector<std::string> made;
  const Status restored = watch.value().restore(&made);
  ASSERT_TRUE(restored.is_ok()) << restored.text();
  EXPECT_EQ(made,
            (std::vector<std::string>{Segment::path_of(names_[0]), Segment::path_of(names_[2])}));
  for (const std::string& name : names_) EXPECT_TRUE(holds(name, name.back())) << name;
  EXPECT_TRUE(watch.value().lost_now().empty()) << "the new ones are watched";
  Segment::unlink(names_[0]);
  EXPECT_EQ(watch.value().lost_now().size(), 1u);
}

TEST_F(NameWatchTest, AnothersFileUnderTheNameIsLeftAloneAndTheRestIsRestored) {
  auto watch = NameWatch::over(names_);
  ASSERT_TRUE(watch.is_ok());
  for (const std::string& name : names_) Segment::unlink(name);
  {
    auto other = Segment::create(names_[1], kBytes);
    ASSERT_TRUE(other.is_ok());
    std::memset(other.value().data(), 'x', kBytes);
  }
  std::vector<std::string> made;
  EXPECT_EQ(watch.value().restore(&made).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(made.size(), 2u);
  EXPECT_TRUE(holds(names_[0], '0'));
  EXPECT_TRUE(holds(names_[1], 'x'));
  EXPECT_TRUE(holds(names_[2], 'l'));
  Segment::unlink(names_[1]);
  ASSERT_TRUE(watch.value().restore(&made).is_ok()) << "once it is gone";
  EXPECT_TRUE(holds(names_[1], '1'));
}

TEST_F(NameWatchTest, WhatItsMakerMadeAnewIsWatchedInTheOldOnesPlace) {
  auto watch = NameWatch::over({});
  ASSERT_TRUE(watch.is_ok());
  const auto successor = [](const Segment& was, const Segment& stands) {
    return was.bytes() == stands.bytes();
  };
  ASSERT_TRUE(watch.value().add({names_[0], names_[1]}, successor).is_ok());
  ASSERT_TRUE(watch.value().add({names_[2]}).is_ok());
  const auto make_anew = [&](const std::string& name, uint64_t bytes) {
    Segment::unlink(name);
    auto made = Segment::create(name, bytes);
    ASSERT_TRUE(made.is_ok());
    std::memset(made.value().data(), 'n', bytes);
  };
  make_anew(names_[0], kBytes);
  EXPECT_TRUE(watch.value().lost_now().empty());
  std::vector<std::string> made;
  EXPECT_TRUE(watch.value().restore(&made).is_ok());
  EXPECT_TRUE(made.empty());
  EXPECT_TRUE(holds(names_[0], 'n')) << "left as it is";
  // Removed again, the new one's bytes come back; another's file is still another's.
  Segment::unlink(names_[0]);
  make_anew(names_[1], 4096);
  EXPECT_EQ(watch.value().lost_now().size(), 2u);
  EXPECT_EQ(watch.value().restore(&made).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(made, std::vector<std::string>{Segment::path_of(names_[0])});
  EXPECT_TRUE(holds(names_[0], 'n'));
  // At the end alone, without a look before.
  make_anew(names_[1], kBytes);
  EXPECT_TRUE(watch.value().restore(&made).is_ok());
  make_anew(names_[2], kBytes);
  EXPECT_EQ(watch.value().restore(&made).code(), StatusCode::kAlreadyExists)
      << "nobody may make that one anew";
}

TEST_F(NameWatchTest, MarksASegmentAsServedForAsLongAsItLives) {
  const std::string& control = names_[2];
  EXPECT_FALSE(Segment::in_use(control));
  {
    auto watch = NameWatch::over(names_);
    ASSERT_TRUE(watch.is_ok());
    EXPECT_FALSE(Segment::in_use(control));
    ASSERT_TRUE(watch.value().serve(control).is_ok());
    EXPECT_TRUE(Segment::in_use(control));
    EXPECT_FALSE(Segment::in_use(names_[0]));
    auto another = NameWatch::over(names_);
    ASSERT_TRUE(another.is_ok());
    EXPECT_EQ(another.value().serve(control).code(), StatusCode::kBusy);
  }
  EXPECT_FALSE(Segment::in_use(control));
  EXPECT_FALSE(Segment::in_use(stem_ + ".absent"));
}

TEST_F(NameWatchTest, ANameThatIsMissingIsAnError) {
  Segment::unlink(names_[0]);
  EXPECT_EQ(NameWatch::over(names_).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace optlease
