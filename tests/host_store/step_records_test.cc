// What becomes of the ranks' step records: equal at every rank, each with the rank's own digest of
// its summed gradients beside it, and void where the group ends before every rank has brought one.
#include <gtest/gtest.h>

#include "tests/host_store/service_job.h"

namespace optlease {
namespace {

StepRecordBody body_of(uint64_t group, const StepRecord& record, uint32_t rank = 0) {
  return {group, record, fake_sums(Rank{rank}, record.step)};
}

// Both ranks are ready for step 1 and have their order; nothing they have to say is delivered yet.
void order_reduction(ServiceJob& job) {
  ASSERT_TRUE(job.run_until_committed(0));
  for (uint32_t r = 0; r < 2; ++r) {
    job.actor(r).send(MessageKind::kStepReady, StepReadyBody{1, 0, 1});
    for (const std::string& frame : job.actor(r).take_outgoing())
      job.raw(job.actor(r).peer(), frame);
  }
  ASSERT_EQ(job.actor(1).received(MessageKind::kGoReduce), 1u);
  for (uint32_t r = 0; r < 2; ++r) job.actor(r).take_outgoing();
}

TEST(StoreService, KeepsEachRanksOwnDigestOfItsSumsBesideTheRecordThatAllShare) {
  ServiceJob job;
  ASSERT_NO_FATAL_FAILURE(order_reduction(job));
  for (uint32_t r = 0; r < 2; ++r) {
    job.actor(r).send(MessageKind::kStepRecord, body_of(job.actor(r).group(), fake_record(1), r));
  }
  job.deliver();
  EXPECT_EQ(job.service().coordinator().step_open(), 1);
  job.restart_store();
  EXPECT_EQ(job.service().coordinator().step_open(), 1);
  for (uint32_t r = 0; r < 2; ++r) {
    const auto sums = job.service().store().view().sums_digest(Rank{r}, 1);
    ASSERT_TRUE(sums) << "rank " << r;
    EXPECT_EQ(sums->digest, fake_sums(Rank{r}, 1).digest) << "rank " << r;
  }
}

TEST(StoreService, RefusesARecordThatDiffersFromAnotherRanks) {
  ServiceJob job;
  ASSERT_NO_FATAL_FAILURE(order_reduction(job));
  StepRecord record = fake_record(1);
  job.actor(0).send(MessageKind::kStepRecord, body_of(job.actor(0).group(), record));
  record.grad_norm = 2;
  record.checksum = checksum_of(record);
  job.actor(1).send(MessageKind::kStepRecord, body_of(job.actor(0).group(), record));
  job.deliver();
  EXPECT_EQ(job.actor(1).last_refusal(), StatusCode::kCorrupt);
  EXPECT_TRUE(job.service().store().view().step_record(Rank{0}, 1));
  EXPECT_FALSE(job.service().store().view().step_record(Rank{1}, 1));
  EXPECT_EQ(job.service().coordinator().step_open(), kNoStep);
}

TEST(StoreService, LeavesNoRecordOfAGroupThatEndedOrOfAStoreThatDied) {
  for (const bool store_dies : {false, true}) {
    ServiceJob job;
    ASSERT_NO_FATAL_FAILURE(order_reduction(job));
    const uint64_t group = job.actor(0).group();
    job.actor(0).send(MessageKind::kStepRecord, body_of(group, fake_record(1)));
    job.deliver();
    ASSERT_TRUE(job.service().store().view().step_record(Rank{0}, 1));
    if (store_dies) {
      job.restart_store();
    } else {
      job.restart_actor(1);
      job.reap(1, 1);
    }
    EXPECT_FALSE(job.service().store().view().step_record(Rank{0}, 1));
    job.actor(0).send(MessageKind::kStepRecord, body_of(group, fake_record(1)));
    job.deliver();
    EXPECT_FALSE(job.service().store().view().step_record(Rank{0}, 1)) << "it came late";
    ASSERT_TRUE(job.run_until_committed(1));
    EXPECT_EQ(job.check(1), "");
  }
}

}  // namespace
}  // namespace optlease
