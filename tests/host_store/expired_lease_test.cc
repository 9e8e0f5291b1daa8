// Every kind of message against a lease that has expired: through the store service, as an actor
// would send it. None may write by it, give it back to life, or end the step.
#include <gtest/gtest.h>

#include "tests/host_store/service_job.h"

namespace optlease {
namespace {

constexpr uint64_t kLeaseMs = 200;  // of ServiceJob's store
constexpr Step kStep = 2;

// What an actor's message must get.
enum class Answer {
  kStaleLease,  // it names the lease
  kNewLease,    // it asks for one
  kAnyOther,    // it names none: whatever is said to it, the lease stays dead
  kNotAnActors  // no actor sends it
};

class ExpiredLease {
 public:
  // `noticed`: the store has looked at the time since the lease expired.
  explicit ExpiredLease(bool noticed) {
    OPTLEASE_CHECK(job_.run_until_committed(kStep - 1), "the job does not run");
    actor().set_commits(false);
    const size_t before = actor().grants().size();
    for (int i = 0; i < 1000 && actor().grants().size() == before; ++i) job_.tick(kStep);
    OPTLEASE_CHECK(actor().grants().size() > before && actor().open() == kStep, "no lease");
    old_ = actor().grants().back();
    OPTLEASE_CHECK(job_.service().leases().find(LeaseId(old_.first.lease_id)) != nullptr, "gone");
    (void)actor().take_outgoing();
    job_.now_ms += kLeaseMs;
    if (noticed) job_.settle();
  }

  // Sends a message of that kind which concerns the lease, its window or its step.
  Answer say(MessageKind kind) {
    const auto& grant = old_.first;
    switch (kind) {
      case MessageKind::kLeaseReturn:
        actor().send(kind, LeaseReturnBody{grant.lease_id});
        return Answer::kStaleLease;
      case MessageKind::kCommitRequest:
        actor().send_commit(grant, old_.second);
        return Answer::kStaleLease;
      case MessageKind::kLeaseRequest:
        actor().send(kind, LeaseRequestBody{kStep, grant.first_chunk, grant.chunk_count});
        return Answer::kNewLease;
      case MessageKind::kHello:
        actor().say_hello();
        return Answer::kAnyOther;
      case MessageKind::kStepReady:
        actor().send(kind, StepReadyBody{kStep, 0, 0});
        return Answer::kAnyOther;
      case MessageKind::kStepRecord:
        actor().send(
            kind, StepRecordBody{actor().group(), fake_record(kStep), fake_sums(Rank{0}, kStep)});
        return Answer::kAnyOther;
      case MessageKind::kPublished:
        actor().send(kind, PublishedBody{kStep - 1, actor().group()});
        return Answer::kAnyOther;
      case MessageKind::kHeartbeat:
        actor().send(kind, HeartbeatBody{kStep, 7, 0});
        return Answer::kAnyOther;
      case MessageKind::kCorruptChunk:
        actor().send(kind, CorruptChunkBody{grant.first_chunk, 0, 0, 0});
        return Answer::kAnyOther;
      case MessageKind::kResidentSaved:
        actor().send(kind, StepBody{kStep - 1});
        return Answer::kAnyOther;
      case MessageKind::kWelcome:
      case MessageKind::kGroupFormed:
      case MessageKind::kGroupBroken:
      case MessageKind::kGoReduce:
      case MessageKind::kGoGather:
      case MessageKind::kStepOpen:
      case MessageKind::kLeaseGrant:
      case MessageKind::kCommitReply:
      case MessageKind::kStepCommitted:
      case MessageKind::kRefused:
      case MessageKind::kStopActor:
      case MessageKind::kSaveResident:
      case MessageKind::kIncarnationStarted:
      case MessageKind::kIncarnationLost:
      case MessageKind::kIncarnationReaped:
      case MessageKind::kStatusQuery:
      case MessageKind::kStatusReply:
      case MessageKind::kHoldRequest:
      case MessageKind::kHoldReply:
      case MessageKind::kHoldRelease:
      case MessageKind::kStopStore:
      case MessageKind::kAttach:
      case MessageKind::kAttached:
      case MessageKind::kStepRequest:
      case MessageKind::kStepReply:
      case MessageKind::kDetach:
      case MessageKind::kPrepare:
        return Answer::kNotAnActors;
    }
    return Answer::kNotAnActors;  // a number without a kind
  }

  void expect(Answer answer) {
    const uint32_t refusals = actor().received(MessageKind::kRefused);
    const size_t grants = actor().grants().size();
    job_.deliver();
    if (answer == Answer::kStaleLease) {
      EXPECT_EQ(actor().received(MessageKind::kRefused), refusals + 1);
      EXPECT_EQ(actor().last_refusal(), StatusCode::kStaleLease);
    }
    if (answer == Answer::kNewLease) {
      ASSERT_EQ(actor().grants().size(), grants + 1);
      EXPECT_NE(actor().grants().back().first.lease_id, old_.first.lease_id);
    }
    expect_dead();
  }
  // Nothing was written by it, and it can still not be used.
  void expect_dead() {
    for (int i = 0; i < 2; ++i) {
      const uint32_t refusals = actor().received(MessageKind::kRefused);
      actor().send_commit(old_.first, old_.second);
      job_.deliver();
      EXPECT_EQ(actor().received(MessageKind::kRefused), refusals + 1) << "its commit was taken";
      EXPECT_EQ(actor().last_refusal(), StatusCode::kStaleLease);
    }
    const ControlView& view = job_.service().store().view();
    for (const GrantEntry& entry : old_.second) {
      EXPECT_EQ(view.version(Rank{0}, ChunkIndex{entry.chunk}), kStep - 1);
    }
    EXPECT_EQ(view.step_committed(), kStep - 1);
    EXPECT_EQ(job_.service().leases().find(LeaseId(old_.first.lease_id)), nullptr);
    EXPECT_EQ(job_.service().check_invariants(), "");
  }
  // The job goes on, unless the actor has just said that the chunk is corrupt.
  void expect_the_job_goes_on(MessageKind said) {
    actor().set_commits(true);
    if (said == MessageKind::kCorruptChunk) {
      actor().send(MessageKind::kLeaseRequest, LeaseRequestBody{kStep, old_.first.first_chunk, 1});
      job_.deliver();
      EXPECT_EQ(actor().last_refusal(), StatusCode::kCorrupt);
      return;
    }
    // A lease that it was granted and does not remember must end first.
    actor().say_hello();
    ASSERT_TRUE(job_.run_until_committed(kStep + 1));
    EXPECT_EQ(job_.check(kStep + 1), "");
  }

 private:
  FakeActor& actor() { return job_.actor(0); }

  ServiceJob job_;
  std::pair<LeaseGrantBody, std::vector<GrantEntry>> old_;
};

// Fault case 17.
// Kinds below 64 are those of an actor to its store.
TEST(ExpiredLeases, AreUsedByNoKindOfMessage) {
  int kinds = 0;
  for (uint16_t number = 1; number < 64; ++number) {
    const auto kind = static_cast<MessageKind>(number);
    for (const bool noticed : {false, true}) {
      if (ExpiredLease(noticed).say(kind) == Answer::kNotAnActors) break;
      SCOPED_TRACE(format("%s, %s", name_of(kind), noticed ? "noticed" : "not noticed"));
      ExpiredLease lease(noticed);
      const Answer answer = lease.say(kind);
      lease.expect(answer);
      lease.expect_the_job_goes_on(kind);
      kinds += noticed ? 1 : 0;
    }
  }
  EXPECT_EQ(kinds, 10) << "an actor's kind of message was left out";
}

}  // namespace
}  // namespace optlease
