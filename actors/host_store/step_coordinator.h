// Which step is at work and what all ranks may do now: groups, reduction, step open, commit,
// gather, holds and the end (docs/PROTOCOL.md, "An actor attaches", "One step"). Used by
// StoreService, which does what the returned actions say. Pure: facts and `now_ms` come in, actions
// go out; it writes no record or commit word, knows no peer, and grants no lease. Not thread-safe.
//
// Call the on_ functions with facts in any order, repeated or not, then advance(): it returns every
// action that the facts allow, in the order in which they must be done and sent.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shm/contract/ids.h"
#include "shm/contract/status.h"

namespace optlease {

// What one rank's segment says when the coordinator starts.
struct RankFacts {
  uint32_t chunk_count = 0;
  uint32_t chunks_done = 0;  // at version step_committed + 1
  bool has_record = false;   // of step step_committed + 1
  bool skipped = false;      // what that record says
};

struct CoordinatorFacts {
  StoreEpoch epoch;
  Step step_committed = kNoStep;
  std::vector<RankFacts> ranks;
};

struct StoreAction {
  enum class Kind {
    kGroupBroken,  // group_epoch; to every attached rank
    kVoidRecords,  // step: no rank has a record of it any more
    kGroupFormed,  // group_epoch; to every rank
    kApplySkip,    // step: move every chunk to it unchanged
    kStepOpen,     // step; to every attached rank
    kCommitStep,   // step: write the word, then tell every attached rank
    kGoGather,     // group_epoch, step, needs; to every rank
    kGoReduce,     // group_epoch, step, needs; to every rank
    kHoldGranted,  // hold_id, step
    kHoldEnded,    // hold_id: nobody renewed it in its time
    kStop,         // step: tell every attached rank to stop, then end
  };
  Kind kind;
  Step step = kNoStep;
  uint64_t group_epoch = 0;
  uint64_t hold_id = 0;
  std::vector<uint8_t> needs = {};  // one byte a rank
};
const char* name_of(StoreAction::Kind kind);

class StepCoordinator {
 public:
  // REQUIRES: at least one rank.
  explicit StepCoordinator(const CoordinatorFacts& facts);

  // A new incarnation, or the attached one once more. `published`: the step whose gathered
  // parameters it holds. Either way the group is formed anew. `same_incarnation`: what it was ready
  // for stays.
  void on_attached(Rank rank, Step published, bool same_incarnation);
  void on_lost(Rank rank);
  // StaleStep unless it is the step at work.
  Status check_ready(Step step) const;
  // Its gradients (and blob) for the step at work are there. REQUIRES: check_ready(step).
  void on_ready(Rank rank, Step step);
  // Whether a record of the step at work, computed in that group, may be made durable now.
  // StaleStep for another step, and for another group than the one that reduces it: a step
  // that is not open when its group ends is reduced again by all, for the gradients of a restarted
  // trainer need not be the same bits, and no two shards may stem from different ones.
  Status may_record(Step step, uint64_t group_epoch) const;
  // It is durable. REQUIRES: may_record, and the step is not open.
  void on_record(Rank rank, Step step, bool skipped);
  // `count` more chunks of the rank are at version `step`. REQUIRES: lease_step() == step.
  void on_chunks(Rank rank, Step step, uint32_t count);
  // It has all of the step's parameters. StaleStep: neither the committed step nor the open one.
  Status on_published(Rank rank, Step step);
  // LeaseTable::older_are_reaped(rank): neither is a step committed nor a reduction ordered before.
  void on_older_reaped(Rank rank, bool reaped);

  // A new hold; granted by an action, at once where nothing is at work.
  uint64_t hold(uint64_t ttl_ms, uint64_t now_ms);
  // NotFound: it ended, or an earlier life of the store gave it.
  Status renew_hold(uint64_t hold_id, uint64_t ttl_ms, uint64_t now_ms);
  Status release_hold(uint64_t hold_id);
  bool hold_is_granted(uint64_t hold_id) const;
  // Ends at the next step boundary (its parameters gathered, where there is a group), after
  // `ttl_ms` at the latest; the first call counts. Where nobody is attached and no step is open:
  // now.
  void stop(uint64_t ttl_ms, uint64_t now_ms);

  std::vector<StoreAction> advance(uint64_t now_ms);
  // When advance() has something to do although nothing was told; UINT64_MAX: never.
  uint64_t next_deadline_ms() const;

  Step step_committed() const { return committed_; }
  // The step whose records are all durable, or kNoStep.
  Step step_open() const { return open_ ? committed_ + 1 : kNoStep; }
  // The version that may be committed now: the open step, 0 while initialising, else kNoStep. A
  // skipped step has nothing to write.
  Step lease_step() const;
  // Whether windows may be leased for writing that version: lease_step(), and before it is open the
  // step at work, for reading ahead (optlease_prepare). Nothing of it can be committed until then.
  bool may_lease(Step step) const;
  uint64_t group_epoch() const { return group_formed_ ? group_epoch_ : 0; }
  uint32_t chunks_done(Rank rank) const;
  bool stopping() const { return stopping_; }

 private:
  struct RankState {
    uint32_t chunk_count = 0;
    uint32_t chunks_done = 0;  // at committed_ + 1
    bool attached = false;
    bool has_record = false;  // of committed_ + 1
    bool older_reaped = true;
    Step ready = kNoStep;
    Step published = kNoStep;  // gathered: at most the open step
  };
  struct Hold {
    uint64_t ends_ms = 0;
    bool granted = false;
  };

  RankState& at(Rank rank);
  template <class Predicate>
  bool every(Predicate holds) const {
    for (const RankState& rank : ranks_) {
      if (!holds(rank)) return false;
    }
    return true;
  }
  bool at_work() const;  // a step is open or being reduced
  bool all_recorded() const;
  bool all_published(Step step) const;
  Step step_known() const { return open_ ? committed_ + 1 : committed_; }
  bool may_end() const;
  void void_records(std::vector<StoreAction>* out);
  void break_group(std::vector<StoreAction>* out);
  void form_group(std::vector<StoreAction>* out);
  void open_step(std::vector<StoreAction>* out);
  void commit_step(std::vector<StoreAction>* out);
  void order_gather(std::vector<StoreAction>* out);
  void order_reduce(std::vector<StoreAction>* out);
  void grant_holds(std::vector<StoreAction>* out);
  void end_at_boundary(uint64_t now_ms, std::vector<StoreAction>* out);

  // Constant after construction.
  StoreEpoch epoch_;
  // The step at work is committed_ + 1.
  Step committed_ = kNoStep;
  bool open_ = false;
  bool skipped_ = false;  // what its records say
  bool skip_applied_ = false;
  std::vector<RankState> ranks_;
  // The group.
  bool group_formed_ = false;
  bool group_stale_ = false;  // somebody left it or said hello again: break it
  uint64_t group_epoch_ = 0;  // the newest; never repeated
  uint32_t groups_ = 0;
  bool reduce_ordered_ = false;    // in this group, for committed_ + 1
  Step gather_ordered_ = kNoStep;  // in this group
  // Holds and the end.
  std::map<uint64_t, Hold> holds_;
  uint64_t next_hold_ = 1;
  bool stopping_ = false;
  bool stopped_ = false;
  uint64_t stop_at_ms_ = UINT64_MAX;
};

}  // namespace optlease
