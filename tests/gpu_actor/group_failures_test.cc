#include "actors/gpu_actor/group_failures.h"

#include <gtest/gtest.h>

namespace optlease {
namespace {

TEST(GroupFailures, TheFiftiethInARowIsOneTooMany) {
  GroupFailures failures;
  for (uint32_t i = 1; i < GroupFailures::kInARowMax; ++i) EXPECT_FALSE(failures.failed()) << i;
  EXPECT_TRUE(failures.failed());
  EXPECT_TRUE(failures.failed()) << "and so is any after it";
}

TEST(GroupFailures, OneGroupThatWorksForgivesAll) {
  GroupFailures failures;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 1; i < GroupFailures::kInARowMax; ++i) EXPECT_FALSE(failures.failed()) << i;
    failures.worked();
  }
}

}  // namespace
}  // namespace optlease
