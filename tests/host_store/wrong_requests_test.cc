// The store service and every kind of wrong request: one answer each, and the job goes on.
#include <gtest/gtest.h>

#include <random>

#include "tests/host_store/service_job.h"

namespace optlease {
namespace {

// Fault case 15.
class WrongRequests : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job_.run_until_committed(1));
    peer_ = job_.actor(0).peer();
  }
  void TearDown() override {
    ASSERT_TRUE(job_.run_until_committed(2)) << "the job must not have suffered";
    EXPECT_EQ(job_.check(2), "");
  }
  template <class Body>
  StatusCode say(MessageKind kind, const Body& body, const Speaker& speaker,
                 const std::string& peer, std::string_view payload = {}) {
    const uint32_t before = job_.heard(peer).frames;
    job_.raw(peer, encode(speaker, kind, 5, body, payload));
    EXPECT_EQ(job_.heard(peer).frames, before + 1) << name_of(kind) << " has one answer";
    return job_.heard(peer).refused;
  }
  template <class Body>
  StatusCode say(MessageKind kind, const Body& body, std::string_view payload = {}) {
    return say(kind, body, speaker(), peer_, payload);
  }
  Speaker speaker() { return {0, 1, job_.actor(0).epoch()}; }

  ServiceJob job_;
  std::string peer_;
};

TEST_F(WrongRequests, OutOfRangeOnesAreRefused) {
  using K = MessageKind;
  EXPECT_EQ(say(K::kLeaseRequest, LeaseRequestBody{2, 6, 2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(say(K::kLeaseRequest, LeaseRequestBody{2, UINT32_MAX, 2}),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(say(K::kCorruptChunk, CorruptChunkBody{7, 0, 0, 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(say(K::kCommitRequest, CommitRequestBody{1, 2, UINT32_MAX, 64, 0, 0}),
            StatusCode::kInvalidArgument);
  Speaker foreign = speaker();
  foreign.rank = 99;
  EXPECT_EQ(say(K::kHeartbeat, HeartbeatBody{}, foreign, "r99.i1"), StatusCode::kInvalidArgument);
  EXPECT_EQ(say(K::kIncarnationLost, IncarnationBody{2, 0, 1}, {}, "launcher"),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(say(K::kIncarnationLost, IncarnationBody{0, 0, 0}, {}, "launcher"),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(say(K::kHoldRequest, HoldBody{0, 0, 0}, {}, "tool.1"), StatusCode::kInvalidArgument);
}

TEST_F(WrongRequests, StaleOnesAreRefusedWithTheirReason) {
  using K = MessageKind;
  EXPECT_EQ(say(K::kLeaseRequest, LeaseRequestBody{1, 0, 1}), StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kLeaseRequest, LeaseRequestBody{3, 0, 1}), StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kStepReady, StepReadyBody{1, 0, 0}), StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kStepReady, StepReadyBody{3, 0, 0}), StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kStepRecord, StepRecordBody{0, fake_record(3), fake_sums(Rank{0}, 3)}),
            StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kStepRecord, StepRecordBody{7, fake_record(2), fake_sums(Rank{0}, 2)}),
            StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kPublished, PublishedBody{0, 0}), StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kPublished, PublishedBody{2, 0}), StatusCode::kStaleStep) << "not open";
  EXPECT_EQ(say(K::kLeaseReturn, LeaseReturnBody{12345}), StatusCode::kStaleLease);
  Speaker old = speaker();
  old.store_epoch -= 1;
  for (const K kind : {K::kHeartbeat}) {
    EXPECT_EQ(say(kind, HeartbeatBody{}, old, peer_), StatusCode::kStaleEpoch);
  }
  EXPECT_EQ(say(K::kLeaseRequest, LeaseRequestBody{2, 0, 1}, old, peer_), StatusCode::kStaleEpoch);
  EXPECT_EQ(say(K::kPublished, PublishedBody{1, 0}, old, peer_), StatusCode::kStaleEpoch);
  Speaker next = speaker();
  next.incarnation = 2;
  EXPECT_EQ(say(K::kHeartbeat, HeartbeatBody{}, next, "r0.i2"), StatusCode::kStaleIncarnation);
}

TEST_F(WrongRequests, ForeignOnesAreRefused) {
  using K = MessageKind;
  EXPECT_EQ(say(K::kHeartbeat, HeartbeatBody{}, speaker(), job_.actor(1).peer()),
            StatusCode::kPermission)
      << "another rank's name";
  EXPECT_EQ(say(K::kHeartbeat, HeartbeatBody{}, speaker(), "tool.9"), StatusCode::kPermission);
  EXPECT_EQ(say(K::kIncarnationLost, IncarnationBody{0, 0, 1}, {}, "tool.9"),
            StatusCode::kPermission);
  EXPECT_EQ(say(K::kStopStore, HoldBody{}), StatusCode::kPermission);
  EXPECT_EQ(say(K::kHoldRequest, HoldBody{0, 0, 1}), StatusCode::kPermission);
  EXPECT_EQ(say(K::kStepOpen, StepBody{2}), StatusCode::kUnsupported);
  EXPECT_EQ(say(K::kAttach, AttachBody{1, 1}), StatusCode::kUnsupported);
  HelloBody hello{};
  EXPECT_EQ(say(K::kHello, hello), StatusCode::kInvalidArgument) << "another job's id";
  std::memcpy(hello.job_id, job_.actor(0).view()->header().job_id, sizeof hello.job_id);
  EXPECT_EQ(say(K::kHello, hello), StatusCode::kInvalidArgument) << "another layout";
}

TEST_F(WrongRequests, MalformedFramesAreRefusedAndStrangersDropped) {
  const std::string good = encode(speaker(), MessageKind::kHeartbeat, 1, HeartbeatBody{});
  std::mt19937_64 random(1);
  const uint64_t refusals = job_.service().refusals();
  for (size_t bytes = 0; bytes < good.size(); ++bytes) job_.raw(peer_, good.substr(0, bytes));
  EXPECT_EQ(job_.service().refusals(), refusals + good.size());
  EXPECT_EQ(job_.heard(peer_).refused, StatusCode::kInvalidArgument);
  for (int i = 0; i < 2000; ++i) {
    std::string frame = good;
    for (int flips = 0; flips < 3; ++flips)
      frame[random() % frame.size()] ^= char(1 << (random() % 8));
    if (i % 3 == 0) frame.append(random() % 100, 'x');
    job_.raw(peer_, frame);
  }
  const uint32_t heard = job_.heard("stranger").frames;
  job_.raw("stranger", good);
  job_.raw(std::string("\0\x80garbage", 9), "garbage");
  EXPECT_EQ(job_.heard("stranger").frames, heard);
  EXPECT_EQ(job_.service().strangers_dropped(), 2u);
}

TEST_F(WrongRequests, StatusIsAnsweredToAnybodyOfOurs) {
  job_.raw("tool.1", encode_empty({}, MessageKind::kStatusQuery, 9));
  ASSERT_EQ(job_.heard("tool.1").kind, MessageKind::kStatusReply);
  const Decoded reply = decode(job_.heard("tool.1").frame).value();
  EXPECT_EQ(reply.header.sequence, 9u);
  const auto body = reply.as<StatusReplyBody>();
  EXPECT_EQ(body.step_committed, 1);
  EXPECT_EQ(body.rank_count, 2u);
  EXPECT_EQ(body.commits, 28u);
  const auto ranks = reply.entries<RankStatus>();
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[1].incarnation, 1u);
}

TEST(PeerName, ParsesExactlyWhatTheProtocolNames) {
  EXPECT_EQ(parse_peer_name("launcher").kind, PeerName::Kind::kLauncher);
  EXPECT_EQ(parse_peer_name("tool.12").kind, PeerName::Kind::kTool);
  const PeerName actor = parse_peer_name("r12.i345");
  EXPECT_EQ(actor.kind, PeerName::Kind::kActor);
  EXPECT_EQ(actor.rank, Rank{12});
  EXPECT_EQ(actor.incarnation, Incarnation{345});
  EXPECT_EQ(parse_peer_name(actor_peer_name(Rank{3}, Incarnation{4})).rank, Rank{3});
  EXPECT_EQ(parse_peer_name("launcher@0f").kind, PeerName::Kind::kLauncher);
  EXPECT_EQ(parse_peer_name("tool.12@0f").kind, PeerName::Kind::kTool);
  EXPECT_EQ(parse_peer_name("r12.i345@0f@1").incarnation, Incarnation{345});
  for (const char* bad :
       {"", "r", "r1", "r1.i", "r.i1", "r1.i2x", "rx.i1", "r-1.i1", "tool.", "launcher2",
        "@launcher", "r1.i@2", "r4294967296.i1", "r1.i-1", " r1.i1"}) {
    EXPECT_EQ(parse_peer_name(bad).kind, PeerName::Kind::kStranger) << bad;
  }
}

}  // namespace
}  // namespace optlease
