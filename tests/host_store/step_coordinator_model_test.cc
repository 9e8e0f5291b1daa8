// Ranks and store die at random moments around a coordinator; what it orders is held against what
// the segments, which outlive everybody, say. And it must get on as soon as everybody is attached.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <utility>

#include "actors/host_store/step_coordinator.h"
#include "tests/support/test_seed.h"

namespace optlease {
namespace {

using Kind = StoreAction::Kind;

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    ranks_.resize(1 + pick(4));
    for (Actor& actor : ranks_) actor.chunks = pick(5);
    restart_store();
  }

  void random_event() {
    now_ += pick(4);
    const Rank rank{pick(static_cast<uint32_t>(ranks_.size()))};
    switch (pick(16)) {
      case 0:
        return kill(rank);
      case 1:
        return pick(6) == 0 ? restart_store() : reap(rank);
      case 2:
        return say_hello(rank);
      case 3:
        return hold_or_release();
      default:
        return work(rank);
    }
  }
  // Nobody dies any more.
  void calm_event(uint32_t i) {
    ++now_;
    const Rank rank{i % static_cast<uint32_t>(ranks_.size())};
    reap(rank);
    if (!ranks_[rank.value].attached) say_hello(rank);
    if (hold_) release();
    work(rank);
  }
  Step committed() const { return committed_; }
  uint32_t early() const { return early_; }  // steps that rank 0 had published when committed
  size_t rank_count() const { return ranks_.size(); }

 private:
  struct Actor {
    // In the segment.
    uint32_t chunks = 0;
    uint32_t done = 0;
    bool has_record = false;
    // The process.
    bool attached = false;
    bool older_reaped = true;
    Step published = kNoStep;
    Step computed = kNoStep;  // its own parameters of the open step; the store does not know
    Step ready = kNoStep;
    std::optional<StoreAction> reduce, gather;
  };

  uint32_t pick(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }
  Step next() const { return committed_ + 1; }
  // A function of the step, as a record is of its gradients.
  bool skips(Step step) const { return step > 0 && step % 5 == 3; }
  bool all_recorded() const {
    for (const Actor& actor : ranks_) {
      if (!actor.has_record) return false;
    }
    return true;
  }

  void restart_store() {
    CoordinatorFacts facts{
        .epoch = StoreEpoch{++epoch_}, .step_committed = committed_, .ranks = {}};
    for (Actor& actor : ranks_) {
      facts.ranks.push_back(
          {actor.chunks, actor.done, actor.has_record, actor.has_record && skips(next())});
      actor.attached = false;
      actor.ready = kNoStep;
      actor.reduce.reset();
      actor.gather.reset();
    }
    store_.emplace(facts);
    hold_.reset();
    granted_ = false;
    group_.reset();
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      store_->on_older_reaped(Rank{r}, ranks_[r].older_reaped);
    }
    advance();
  }
  void kill(Rank rank) {
    Actor& actor = ranks_[rank.value];
    actor.attached = false;
    actor.older_reaped = false;
    actor.published = actor.ready = actor.computed = kNoStep;
    store_->on_lost(rank);
    store_->on_older_reaped(rank, false);
    advance();
  }
  void reap(Rank rank) {
    ranks_[rank.value].older_reaped = true;
    store_->on_older_reaped(rank, true);
    advance();
  }
  void say_hello(Rank rank) {
    Actor& actor = ranks_[rank.value];
    store_->on_attached(rank, actor.published, actor.attached);
    actor.attached = true;
    actor.reduce.reset();
    actor.gather.reset();
    advance();
  }
  void hold_or_release() {
    if (hold_) return release();
    hold_ = store_->hold(5 + pick(40), now_);
    advance();
  }
  void release() {
    ASSERT_TRUE(store_->release_hold(*hold_));
    hold_.reset();
    granted_ = false;
    advance();
  }

  bool is_open_for(Step step) const { return committed_ >= 0 && step == next() && all_recorded(); }

  // A gather is over once every rank has computed what it sends.
  bool waits_for_windows(const StoreAction& gather) const {
    if (!is_open_for(gather.step)) return false;
    for (const Actor& actor : ranks_) {
      if (actor.computed != gather.step) return true;
    }
    return false;
  }
  // Something that an attached actor would do now.
  void work(Rank rank) {
    Actor& actor = ranks_[rank.value];
    if (!actor.attached) return;
    if (is_open_for(next()) && !skips(next()) && actor.computed != next() && pick(3) == 0) {
      actor.computed = next();
    } else if (store_->lease_step() == next() && actor.done < actor.chunks) {
      ++actor.done;
      store_->on_chunks(rank, next(), 1);
    } else if (actor.gather && !waits_for_windows(*actor.gather)) {
      // Its step may be committed by now, or still be open.
      if (actor.gather->step == committed_ || is_open_for(actor.gather->step)) {
        actor.published = actor.gather->step;
        EXPECT_TRUE(store_->on_published(rank, actor.published));
      }
      actor.gather.reset();
    } else if (actor.reduce) {
      record(rank);
    } else if (store_->check_ready(next()).is_ok()) {
      actor.ready = next();
      store_->on_ready(rank, next());
    }
    advance();
  }

  // The record of a group that is over comes late and is refused.
  void record(Rank rank) {
    Actor& actor = ranks_[rank.value];
    const StoreAction reduce = *std::exchange(actor.reduce, std::nullopt);
    const bool open = all_recorded();
    const bool expected = reduce.step == next() && (open || reduce.group_epoch == group_);
    EXPECT_EQ(store_->may_record(reduce.step, reduce.group_epoch).is_ok(), expected);
    if (!expected || open) return;
    actor.has_record = true;
    store_->on_record(rank, next(), skips(next()));
  }

  void advance() {
    for (const StoreAction& action : store_->advance(now_)) {
      ASSERT_NO_FATAL_FAILURE(check(action)) << name_of(action.kind);
    }
  }

  void check(const StoreAction& action) {
    switch (action.kind) {
      case Kind::kGroupBroken:
        ASSERT_EQ(action.group_epoch, group_);
        group_.reset();
        return;
      case Kind::kVoidRecords:
        ASSERT_EQ(action.step, next());
        ASSERT_FALSE(group_ || all_recorded());
        for (Actor& actor : ranks_) actor.has_record = false;
        return;
      case Kind::kGroupFormed:
        for (const Actor& actor : ranks_) ASSERT_TRUE(actor.attached);
        ASSERT_GT(action.group_epoch, last_group_) << "never repeated";
        group_ = last_group_ = action.group_epoch;
        return;
      case Kind::kApplySkip:
        ASSERT_TRUE(all_recorded() && skips(next()));
        for (Actor& actor : ranks_) actor.done = actor.chunks;
        return;
      case Kind::kStepOpen:
        ASSERT_EQ(action.step, next());
        ASSERT_TRUE(all_recorded()) << "a step opened before every record is durable";
        ASSERT_FALSE(granted_) << "a step opened under a granted hold";
        return;
      case Kind::kCommitStep:
        return check_commit(action);
      case Kind::kGoGather:
        return check_gather(action);
      case Kind::kGoReduce:
        return check_reduce(action);
      case Kind::kHoldGranted:
        ASSERT_EQ(action.hold_id, hold_);
        ASSERT_EQ(action.step, committed_);
        ASSERT_FALSE(all_recorded());
        granted_ = true;
        return;
      case Kind::kHoldEnded:
        ASSERT_EQ(action.hold_id, hold_);
        hold_.reset();
        granted_ = false;
        return;
      case Kind::kStop:
        FAIL() << "nobody asked for it";
    }
  }
  void check_commit(const StoreAction& action) {
    ASSERT_EQ(action.step, next());
    ASSERT_TRUE(action.step == 0 || all_recorded());
    early_ += ranks_[0].published == action.step ? 1 : 0;
    for (const Actor& actor : ranks_) {
      ASSERT_EQ(actor.done, actor.chunks) << "committed before every chunk";
      ASSERT_TRUE(actor.older_reaped) << "committed before every older incarnation is reaped";
    }
    ++committed_;
    for (Actor& actor : ranks_) {
      actor.done = 0;
      actor.has_record = false;
      actor.reduce.reset();
    }
  }
  void check_gather(const StoreAction& action) {
    ASSERT_EQ(action.group_epoch, group_);
    ASSERT_EQ(action.step, is_open_for(next()) ? next() : committed_);
    ASSERT_FALSE(action.step == next() && skips(next())) << "nobody computes anything";
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ASSERT_EQ(action.needs[r], ranks_[r].published == action.step ? 0 : 1);
      ranks_[r].gather = action;
    }
  }
  void check_reduce(const StoreAction& action) {
    ASSERT_EQ(action.group_epoch, group_);
    ASSERT_EQ(action.step, next());
    ASSERT_FALSE(hold_) << "GoReduce under a hold";
    ASSERT_FALSE(all_recorded());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ASSERT_FALSE(ranks_[r].has_record) << "a record of another group is left";
      ASSERT_TRUE(ranks_[r].attached);
      ASSERT_TRUE(ranks_[r].older_reaped) << "reduced before every older incarnation is reaped";
      ASSERT_TRUE(ranks_[r].ready == next());
      ASSERT_EQ(ranks_[r].published, committed_) << "a gather is still needed";
      ASSERT_EQ(action.needs[r], 1);
      ranks_[r].reduce = action;
    }
  }

  std::mt19937_64 random_;
  std::vector<Actor> ranks_;
  std::optional<StepCoordinator> store_;
  std::optional<uint64_t> hold_, group_;
  bool granted_ = false;
  uint32_t early_ = 0;
  uint64_t now_ = 0, epoch_ = 0, last_group_ = 0;
  Step committed_ = kNoStep;
};

TEST(StepCoordinatorModel, KeepsItsOrderUnderRandomDeathsAndGetsOnOnceAllAreAttached) {
  const uint64_t base = test_seed();
  Step committed = 0;
  uint32_t early = 0;
  for (uint64_t run = 0; run < 300; ++run) {
    Simulation simulation(base + run);
    for (int i = 0; i < 1000; ++i) {
      simulation.random_event();
      if (testing::Test::HasFailure()) FAIL() << "run " << run << ", event " << i;
    }
    // One step takes each rank a hello, chunks, a gather, ready and a record.
    const Step before = simulation.committed();
    const uint32_t enough = static_cast<uint32_t>(simulation.rank_count()) * 40;
    for (uint32_t i = 0; i < enough; ++i) simulation.calm_event(i);
    if (testing::Test::HasFailure()) FAIL() << "run " << run;
    ASSERT_GT(simulation.committed(), before + 1) << "no progress in run " << run;
    committed += before + 1;
    early += simulation.early();
  }
  EXPECT_GT(early, 100u) << "steps must be published before their commit, too";
  EXPECT_GT(committed, 300) << "the random part must commit steps too";
}

}  // namespace
}  // namespace optlease
