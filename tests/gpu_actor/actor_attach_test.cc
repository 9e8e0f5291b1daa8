// The real actor against a host store that this test plays, and one that answers late: a Welcome to
// a Hello of before the streams were drained gave no word about them, and attaches nobody.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "actors/gpu_actor/gpu_actor.h"
#include "tests/gpu_actor/actor_home.h"

namespace optlease {
namespace {

constexpr uint64_t kElements = 2u << 20;  // one chunk, whose initial values take a while
constexpr int64_t kAnswerMs = 60'000;
constexpr uint64_t kEpoch = 5;
constexpr Rank kRank{0};

// What the actor said, as far as a store looks at it.
struct Heard {
  MessageKind kind{};
  uint64_t sequence = 0;
  uint64_t epoch = 0;
};

class AttachTest : public testing::Test {
 protected:
  void SetUp() override {
    store_.emplace(ChunkStore::create(home_.plan().segment, home_.names()).value());
    socket_.emplace(
        Socket::bind(context_, Socket::Type::kRouter, home_.directory().store_socket()).value());
    LifelinePair pair = make_lifeline().value();
    launcher_fd_ = UniqueFd(pair.launcher_fd);
    ChildArgs args;
    args.job = home_.directory().job_name();
    auto actor = GpuActor::create(args, home_.plan(), home_.directory(),
                                  std::move(Lifeline::adopt(pair.child_fd)).value());
    ASSERT_TRUE(actor.is_ok()) << actor.status().text();
    actor_ = std::move(actor).value();
    thread_ = std::thread([this] { exit_ = actor_->run(); });
  }
  void TearDown() override {
    launcher_fd_ = UniqueFd();  // the actor ends with its launcher
    if (thread_.joinable()) thread_.join();
  }

  // The next thing that the actor says.
  std::optional<Heard> hear() {
    const Deadline deadline = Deadline::after_ms(kAnswerMs);
    Message message;
    while (!socket_->receive(&message)) {
      if (deadline.passed()) return std::nullopt;
      std::vector<bool> ready;
      (void)poll_sockets({.sockets = {&*socket_}, .fds = {}}, 20, &ready).is_ok();
    }
    peer_ = message.peer;
    const Decoded frame = decode(message.frame).value();
    return Heard{frame.kind, frame.header.sequence, frame.header.store_epoch};
  }
  // The next of its kind; what comes before it is kept in `before`.
  Heard hear(MessageKind kind, std::vector<Heard>* before = nullptr) {
    while (const std::optional<Heard> heard = hear()) {
      if (heard->kind == kind) return *heard;
      if (before != nullptr) before->push_back(*heard);
    }
    ADD_FAILURE() << "no " << name_of(kind) << " came";
    return {};
  }
  template <class Body>
  void say(MessageKind kind, uint64_t epoch, uint64_t sequence, const Body& body,
           std::string_view payload = {}) {
    const Status sent =
        socket_->send({peer_, encode({kRank.value, 1, epoch}, kind, sequence, body, payload)});
    ASSERT_TRUE(sent.is_ok()) << sent.text();
  }
  void welcome(uint64_t epoch, uint64_t sequence) {
    say(MessageKind::kWelcome, epoch, sequence,
        WelcomeBody{.step_committed = kNoStep, .step_open = kNoStep, .lease_ms = 5000});
  }
  void refuse(StatusCode code, uint64_t epoch) {
    const RefusedBody body{static_cast<uint16_t>(MessageKind::kHeartbeat),
                           static_cast<uint16_t>(code), 0};
    say(MessageKind::kRefused, epoch, 0, body);
  }
  // Attaches the actor at `epoch`; the sequence of the hello that did it.
  uint64_t attach(uint64_t epoch) {
    const Heard hello = hear(MessageKind::kHello);
    welcome(epoch, hello.sequence);
    EXPECT_EQ(hear(MessageKind::kHeartbeat).epoch, epoch);
    return hello.sequence;
  }
  // The slot into which the actor is told to write its chunk.
  char* slot(const Segment& arena, uint32_t index) const {
    return static_cast<char*>(arena.data()) + kArenaSlotsOffset +
           index * store_->view().rank(kRank).slot_bytes;
  }
  void grant(uint32_t slot_index) {
    const LeaseGrantBody body{1, 0, 0, 1, 1, 0};
    const GrantEntry entry{0, slot_index, slot_index, 0, 0};
    say(MessageKind::kLeaseGrant, kEpoch, 0, body,
        {reinterpret_cast<const char*>(&entry), sizeof entry});
  }
  // The next three words are hellos: nobody has attached it.
  void expect_unattached() {
    for (int i = 0; i < 3; ++i) {
      const std::optional<Heard> heard = hear();
      ASSERT_TRUE(heard);
      ASSERT_EQ(heard->kind, MessageKind::kHello)
          << name_of(heard->kind) << " of epoch " << heard->epoch;
      EXPECT_EQ(heard->epoch, 0u);
    }
  }

  ActorHome home_{kElements};
  std::optional<ChunkStore> store_;
  SocketContext context_;
  std::optional<Socket> socket_;
  std::string peer_;
  UniqueFd launcher_fd_;
  std::unique_ptr<GpuActor> actor_;
  std::thread thread_;
  ExitCode exit_ = ExitCode::kOk;  // once the thread is joined
};

TEST_F(AttachTest, AnyAnswerSinceTheDrainWillDo) {
  const uint64_t first = hear(MessageKind::kHello).sequence;
  hear(MessageKind::kHello);
  hear(MessageKind::kHello);
  welcome(kEpoch, first);  // slow, but to a hello of this very wait
  EXPECT_EQ(hear(MessageKind::kHeartbeat).epoch, kEpoch);
}

// Its segments were exchanged for older ones while no store ran.
TEST_F(AttachTest, AStoreThatKnowsOnlyAnOlderCommittedStepEndsTheActor) {
  attach(kEpoch);
  say(MessageKind::kStepCommitted, kEpoch, 0, StepBody{0});
  refuse(StatusCode::kStaleEpoch, kEpoch + 1);
  const Heard hello = hear(MessageKind::kHello);
  welcome(kEpoch + 1, hello.sequence);  // kNoStep
  thread_.join();
  EXPECT_EQ(exit_, ExitCode::kCorruptState);
}

TEST_F(AttachTest, TheAnswerToAHelloFromBeforeTheDrainAttachesNobody) {
  const uint64_t stale = attach(kEpoch);
  refuse(StatusCode::kStaleEpoch, kEpoch + 1);
  hear(MessageKind::kHello);
  // The store of then and one of now that answer the old hello.
  welcome(kEpoch, stale);
  ASSERT_NO_FATAL_FAILURE(expect_unattached());
  welcome(kEpoch + 1, stale);
  ASSERT_NO_FATAL_FAILURE(expect_unattached());
  const Heard fresh = hear(MessageKind::kHello);
  EXPECT_GT(fresh.sequence, stale);
  welcome(kEpoch + 1, fresh.sequence);
  EXPECT_EQ(hear(MessageKind::kHeartbeat).epoch, kEpoch + 1);
}

// Fault case 22: the segments are there, and nobody answers.
TEST_F(AttachTest, WithoutAnAnswerOfTheStoreItEndsAsStoreLost) {
  TearDown();
  JobPlan plan = home_.plan();
  plan.restart.start_timeout_ms = 300;
  LifelinePair pair = make_lifeline().value();
  launcher_fd_ = UniqueFd(pair.launcher_fd);
  ChildArgs args;
  args.job = home_.directory().job_name();
  args.incarnation = 2;
  actor_.reset();
  auto actor = GpuActor::create(args, plan, home_.directory(),
                                std::move(Lifeline::adopt(pair.child_fd)).value());
  ASSERT_TRUE(actor.is_ok()) << actor.status().text();
  EXPECT_EQ(actor.value()->run(), ExitCode::kStoreLost);
}

// The store that asked is another one, or long gone; its successor asks again.
TEST_F(AttachTest, ASavingOfAStepThatIsNotCommittedIsNotAnswered) {
  attach(kEpoch);
  say(MessageKind::kSaveResident, kEpoch, 0, StepBody{3});
  for (int i = 0; i < 3; ++i) {
    const std::optional<Heard> heard = hear();
    ASSERT_TRUE(heard);
    EXPECT_NE(heard->kind, MessageKind::kResidentSaved);
  }
}

// The step opened after the actor had started: its sums are another incarnation's.
class LateOpenTest : public AttachTest {
 protected:
  // As the store leaves it whose step 1 is open; the gradient segment is all zeros.
  void open_step(uint64_t digest) {
    const SlotEntry entry{0, 0, 0};
    store_->commit(kRank, ChunkIndex(0), 0, {&entry, 1});
    store_->set_step_committed(0);
    StepRecord record{};
    record.step = record.update_count = 1;
    record.group_count = 1;
    record.groups[0] = home_.plan().optimizer.groups[0];
    record.grad_coefficient = 1;
    record.checksum = checksum_of(record);
    store_->write_sums_digest(kRank, make_sums_digest(1, digest));
    store_->write_step_record(kRank, record);
    const Heard hello = hear(MessageKind::kHello);
    say(MessageKind::kWelcome, kEpoch, hello.sequence,
        WelcomeBody{.step_committed = 0, .step_open = 1, .lease_ms = 5000});
  }
  static constexpr uint64_t kDigestOfZeros = 0;  // a sum of words
};

TEST_F(LateOpenTest, ItsUpdateBeginsOnceTheSumsAreFoundToBeThoseOnRecord) {
  open_step(kDigestOfZeros);
  EXPECT_EQ(hear(MessageKind::kLeaseRequest).epoch, kEpoch);
}

TEST_F(LateOpenTest, OtherSumsThanThoseOnRecordEndTheActorBeforeAnyUpdate) {
  open_step(kDigestOfZeros + 1);
  thread_.join();
  EXPECT_EQ(exit_, ExitCode::kCorruptState);
  Message message;
  while (socket_->receive(&message)) {
    EXPECT_NE(decode(message.frame).value().kind, MessageKind::kLeaseRequest);
  }
}

// The window is at work in the shadow slot when the store calls its lease void.
TEST_F(AttachTest, WhileTheStreamsStillWriteNoWelcomeCountsAndNoHelloIsSaid) {
  const uint64_t stale = attach(kEpoch);
  const Segment arena = Segment::open(home_.names().arenas[0], Segment::Access::kReadOnly).value();
  const uint32_t slot_index = store_->view().rank(kRank).slot_count - 1;
  const auto* main = reinterpret_cast<const volatile float*>(slot(arena, slot_index));
  grant(slot_index);
  const Deadline deadline = Deadline::after_ms(kAnswerMs);
  while (main[0] == 0 && !deadline.passed()) std::this_thread::yield();
  ASSERT_NE(main[0], 0) << "the chunk was never begun";
  const bool still_at_work = main[kElements - 1] == 0;

  refuse(StatusCode::kStaleLease, kEpoch);
  welcome(kEpoch - 1, stale);      // an older store's, or one that was long on its way
  welcome(kEpoch + 7, stale + 1);  // no hello of this wait was said yet, whatever it answers
  std::vector<Heard> before;
  const Heard hello = hear(MessageKind::kHello, &before);
  EXPECT_NE(main[kElements - 1], 0) << "a hello while the streams still write";
  for (const Heard& heard : before) {
    EXPECT_EQ(heard.epoch, kEpoch) << name_of(heard.kind) << ": a stale welcome attached it";
  }
  ASSERT_NO_FATAL_FAILURE(expect_unattached());
  welcome(kEpoch, hello.sequence);
  EXPECT_EQ(hear(MessageKind::kHeartbeat).epoch, kEpoch);
  if (!still_at_work) GTEST_SKIP() << "the chunk was ready before its lease was called void";
}

}  // namespace
}  // namespace optlease
