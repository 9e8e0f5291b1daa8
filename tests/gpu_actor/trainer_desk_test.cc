// The desk with a trainer at the other end of its socket and a real control segment: what it
// answers to requests that come too early, too late, again, or from another version.
#include "actors/gpu_actor/trainer_desk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "actors/runtime/client_abi.h"
#include "tests/gpu_actor/actor_home.h"

namespace optlease {
namespace {

constexpr int64_t kAnswerMs = 20'000;
constexpr Rank kRank{0};

StepRecord record_of(Step step) {
  StepRecord record{};
  record.step = step;
  record.update_count = step;
  record.group_count = 1;
  record.groups[0] = {1e-3, 0.9, 0.999, 1e-8, 0.01, static_cast<uint32_t>(Rule::kAdamW), 0};
  record.skipped = step == 3 ? 1 : 0;
  record.grad_norm = static_cast<double>(step) + 0.25;
  record.grad_coefficient = 1;
  record.checksum = checksum_of(record);
  return record;
}

struct Answer {
  std::string frame;
  Decoded decoded() const { return decode(frame).value(); }
  MessageKind kind() const { return decoded().kind; }
  uint64_t sequence() const { return decoded().header.sequence; }
  std::string text() const { return std::string(decoded().payload); }
  StepReplyBody step_reply() const { return decoded().as<StepReplyBody>(); }
};

class TrainerDeskTest : public testing::Test {
 protected:
  TrainerDeskTest()
      : store_(ChunkStore::create(home_.plan().segment, home_.names()).value()),
        desk_(TrainerDesk::open(context_, home_.directory(), kRank).value()),
        trainer_(Socket::connect(context_, Socket::Type::kDealer,
                                 home_.directory().actor_socket(kRank), {.routing_id = "trainer"})
                     .value()) {
    for (Step step = 1; step <= 3; ++step) commit(step);
  }
  void commit(Step step) {
    store_.write_blob(kRank, step, format("blob %lld", static_cast<long long>(step)));
    store_.write_step_record(kRank, record_of(step));
    facts_.committed = step;
    facts_.published = step;
  }
  static StepRequestBody step_body(Step step) {
    return {.step = step, .lr = std::nan(""), .grad_scale = 1, .max_norm = std::nan("")};
  }
  template <class Body>
  void say(MessageKind kind, uint64_t sequence, const Body& body) {
    const Status sent = trainer_.send({"", encode({}, kind, sequence, body)});
    ASSERT_TRUE(sent.is_ok()) << sent.text();
  }
  void say(MessageKind kind, uint64_t sequence) {
    const Status sent = trainer_.send({"", encode_empty({}, kind, sequence)});
    ASSERT_TRUE(sent.is_ok()) << sent.text();
  }
  // One turn of the actor's loop, as far as the desk is in it.
  void turn() {
    desk_.receive(facts_);
    desk_.answer(facts_, store_.view());
  }
  // The desk's next answer; none where it is silent (then the request must be in its hand).
  std::optional<Answer> answer() {
    const Deadline deadline = Deadline::after_ms(kAnswerMs);
    Message message;
    while (!deadline.passed()) {
      turn();
      if (trainer_.receive(&message)) return Answer{message.frame};
      if (desk_.in_hand()) return std::nullopt;
      std::vector<bool> ready;
      (void)poll_sockets({.sockets = {&trainer_, desk_.socket()}, .fds = {}}, 5, &ready).is_ok();
    }
    return std::nullopt;
  }
  std::optional<Answer> ask_step(Step step, uint64_t sequence) {
    say(MessageKind::kStepRequest, sequence, step_body(step));
    return answer();
  }
  void expect_stale(const std::optional<Answer>& got, Step step, uint64_t sequence,
                    const std::string& words) {
    ASSERT_TRUE(got);
    ASSERT_EQ(got->kind(), MessageKind::kStepReply);
    EXPECT_EQ(got->sequence(), sequence);
    EXPECT_EQ(got->step_reply().step, step);
    EXPECT_EQ(got->step_reply().status, static_cast<uint16_t>(StatusCode::kStaleStep));
    EXPECT_EQ(got->text(), words);
    EXPECT_FALSE(desk_.in_hand()) << "a refused request must not become the next step";
  }

  // As ask_step, while another request is in hand and stays there.
  std::optional<Answer> ask_refused(Step step, uint64_t sequence) {
    say(MessageKind::kStepRequest, sequence, step_body(step));
    const Deadline deadline = Deadline::after_ms(kAnswerMs);
    Message message;
    while (!deadline.passed()) {
      turn();
      if (trainer_.receive(&message)) return Answer{message.frame};
    }
    return std::nullopt;
  }
  static void expect_stale_words(const std::optional<Answer>& got, const std::string& words) {
    ASSERT_TRUE(got);
    EXPECT_EQ(got->step_reply().status, static_cast<uint16_t>(StatusCode::kStaleStep));
    EXPECT_EQ(got->text().rfind(words, 0), 0u) << got->text();
  }

  ActorHome home_{256};
  ChunkStore store_;
  SocketContext context_;
  TrainerDesk desk_;
  Socket trainer_;
  DeskFacts facts_{.committed = kNoStep, .published = kNoStep, .last = 10, .quiet = true};
};

TEST_F(TrainerDeskTest, TakesTheNextStepIntoItsHandAndAnswersOnceItIsPublished) {
  EXPECT_FALSE(ask_step(4, 70));
  ASSERT_TRUE(desk_.in_hand());
  EXPECT_EQ(desk_.in_hand()->body.step, 4);
  facts_.committed = 4;  // committed, not gathered: the trainer must not read its parameters yet
  turn();
  ASSERT_TRUE(desk_.in_hand());
  commit(4);
  const auto got = answer();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->sequence(), 70u);
  EXPECT_EQ(got->step_reply().status, 0);
  EXPECT_EQ(got->step_reply().grad_norm, 4.25);
  EXPECT_FALSE(desk_.in_hand());
}

TEST_F(TrainerDeskTest, RefusesAStepThatSkipsAhead) {
  expect_stale(ask_step(5, 71), 5, 71,
               "step 5 was asked for, and the next step is 4; ask for the last committed step and "
               "go on from there");
  EXPECT_EQ(desk_.refusals(), 1u);
}

// A new incarnation hears a trainer's repeated request before the store has said where the job is:
// a refusal would be believed, and end the trainer.
TEST_F(TrainerDeskTest, IsSilentUntilItKnowsTheCommittedStep) {
  const Step committed = facts_.committed, published = facts_.published;
  facts_.committed = kNoStep;
  facts_.published = kNoStep;
  say(MessageKind::kStepRequest, 72, step_body(4));
  Message message;
  for (int i = 0; i < 40; ++i) {
    turn();
    ASSERT_FALSE(trainer_.receive(&message)) << "an answer that nobody can know yet";
    std::vector<bool> ready;
    (void)poll_sockets({.sockets = {&trainer_, desk_.socket()}, .fds = {}}, 5, &ready).is_ok();
  }
  EXPECT_EQ(desk_.refusals(), 0u);
  EXPECT_FALSE(desk_.in_hand());
  facts_.committed = committed;
  facts_.published = published;
  EXPECT_FALSE(ask_step(4, 72)) << "in hand, not yet published";
  ASSERT_TRUE(desk_.in_hand());
  EXPECT_EQ(desk_.in_hand()->body.step, 4);
}

// Answered early: its commit and the next request may cross.
TEST_F(TrainerDeskTest, AnswersAnOpenStepThatIsGatheredAndKeepsTheNextOneUntilItsTurn) {
  store_.write_step_record(kRank, record_of(4));
  EXPECT_FALSE(ask_step(4, 60));
  facts_.open = 4;
  turn();
  ASSERT_TRUE(desk_.in_hand()) << "open, and its parameters are not there";
  facts_.published = 4;
  const auto got = answer();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->sequence(), 60u);
  EXPECT_EQ(got->step_reply().step, 4);
  EXPECT_EQ(got->step_reply().status, 0);
  EXPECT_EQ(got->step_reply().grad_norm, 4.25);
  EXPECT_FALSE(ask_step(5, 61)) << "not refused, not answered";
  ASSERT_TRUE(desk_.in_hand());
  EXPECT_EQ(desk_.in_hand()->body.step, 5);
  expect_stale_words(ask_refused(6, 62), "step 6 was asked for, and the next step is 5; ask for");
  ASSERT_TRUE(desk_.in_hand());
  EXPECT_EQ(desk_.in_hand()->sequence, 61u);
}

TEST_F(TrainerDeskTest, AnswersTheLastStepOnlyWhenItIsCommitted) {
  facts_.last = 4;
  store_.write_step_record(kRank, record_of(4));
  EXPECT_FALSE(ask_step(4, 63));
  facts_.open = 4;
  facts_.published = 4;
  for (int i = 0; i < 5; ++i) turn();
  ASSERT_TRUE(desk_.in_hand()) << "its trainer would end before the job can";
  facts_.open = kNoStep;
  facts_.committed = 4;
  const auto got = answer();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->sequence(), 63u);
}

TEST_F(TrainerDeskTest, HearsWhichStepIsPreparedUntilTheTrainerIsAnother) {
  const auto prepare = [&](Step step) {
    say(MessageKind::kPrepare, 64, StepBody{step});
    say(MessageKind::kStepRequest, 65, step_body(3));  // a sign that the hint was read
    ASSERT_TRUE(answer());
  };
  prepare(4);
  EXPECT_EQ(desk_.prepared(), 4);
  prepare(4);
  prepare(5);  // not next: ignored
  prepare(3);
  EXPECT_EQ(desk_.prepared(), 4);
  EXPECT_EQ(desk_.refusals(), 2u);
  facts_.open = 4;
  prepare(5);
  EXPECT_EQ(desk_.prepared(), 5) << "step 4 is answered and not committed";
  facts_.open = kNoStep;
  say(MessageKind::kAttach, 66, AttachBody{kClientAbiVersion, 1});
  ASSERT_TRUE(answer());
  EXPECT_EQ(desk_.prepared(), kNoStep) << "a new life of the trainer";
  prepare(4);
  say(MessageKind::kDetach, 67);
  say(MessageKind::kStepRequest, 68, step_body(3));
  ASSERT_TRUE(answer());
  EXPECT_EQ(desk_.prepared(), kNoStep);
  facts_.last = 3;
  prepare(4);
  EXPECT_EQ(desk_.prepared(), kNoStep) << "past the job's last step";
}

TEST_F(TrainerDeskTest, RefusesAStepPastTheJobsLast) {
  facts_.last = 3;
  expect_stale(ask_step(4, 73), 4, 73,
               "step 4 was asked for, and the job ends with step 3 (job.steps)");
  EXPECT_EQ(desk_.refusals(), 1u);
  const auto last = ask_step(3, 74);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->step_reply().status, 0) << "the last step's own reply may have been lost";
}

TEST_F(TrainerDeskTest, ARefusalLeavesTheRequestInHandAlone) {
  EXPECT_FALSE(ask_step(4, 75));
  say(MessageKind::kStepRequest, 76, step_body(6));
  const Deadline deadline = Deadline::after_ms(kAnswerMs);
  while (desk_.refusals() == 0 && !deadline.passed()) turn();
  EXPECT_EQ(desk_.refusals(), 1u);
  ASSERT_TRUE(desk_.in_hand());
  EXPECT_EQ(desk_.in_hand()->sequence, 75u);
}

TEST_F(TrainerDeskTest, AnswersARepeatOfTheLastPublishedStepAsBefore) {
  for (const uint64_t sequence : {80u, 80u, 81u}) {  // the same request, or a restarted trainer's
    const auto got = ask_step(3, sequence);
    ASSERT_TRUE(got) << sequence;
    ASSERT_EQ(got->kind(), MessageKind::kStepReply);
    EXPECT_EQ(got->sequence(), sequence);
    EXPECT_EQ(got->step_reply().step, 3);
    EXPECT_EQ(got->step_reply().status, 0);
    EXPECT_EQ(got->step_reply().grad_norm, 3.25);
    EXPECT_EQ(got->step_reply().skipped, 1u);
    EXPECT_EQ(got->text(), "");
  }
  EXPECT_EQ(desk_.refusals(), 0u);
}

TEST_F(TrainerDeskTest, AnswersAnOlderStepWithoutItsNorm) {
  const auto got = ask_step(1, 82);  // the bank holds step 3
  ASSERT_TRUE(got);
  EXPECT_EQ(got->step_reply().step, 1);
  EXPECT_EQ(got->step_reply().status, 0);
  EXPECT_TRUE(std::isnan(got->step_reply().grad_norm));
  EXPECT_EQ(got->step_reply().skipped, 0u);
}

TEST_F(TrainerDeskTest, RefusesATrainerOfAnotherVersionWithBothNumbers) {
  say(MessageKind::kAttach, 90, AttachBody{kClientAbiVersion + 1, 1});
  const auto got = answer();
  ASSERT_TRUE(got);
  ASSERT_EQ(got->kind(), MessageKind::kRefused);
  EXPECT_EQ(got->sequence(), 90u);
  const auto body = got->decoded().as<RefusedBody>();
  EXPECT_EQ(body.kind, static_cast<uint16_t>(MessageKind::kAttach));
  EXPECT_EQ(body.status, static_cast<uint16_t>(StatusCode::kWrongVersion));
  EXPECT_EQ(got->text(),
            format("the trainer's client library has ABI version %u, this job's actors have %u: "
                   "build the trainer against this version",
                   kClientAbiVersion + 1, kClientAbiVersion));
  EXPECT_EQ(desk_.refusals(), 1u);
  // It was not kept: the next answer is that of the next request.
  say(MessageKind::kAttach, 91, AttachBody{kClientAbiVersion, 1});
  const auto attached = answer();
  ASSERT_TRUE(attached);
  EXPECT_EQ(attached->kind(), MessageKind::kAttached);
  EXPECT_EQ(attached->sequence(), 91u);
  EXPECT_EQ(attached->decoded().as<AttachedBody>().step_committed, 3);
  EXPECT_EQ(attached->text(), "blob 3");
}

TEST_F(TrainerDeskTest, LetsATrainerAttachOnlyWhileNothingIsUnderWay) {
  facts_.quiet = false;
  say(MessageKind::kAttach, 92, AttachBody{kClientAbiVersion, 1});
  Message message;
  for (int i = 0; i < 20; ++i) {
    turn();
    std::vector<bool> ready;
    (void)poll_sockets({.sockets = {&trainer_}, .fds = {}}, 5, &ready).is_ok();
  }
  EXPECT_FALSE(trainer_.receive(&message));
  facts_.quiet = true;
  const auto attached = answer();
  ASSERT_TRUE(attached);
  EXPECT_EQ(attached->sequence(), 92u);
}

}  // namespace
}  // namespace optlease
