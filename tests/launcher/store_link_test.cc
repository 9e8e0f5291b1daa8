// A tool's hold from its first request to its release, against a store that this test plays.
#include "launcher/store_link.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "actors/runtime/clock.h"
#include "actors/wire/codec.h"
#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

class StepHoldTest : public testing::Test {
 protected:
  struct Heard {
    std::string peer;
    MessageKind kind;
    uint64_t sequence;
    HoldBody body;
  };

  void SetUp() override {
    ASSERT_EQ(setenv("XDG_RUNTIME_DIR", directory_.path().c_str(), 1), 0);
    run_.emplace(RunDirectory::of("hold-test").value());
    ASSERT_TRUE(run_->create().is_ok());
    store_.emplace(Socket::bind(context_, Socket::Type::kRouter, run_->store_socket()).value());
  }
  void TearDown() override { unsetenv("XDG_RUNTIME_DIR"); }

  Heard hear() {
    const Deadline deadline = Deadline::after_ms(30000);
    Message message;
    while (!store_->receive(&message) && !deadline.passed()) {
      std::vector<bool> ready;
      (void)poll_sockets({{&*store_}, {}}, 20, &ready).is_ok();
    }
    const auto decoded = decode(message.frame);
    EXPECT_TRUE(decoded.is_ok()) << "nothing was heard";
    if (!decoded) return {};
    return {message.peer, decoded.value().kind, decoded.value().header.sequence,
            decoded.value().as<HoldBody>()};
  }
  // The first thing that is no repetition of `known`.
  Heard hear_after(uint64_t known) {
    Heard heard = hear();
    while (heard.sequence == known) heard = hear();
    return heard;
  }
  void grant(const Heard& request) {
    const HoldBody body{7, 3, request.body.ttl_ms};
    const std::string frame = encode(Speaker{}, MessageKind::kHoldReply, request.sequence, body);
    EXPECT_TRUE(store_->send({request.peer, frame}).is_ok());
  }

  const testing_support::TempDirectory directory_;
  SocketContext context_;
  std::optional<RunDirectory> run_;
  std::optional<Socket> store_;
};

// A tool may die before it hears of its hold, and then nobody releases it: so it asks for a short
// one, and for a long one only once it knows the first.
TEST_F(StepHoldTest, IsShortUntilItWasHeardOf) {
  std::thread tool([&] {
    SocketContext context;
    auto hold = StepHold::take(context, *run_, 30000, [] { return Status::ok(); });
    EXPECT_TRUE(hold.is_ok()) << hold.status().text();
    if (!hold) return;
    EXPECT_EQ(hold.value().step(), 7);
  });
  const Heard first = hear();
  EXPECT_EQ(first.kind, MessageKind::kHoldRequest);
  EXPECT_EQ(first.body.hold_id, 0u);
  EXPECT_LE(first.body.ttl_ms, 1000u);
  // Not answered, it is repeated as the same request: never two holds.
  const Heard again = hear();
  EXPECT_EQ(again.sequence, first.sequence);
  EXPECT_EQ(again.body.ttl_ms, first.body.ttl_ms);
  grant(again);
  const Heard renewal = hear_after(first.sequence);
  EXPECT_EQ(renewal.kind, MessageKind::kHoldRequest);
  EXPECT_EQ(renewal.body.hold_id, 3u);
  EXPECT_GT(renewal.body.ttl_ms, first.body.ttl_ms);
  grant(renewal);
  const Heard release = hear_after(renewal.sequence);
  tool.join();
  EXPECT_EQ(release.kind, MessageKind::kHoldRelease);
  EXPECT_EQ(release.body.hold_id, 3u);
}

TEST_F(StepHoldTest, EndsInWordsWhereNobodyAnswers) {
  SocketContext context;
  const auto hold = StepHold::take(context, *run_, 200, [] { return Status::ok(); });
  ASSERT_FALSE(hold.is_ok());
  EXPECT_EQ(hold.status().code(), StatusCode::kTimeout);
  EXPECT_NE(hold.status().message().find("did not come to rest within 200 ms"), std::string::npos);
}

}  // namespace
}  // namespace optlease
