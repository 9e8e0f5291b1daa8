// The limits of holds: how many there may be, and for how long one may stop the job. A tool may die
// or lie; neither may stop a job for good, nor fill the store's memory.
#include <gtest/gtest.h>

#include "tests/host_store/service_job.h"

namespace optlease {
namespace {

constexpr uint32_t kHoldsMax = 64;
constexpr uint64_t kHoldMs = 60'000;

class Holds : public testing::Test {
 protected:
  explicit Holds(const StateSplit& split = {}) : job_(split) {}
  void SetUp() override { ASSERT_TRUE(job_.run_until_committed(1)); }

  static std::string tool(uint32_t number) { return format("tool.%u", number); }
  void ask(uint32_t number, uint64_t ttl_ms, uint64_t hold_id = 0) {
    job_.tool(tool(number), MessageKind::kHoldRequest, HoldBody{0, hold_id, ttl_ms});
  }
  // The hold that the tool was given by its last answer; no hold where that was none.
  HoldBody held(uint32_t number) {
    const auto& heard = job_.heard(tool(number));
    if (heard.frames == 0 || heard.kind != MessageKind::kHoldReply) return {kNoStep, 0, 0};
    return decode(heard.frame).value().as<HoldBody>();
  }
  StatusCode refusal(uint32_t number) { return job_.heard(tool(number)).refused; }
  void fill() {
    for (uint32_t t = 1; t <= kHoldsMax; ++t) {
      ask(t, kHoldMs);
      ASSERT_NE(held(t).hold_id, 0u) << "hold " << t;
    }
  }
  // Lets `ms` pass and says whether the job went on to `step` by then.
  bool goes_on_to(Step step, uint64_t ms) {
    job_.now_ms += ms;
    for (int i = 0; i < 30; ++i) {
      job_.now_ms -= 10;  // what tick adds: these turns take no time
      job_.tick(step);
    }
    return job_.service().coordinator().step_committed() >= step;
  }

  ServiceJob job_;
};

// Of a state of which a part stays on devices.
class ResidentHolds : public Holds {
 protected:
  ResidentHolds() : Holds(StateSplit{MainForm::kF32, 400'000}) {}
  // A tool repeats its request with its number until it is answered.
  void repeat(uint32_t number) {
    job_.raw(tool(number), encode(Speaker{}, MessageKind::kHoldRequest, 1'000'000 + number,
                                  HoldBody{0, 0, kHoldMs}));
  }
  uint32_t asked(uint32_t rank) { return job_.actor(rank).received(MessageKind::kSaveResident); }
  void save(uint32_t rank, Step step) {
    job_.actor(rank).send(MessageKind::kResidentSaved, StepBody{step});
    job_.deliver();
  }
};

TEST_F(ResidentHolds, AreGrantedOnceEveryRankHasSaved) {
  repeat(1);
  EXPECT_EQ(held(1).hold_id, 0u);
  EXPECT_EQ(asked(0), 1u);
  EXPECT_EQ(asked(1), 1u);
  save(0, 1);
  save(0, 1);  // repeated
  EXPECT_EQ(held(1).hold_id, 0u);
  save(1, 0);  // a late answer to an older question
  EXPECT_EQ(held(1).hold_id, 0u);
  save(1, 1);
  EXPECT_NE(held(1).hold_id, 0u);
  EXPECT_EQ(held(1).step, 1);
  EXPECT_EQ(job_.heard(tool(1)).frames, 1u);
  // What is saved stays so until the next step: another tool waits for nobody.
  repeat(2);
  EXPECT_NE(held(2).hold_id, 0u);
  EXPECT_EQ(asked(0), 1u);
}

TEST_F(ResidentHolds, AskAgainWithEachRepetitionAndAlsoASuccessor) {
  repeat(1);
  job_.restart_actor(1);
  save(0, 1);
  for (int i = 0; i < 100 && !job_.actor(1).attached(); ++i) job_.tick(1);
  ASSERT_TRUE(job_.actor(1).attached());
  EXPECT_EQ(asked(1), 0u);
  repeat(1);
  EXPECT_EQ(asked(1), 1u);
  EXPECT_EQ(asked(0), 2u);
  save(1, 1);
  EXPECT_NE(held(1).hold_id, 0u);
}

TEST_F(ResidentHolds, OfTheNextStepWaitForItsOwnSaving) {
  repeat(1);
  save(0, 1);
  save(1, 1);
  job_.tool(tool(1), MessageKind::kHoldRelease, HoldBody{0, held(1).hold_id, 0});
  ASSERT_TRUE(job_.run_until_committed(2));
  repeat(2);
  EXPECT_EQ(held(2).hold_id, 0u);
  save(0, 2);
  save(1, 2);
  EXPECT_EQ(held(2).step, 2);
}

TEST_F(Holds, AskNobodyToSaveWhereAllOfTheStateIsTheHosts) {
  ask(1, kHoldMs);
  EXPECT_NE(held(1).hold_id, 0u);
  EXPECT_EQ(job_.actor(0).received(MessageKind::kSaveResident), 0u);
}

TEST_F(Holds, AreAtMost64AndTheNextIsToldToAskAgain) {
  ASSERT_NO_FATAL_FAILURE(fill());
  ask(65, kHoldMs);
  EXPECT_EQ(refusal(65), StatusCode::kBusy);
  const std::string frame = job_.heard(tool(65)).frame;
  EXPECT_NE(frame.find("64 holds are in force: ask again later"), std::string::npos);
}

TEST_F(Holds, ThatAreInForceAreRenewedAlthoughNoMoreFit) {
  ASSERT_NO_FATAL_FAILURE(fill());
  const uint64_t id = held(7).hold_id;
  ask(7, kHoldMs, id);
  EXPECT_EQ(refusal(7), StatusCode::kOk);
  EXPECT_EQ(held(7).hold_id, id);
  EXPECT_EQ(job_.heard(tool(7)).frames, 2u);
}

TEST_F(Holds, OfAFullTableMakePlaceWhenOneIsReleased) {
  ASSERT_NO_FATAL_FAILURE(fill());
  job_.tool(tool(7), MessageKind::kHoldRelease, HoldBody{0, held(7).hold_id, 0});
  ask(65, kHoldMs);
  EXPECT_NE(held(65).hold_id, 0u);
  ask(66, kHoldMs);
  EXPECT_EQ(refusal(66), StatusCode::kBusy) << "one place was free, not two";
}

TEST_F(Holds, OfAFullTableMakePlaceWhenTheyEnd) {
  ASSERT_NO_FATAL_FAILURE(fill());
  job_.now_ms += kHoldMs;
  job_.settle();
  for (uint32_t t = 101; t <= 100 + kHoldsMax; ++t) {
    ask(t, kHoldMs);
    ASSERT_NE(held(t).hold_id, 0u) << "hold " << t - 100 << " after the first 64 ended";
  }
}

TEST_F(Holds, LiveForAMinuteHoweverLongWasAskedFor) {
  ask(1, 86'400'000);
  EXPECT_EQ(held(1).ttl_ms, kHoldMs) << "the tool is told for how long it really holds";
  EXPECT_FALSE(goes_on_to(2, kHoldMs - 1)) << "a hold ended before its time";
  EXPECT_TRUE(goes_on_to(2, 1)) << "a hold that nobody renewed stops the job";
}

TEST_F(Holds, LiveForAnotherMinuteAtMostAfterARenewal) {
  ask(1, kHoldMs);
  const uint64_t id = held(1).hold_id;
  ASSERT_FALSE(goes_on_to(2, 50'000));
  ask(1, 86'400'000, id);
  EXPECT_EQ(held(1).ttl_ms, kHoldMs);
  EXPECT_FALSE(goes_on_to(2, kHoldMs - 1)) << "the renewal did not count";
  EXPECT_TRUE(goes_on_to(2, 1));
}

TEST_F(Holds, OfLessThanAMinuteLiveForWhatWasAskedFor) {
  ask(1, 500);
  EXPECT_EQ(held(1).ttl_ms, 500u);
  EXPECT_FALSE(goes_on_to(2, 499));
  EXPECT_TRUE(goes_on_to(2, 1));
}

}  // namespace
}  // namespace optlease
