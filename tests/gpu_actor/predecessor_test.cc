#include "actors/gpu_actor/predecessor.h"

#include <gtest/gtest.h>

#include "actors/gpu_actor/start_times.h"

namespace optlease {
namespace {

const Status kFull(StatusCode::kNoSpace, "no memory");

TEST(Predecessor, OnlyALaunchersLaterIncarnationReplacesADeadOne) {
  ChildArgs args;
  args.incarnation = 2;
  EXPECT_FALSE(replaces_a_dead_one(args)) << "started by hand: the other may well live";
  args.lifeline_fd = 5;
  EXPECT_TRUE(replaces_a_dead_one(args));
  args.incarnation = 1;
  EXPECT_FALSE(replaces_a_dead_one(args));
}

TEST(Predecessor, IsWaitedForWhileItIsInTheWay) {
  int calls = 0;
  const auto open = [&]() -> Result<int> {
    if (++calls < 4) return kFull;
    return 7;
  };
  const Result<int> opened = once_predecessor_is_gone(StatusCode::kNoSpace, true, open);
  ASSERT_TRUE(opened.is_ok());
  EXPECT_EQ(opened.value(), 7);
  EXPECT_EQ(calls, 4);
}

TEST(Predecessor, IsNotWaitedForWhereThereIsNone) {
  int calls = 0;
  const auto open = [&] { return ++calls, kFull; };
  const Status refused = once_predecessor_is_gone(StatusCode::kNoSpace, false, open);
  EXPECT_EQ(refused.text(), kFull.text());
  EXPECT_EQ(calls, 1);
}

TEST(Predecessor, OtherErrorsAreNotItsFault) {
  int calls = 0;
  const auto open = [&] { return ++calls, Status(StatusCode::kIo, "broken"); };
  EXPECT_EQ(once_predecessor_is_gone(StatusCode::kNoSpace, true, open).code(), StatusCode::kIo);
  EXPECT_EQ(calls, 1);
}

TEST(Predecessor, ThatNeverGoesIsSaidInWords) {
  const Status refused = once_predecessor_is_gone(StatusCode::kNoSpace, true, [] { return kFull; });
  EXPECT_EQ(refused.code(), StatusCode::kNoSpace);
  EXPECT_NE(refused.message().find("no memory; a dying predecessor was given 5000 ms"),
            std::string::npos)
      << refused.message();
}

TEST(StartTimes, NameEveryPartInOrder) {
  EXPECT_GE(process_age_ms(), 0);
  EXPECT_LT(process_age_ms(), 24 * 3600 * 1000) << "not the age of this process";
  StartTimes times;
  times.done("one");
  times.done("two");
  const std::string text = times.text();
  EXPECT_EQ(text.rfind("process ", 0), 0u) << text;
  EXPECT_LT(text.find("one "), text.find("two ")) << text;
  EXPECT_EQ(text.substr(text.size() - 3), " ms") << text;
}

}  // namespace
}  // namespace optlease
