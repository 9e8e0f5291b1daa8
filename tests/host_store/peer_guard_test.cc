#include "actors/host_store/peer_guard.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace optlease {
namespace {

constexpr int kLauncher = 100, kActor = 101, kNextActor = 102, kStranger = 999;

int parent(int pid) { return pid == kActor || pid == kNextActor ? kLauncher : 1; }

StatusCode say(PeerGuard& guard, const std::string& routing_id, int pid) {
  return guard.check(routing_id, pid).status.code();
}

TEST(PeerGuard, OnlyTheLauncherIsTheLauncher) {
  PeerGuard guard(kLauncher, parent);
  EXPECT_EQ(say(guard, "launcher@00", kLauncher), StatusCode::kOk);
  EXPECT_EQ(say(guard, "launcher@11", kStranger), StatusCode::kPermission);
  EXPECT_EQ(say(guard, "launcher", kActor), StatusCode::kPermission) << "a child is not, either";
  EXPECT_EQ(say(guard, "launcher@00", kLauncher), StatusCode::kOk);
}

TEST(PeerGuard, OnlyChildrenOfTheLauncherAreActorsAndEachNameHasOne) {
  PeerGuard guard(kLauncher, parent);
  EXPECT_EQ(say(guard, "r0.i1@aa", kStranger), StatusCode::kPermission) << "not even the first";
  EXPECT_EQ(say(guard, "r0.i1@bb", kActor), StatusCode::kOk);
  EXPECT_EQ(say(guard, "r0.i1@cc", kNextActor), StatusCode::kPermission) << "it is taken";
  EXPECT_EQ(say(guard, "r0.i2@cc", kNextActor), StatusCode::kOk);
  EXPECT_EQ(say(guard, "r0.i1@bb", kActor), StatusCode::kOk);
  EXPECT_EQ(say(guard, "r0.i1@bb", kStranger), StatusCode::kPermission) << "with its routing id";
}

TEST(PeerGuard, ToolsAndStrangersAreTheServicesBusiness) {
  PeerGuard guard(kLauncher, parent);
  EXPECT_EQ(say(guard, "tool.7@aa", kStranger), StatusCode::kOk);
  EXPECT_EQ(say(guard, "who", kStranger), StatusCode::kOk);
}

TEST(PeerGuard, SaysItOnceOfEachConnection) {
  PeerGuard guard(kLauncher, parent);
  const PeerGuard::Verdict first = guard.check("r0.i1@aa", kStranger);
  EXPECT_TRUE(first.is_new);
  for (const char* part : {"999", "r0.i1", "100"}) {
    EXPECT_NE(first.status.message().find(part), std::string::npos) << first.status.message();
  }
  EXPECT_EQ(first.status.message().find("@"), std::string::npos) << "nobody learns the rest";
  EXPECT_FALSE(guard.check("r0.i1@aa", kStranger).is_new);
  EXPECT_TRUE(guard.check("r0.i1@bb", kStranger).is_new);
}

TEST(PeerGuard, BelievesWhatItCannotKnow) {
  PeerGuard by_hand(0, parent);
  EXPECT_EQ(say(by_hand, "launcher", kStranger), StatusCode::kOk);
  PeerGuard blind(kLauncher, [](int) { return 0; });
  EXPECT_EQ(say(blind, "r0.i1", kStranger), StatusCode::kOk);
  PeerGuard guard(kLauncher, parent);
  EXPECT_EQ(say(guard, "launcher", 0), StatusCode::kOk);
}

TEST(PeerGuard, ReadsAParentFromTheKernel) {
  EXPECT_EQ(PeerGuard::parent_of(::getpid()), ::getppid());
  EXPECT_EQ(PeerGuard::parent_of(0), 0);
}

}  // namespace
}  // namespace optlease
