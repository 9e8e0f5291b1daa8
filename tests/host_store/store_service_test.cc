// The store service with fake actors, in process: whole steps, deaths, holds, and every kind of
// wrong request.
#include <gtest/gtest.h>

#include <random>

#include "tests/host_store/service_job.h"
#include "tests/support/test_seed.h"

namespace optlease {
namespace {

TEST(StoreService, CommitsStepsOfTwoRanksExactly) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(3));
  EXPECT_EQ(job.check(3), "");
  EXPECT_EQ(job.service().store().view().header().steps_skipped.load(), 0u);
  EXPECT_GE(job.actor(0).received(MessageKind::kStepCommitted), 4u);
}

TEST(StoreService, ASkippedStepMovesVersionsAndNothingElse) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(3));
  std::vector<uint32_t> slots;
  for (uint32_t c = 0; c < 7; ++c) {
    slots.push_back(job.service().store().view().entries(Rank{0}, ChunkIndex{c})[0].slot);
  }
  ASSERT_TRUE(job.run_until_committed(4));
  ASSERT_TRUE(fake_step_is_skipped(4));
  EXPECT_EQ(job.check(4), "");
  EXPECT_EQ(job.service().store().view().header().steps_skipped.load(), 1u);
  for (uint32_t c = 0; c < 7; ++c) {
    EXPECT_EQ(job.service().store().view().entries(Rank{0}, ChunkIndex{c})[0].slot, slots[c]);
  }
  ASSERT_TRUE(job.run_until_committed(9));
  EXPECT_EQ(job.service().store().view().header().steps_skipped.load(), 2u);
}

// Fault cases 10 and 11, in the store's part.
TEST(StoreService, SurvivesRandomDeathsOfActorsAndStoreBitExactly) {
  std::mt19937_64 random(test_seed());
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  ServiceJob job;
  uint64_t lives[2] = {1, 1}, reaped[2] = {0, 0};
  uint32_t deaths = 0;
  for (int i = 0; i < 3000; ++i) {
    if (pick(20) == 0) {
      job.restart_store();
      // The launcher tells a restarted store of the dead, too.
      for (uint32_t r = 0; r < 2; ++r) {
        for (uint64_t life = reaped[r] + 1; life < lives[r]; ++life) {
          job.launcher(MessageKind::kIncarnationLost, r, life);
        }
        for (uint64_t life = 1; life <= reaped[r]; ++life) job.reap(r, life);
      }
      ++deaths;
    } else if (pick(15) == 0) {
      const uint32_t rank = pick(2);
      job.restart_actor(rank);
      ++lives[rank];
      ++deaths;
    } else if (const uint32_t rank = pick(2); reaped[rank] + 1 < lives[rank]) {
      job.reap(rank, ++reaped[rank]);
    }
    // Some of what an actor wanted to say may die with the store.
    job.tick(1000);
    ASSERT_EQ(job.service().check_invariants(), "") << "turn " << i;
  }
  for (uint32_t r = 0; r < 2; ++r) {
    while (reaped[r] + 1 < lives[r]) job.reap(r, ++reaped[r]);
  }
  const Step last = job.service().coordinator().step_committed() + 3;
  ASSERT_TRUE(job.run_until_committed(last));
  EXPECT_EQ(job.check(last), "");
  EXPECT_GT(deaths, 100u);
  EXPECT_GT(last, 20);
  for (uint32_t r = 0; r < 2; ++r) {
    EXPECT_EQ(job.service().leases().quarantine(Rank{r}).slots, 0u);
    EXPECT_EQ(job.service().leases().free_slots(Rank{r}),
              job.service().store().view().rank(Rank{r}).slot_count - 7)
        << "slots are conserved";
  }
}

TEST(StoreService, RefusesADelayedCommitOfAVoidLeaseAndKeepsTheOldVersion) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.actor(0).set_commits(false);
  const size_t before = job.actor(0).grants().size();
  for (int i = 0; i < 20 && job.actor(0).grants().size() == before; ++i) job.tick(2);
  ASSERT_GT(job.actor(0).grants().size(), before);
  const auto [grant, entries] = job.actor(0).grants()[before];
  job.actor(0).say_hello();  // it drained; its lease is over
  job.deliver();
  job.actor(0).send_commit(grant, entries);
  job.deliver();
  EXPECT_EQ(job.actor(0).last_refusal(), StatusCode::kStaleLease);
  EXPECT_EQ(job.service().store().view().version(Rank{0}, ChunkIndex{grant.first_chunk}), 1);
  job.actor(0).set_commits(true);
  ASSERT_TRUE(job.run_until_committed(2));
  EXPECT_EQ(job.check(2), "");
  job.actor(0).send_commit(grant, entries);  // all of it is at step 2: acknowledged, not done again
  const uint32_t replies = job.actor(0).received(MessageKind::kCommitReply);
  job.deliver();
  EXPECT_EQ(job.actor(0).received(MessageKind::kCommitReply), replies + 1);
  EXPECT_EQ(job.check(2), "");
}

TEST(StoreService, RefusesTheCommitOfALesseeThatWasStoppedPastItsLease) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.actor(0).set_commits(false);
  const size_t before = job.actor(0).grants().size();
  for (int i = 0; i < 20 && job.actor(0).grants().size() == before; ++i) job.tick(2);
  ASSERT_GT(job.actor(0).grants().size(), before);
  const auto [grant, entries] = job.actor(0).grants()[before];
  job.now_ms += 200;  // SIGSTOP ... SIGCONT
  job.actor(0).send_commit(grant, entries);
  job.deliver();
  EXPECT_EQ(job.actor(0).last_refusal(), StatusCode::kStaleLease);
  EXPECT_GT(job.service().leases().quarantine(Rank{0}).slots, 0u);
  EXPECT_EQ(job.service().leases().quarantine(Rank{1}).slots, 0u);
  job.actor(0).set_commits(true);
  job.actor(0).say_hello();
  ASSERT_TRUE(job.run_until_committed(2));
  EXPECT_EQ(job.check(2), "");
  EXPECT_EQ(job.service().leases().quarantine(Rank{0}).slots, 0u);
}

TEST(StoreService, CommitsNoStepWhileAZombieMayStillWrite) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.restart_actor(0);
  for (int i = 0; i < 200; ++i) job.tick(2);
  EXPECT_EQ(job.service().coordinator().step_committed(), 1);
  job.reap(0, 1);
  ASSERT_TRUE(job.run_until_committed(2));
  EXPECT_EQ(job.check(2), "");
}

TEST(StoreService, AHoldBlocksNewStepsUntilItEnds) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.tool("tool.7", MessageKind::kHoldRequest, HoldBody{0, 0, 500});
  ASSERT_EQ(job.heard("tool.7").kind, MessageKind::kHoldReply);
  const auto held = decode(job.heard("tool.7").frame).value().as<HoldBody>();
  EXPECT_EQ(held.step, 1);
  for (int i = 0; i < 40; ++i) job.tick(2);
  EXPECT_EQ(job.service().coordinator().step_open(), kNoStep);
  EXPECT_EQ(job.service().coordinator().step_committed(), 1);
  job.tool("tool.7", MessageKind::kHoldRequest, HoldBody{0, held.hold_id, 500});
  EXPECT_EQ(job.heard("tool.7").frames, 2u) << "a renewal is answered";
  for (int i = 0; i < 40; ++i) job.tick(2);
  EXPECT_EQ(job.service().coordinator().step_committed(), 1);
  job.tool("tool.7", MessageKind::kHoldRelease, HoldBody{0, held.hold_id, 0});
  ASSERT_TRUE(job.run_until_committed(2));
  job.tool("tool.7", MessageKind::kHoldRequest, HoldBody{0, held.hold_id, 500});
  EXPECT_EQ(job.heard("tool.7").refused, StatusCode::kNotFound);
  job.tool("tool.7", MessageKind::kHoldRequest, HoldBody{0, 0, 100});
  ASSERT_TRUE(job.run_until_committed(3)) << "a hold that nobody renews ends by itself";
}

TEST(StoreService, AHoldInTheMiddleOfAStepIsAnsweredAtItsEnd) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.actor(1).set_commits(false);
  for (int i = 0; i < 10; ++i) job.tick(3);
  ASSERT_EQ(job.service().coordinator().step_open(), 2);
  const std::string ask = encode(Speaker{}, MessageKind::kHoldRequest, 77, HoldBody{0, 0, 5000});
  job.raw("tool.8", ask);
  job.raw("tool.8", ask);  // it heard nothing and repeats
  EXPECT_EQ(job.heard("tool.8").frames, 0u);
  job.actor(1).set_commits(true);
  job.actor(1).say_hello();
  for (int i = 0; i < 20; ++i) job.tick(3);
  EXPECT_EQ(job.service().coordinator().step_committed(), 2);
  EXPECT_EQ(job.heard("tool.8").frames, 1u) << "one hold, one answer";
  EXPECT_EQ(decode(job.heard("tool.8").frame).value().header.sequence, 77u);
}

TEST(StoreService, StopsAtAStepBoundaryAndTellsTheActors) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.tool("launcher", MessageKind::kStopStore, HoldBody{0, 0, 60000});
  EXPECT_TRUE(job.service().finished());
  EXPECT_TRUE(job.actor(0).stopped());
  EXPECT_TRUE(job.actor(1).stopped());
}

TEST(StoreService, LeasesACorruptChunkNeverAgain) {
  ServiceJob job;
  ASSERT_TRUE(job.run_until_committed(1));
  job.actor(0).send(MessageKind::kCorruptChunk, CorruptChunkBody{3, 1, 5, 6});
  for (int i = 0; i < 60; ++i) job.tick(2);
  EXPECT_EQ(job.actor(0).last_refusal(), StatusCode::kCorrupt);
  EXPECT_EQ(job.service().coordinator().step_committed(), 1);
  EXPECT_EQ(job.service().store().view().version(Rank{0}, ChunkIndex{3}), 1);
  EXPECT_EQ(job.service().store().view().version(Rank{0}, ChunkIndex{6}), 2) << "others go on";
}

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
  StatusCode say(MessageKind kind, const Body& body, Speaker speaker, const std::string& peer,
                 std::string_view payload = {}) {
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
  EXPECT_EQ(say(K::kLeaseRequest, LeaseRequestBody{2, 0, 1}), StatusCode::kBusy) << "not open yet";
  EXPECT_EQ(say(K::kStepReady, StepReadyBody{1, 0, 0}), StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kStepReady, StepReadyBody{3, 0, 0}), StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kStepRecord, StepRecordBody{0, fake_record(3), fake_sums(Rank{0}, 3)}),
            StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kStepRecord, StepRecordBody{7, fake_record(2), fake_sums(Rank{0}, 2)}),
            StatusCode::kStaleStep);
  EXPECT_EQ(say(K::kPublished, PublishedBody{0, 0}), StatusCode::kStaleStep);
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
  for (const char* bad : {"", "r", "r1", "r1.i", "r.i1", "r1.i2x", "rx.i1", "r-1.i1", "tool.",
                          "launcher2", "r4294967296.i1", "r1.i-1", " r1.i1"}) {
    EXPECT_EQ(parse_peer_name(bad).kind, PeerName::Kind::kStranger) << bad;
  }
}

}  // namespace
}  // namespace optlease
