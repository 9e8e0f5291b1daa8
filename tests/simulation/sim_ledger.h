// What must always hold, looked at after every event of a simulated node. The ledger believes no
// core: it reads the segments as they are, keeps account of the frames that reach and leave the
// store, and is told by the world which processes are really gone and which memory they write.
//
// Who may still write a slot (a claim): the incarnation whose grant of it left the store, until
// that very lease commits the slot, is given back, the incarnation says hello (it has drained), or
// its process is reaped and the grace period is over. Neither an expiry nor a store's death ends
// one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/wire/codec.h"
#include "shm/chunk_window.h"
#include "tests/simulation/sim_node.h"

namespace optlease {

class SimLedger {
 public:
  SimLedger(SimContext& context, SimModel& model, SimNode& node);

  // The segments are there (or there again, mapped by a new life of the store).
  void state_is_there();
  bool has_state() const { return !windows_.empty(); }
  const ControlView& view() const { return windows_.front().view(); }

  // Actor processes; each has a number of its own, whatever its incarnation.
  void born(uint64_t body, Rank rank, uint64_t incarnation);
  void died(uint64_t body);
  void reaped(uint64_t body);
  // Before a process writes `slot`, or a part of it.
  void writes_slot(uint64_t body, Rank rank, uint32_t slot);
  // It has written slots in a way that nobody saw.
  void wrote_somewhere(Rank rank);

  // A life of the store serves from here on.
  void store_serves(uint64_t epoch);
  // A frame is about to be handled; `body` 0: the launcher's. Then what was done is looked at.
  void store_hears(uint64_t body, const std::string& frame);
  void store_heard();
  void store_says(uint64_t body, const std::string& frame);

  // After every event.
  void look();
  // The job is complete.
  void check_end();

  // The trainer of the rank was told that its parameters are those of the step.
  void check_params(Rank rank, Step step, const char* when);
  void check_blob(Rank rank, Step step, const std::optional<std::string>& blob);
  Step committed() const { return committed_; }
  uint64_t steps_opened() const { return steps_opened_; }
  uint64_t flips() const { return flips_; }

 private:
  struct Claim {
    uint64_t body = 0;
    uint64_t epoch = 0;
    uint64_t lease = 0;
    uint32_t chunk = 0;
    Step step = kNoStep;
    bool operator==(const Claim&) const = default;
  };
  struct Body {
    Rank rank;
    uint64_t incarnation = 0;
    bool dead = false;
    bool gone = false;
    bool over = false;    // and the grace period is
    bool worked = false;  // it was granted a lease, or ordered into a collective, by any store
  };
  struct RankLook {
    std::vector<uint64_t> words;                  // of the chunks
    std::vector<std::optional<uint32_t>> holder;  // by slot: the chunk whose version is there
    std::vector<std::optional<Claim>> claims;     // by slot
    std::vector<bool> over;  // by slot: of its claim nothing is written any more
    int64_t record_steps[2] = {kNoStep, kNoStep};  // as they lie in the banks
  };
  // What this life of the store was told about a rank.
  struct Told {
    uint64_t newest = 0;
    std::set<uint64_t> lost;
    uint64_t attached = 0;  // a body
  };

  void hears_actor(uint64_t body, const Decoded& frame);
  void hears_launcher(const Decoded& frame);
  void drop_claims(uint64_t body, std::optional<uint64_t> lease);
  void end_claims(uint64_t body);
  void says_grant(uint64_t body, const Decoded& frame);
  void check_grant_entry(uint64_t body, const Claim& claim, uint32_t slot);
  void check_nobody_lags(const char* what);
  void look_at_records();
  void opened(Step step);
  void flipped(uint32_t rank, uint32_t chunk, uint64_t before, uint64_t now);
  void check_commit(uint32_t rank, uint32_t chunk, Step step);
  void check_content(uint32_t rank, uint32_t chunk);
  void step_moved(Step step);

  SimContext& context_;
  SimModel& model_;
  SimNode& node_;
  std::vector<ChunkWindow> windows_;  // by rank
  std::vector<RankLook> ranks_;
  std::map<uint64_t, Body> bodies_;
  std::vector<Told> told_;
  uint64_t epoch_ = 0;
  std::map<uint64_t, uint64_t> lease_ends_ms_;  // of this epoch
  std::optional<std::string> frame_;            // that the store is handling
  uint64_t speaker_ = 0;
  Step committed_ = kNoStep;
  Step open_ = kNoStep;
  uint64_t steps_opened_ = 0;
  uint64_t flips_ = 0;
};

}  // namespace optlease
