// Who may read and write which slots now. Used by the host store, one table for the node; it is the
// store's private memory and dies with it. Pure: no clock, socket or memory; `now_ms` and facts
// come in, decisions go out. It flips no commit word: the caller does, between may_commit and
// committed. Not thread-safe. docs/LEASES.md tells the life of a lease.
//
// A slot of a rank's arena is committed (some chunk's canonical version), free, granted (shadow of
// a live lease) or quarantined (a process that may still write it has not been shown to be gone).
// Invariant: these four partition the arena at all times (check_invariants).
//
// An incarnation may still write a slot that was once granted to it until it says hello again (it
// has drained its streams) or its process is reaped and the grace period is over (the driver may
// finish a DMA after the reaping). Being lost, silent or fenced proves nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shm/contract/ids.h"
#include "shm/contract/messages.h"
#include "shm/contract/status.h"

namespace optlease {

struct LeaseTableOptions {
  uint64_t lease_ms = 5000;
  uint64_t quarantine_grace_ms = 100;
  uint32_t window_chunks = 1;
};

struct Lease {
  LeaseId id;
  Rank rank;
  Incarnation incarnation;
  Step step = kNoStep;
  uint32_t first_chunk = 0;
  uint32_t chunk_count = 0;
  uint32_t committed = 0;         // chunks of it already committed, in order
  std::vector<SlotIndex> shadow;  // slots still granted, chunks ascending, slots in order
  uint64_t expires_ms = 0;
};

// The quarantine of one rank at one time, why it is held. The rest of `slots` is in its grace
// period.
struct QuarantineInfo {
  uint32_t slots = 0;
  uint32_t waiting_for_reap = 0;
};

class LeaseTable {
 public:
  // REQUIRES: 1 <= window_chunks <= kWindowChunksMax, lease_ms > 0.
  explicit LeaseTable(LeaseTableOptions options);

  // slots_of_chunk: per chunk of the rank, how many slots it needs. `unreferenced` are the slots
  // that no committed version occupies. Where `last_incarnation` is not 0 (a recovered store) that
  // one and any older one may have been granted them: they stay in quarantine until it says hello
  // (drained) or is reaped, every older one that is known to be lost is reaped too, and the
  // launcher has told which those are (started or reaped of that or a newer one). Else they are
  // free. REQUIRES: the rank is new.
  void add_rank(Rank rank, std::vector<uint32_t> slots_of_chunk,
                std::vector<SlotIndex> unreferenced, Incarnation last_incarnation);

  // The launcher has started it, and has told of every older one whose process is not reaped
  // (lost). An older one that was attached is lost by this.
  void started(Rank rank, Incarnation incarnation, uint64_t now_ms);
  // The incarnation is attached and has drained: its own quarantine and leases end at once, its
  // slots are free. Older incarnations of the rank stay fenced. StaleIncarnation if a newer one is
  // known or it was lost.
  Status hello(Rank rank, Incarnation incarnation, uint64_t now_ms);
  // Its lifeline closed: leases end, slots go to quarantine, later messages are stale.
  void lost(Rank rank, Incarnation incarnation, uint64_t now_ms);
  // Its process was reaped: its quarantined slots are free after the grace period.
  void reaped(Rank rank, Incarnation incarnation, uint64_t now_ms);

  // Grants [first_chunk, +chunk_count) for writing version `step`. Repeating a request whose lease
  // lives returns that lease. Busy: no free shadow slots now, an overlapping lease of this
  // incarnation, or kLeasesInFlightMax leases. StaleIncarnation, InvalidArgument (range) otherwise.
  Result<Lease> grant(Rank rank, Incarnation incarnation, Step step, uint32_t first_chunk,
                      uint32_t chunk_count, uint64_t now_ms);
  // Accepts a commit of the next `chunk_count` chunks of the lease with exactly its shadow slots;
  // returns nothing but permission. StaleIncarnation, StaleLease (unknown, expired or another's),
  // StaleStep, InvalidArgument.
  // The caller then flips the words and calls committed() with the slots that became free.
  Status may_commit(Rank rank, Incarnation incarnation, LeaseId lease, Step step,
                    uint32_t first_chunk, uint32_t chunk_count, std::span<const SlotEntry> shadow,
                    uint64_t now_ms) const;
  // REQUIRES: may_commit has just accepted it.
  void committed(LeaseId lease, uint32_t chunk_count, std::span<const SlotIndex> freed);
  // The lessee drained and gives the lease back: its remaining slots are free. StaleIncarnation,
  // StaleLease (also for an expired one: its slots wait in quarantine).
  Status give_back(Rank rank, Incarnation incarnation, LeaseId lease, uint64_t now_ms);
  // Renews every lease of the incarnation that has not expired. StaleIncarnation if it is not the
  // live one.
  Status heartbeat(Rank rank, Incarnation incarnation, uint64_t now_ms);

  // Ends expired leases (slots to quarantine, until their incarnation's hello, or reaped + grace),
  // frees what has outlived its grace. Returns the leases that ended by expiry since the last call.
  std::vector<Lease> advance(uint64_t now_ms);
  // Before this, advance() has nothing to do; UINT64_MAX: never.
  uint64_t next_deadline_ms() const { return next_deadline_ms_; }

  // True when every incarnation of the rank older than the live one that ever said hello, was lost
  // or was superseded is reaped, whether or not it had a lease: a reduction needs none. Only then
  // may a step be marked committed or reduced.
  bool older_are_reaped(Rank rank) const;
  Incarnation live(Rank rank) const { return state_of(rank).live; }  // 0: none attached
  size_t lease_count(Rank rank) const { return state_of(rank).lease_of.size(); }
  // The lease of exactly that window, if one lives; null: none.
  const Lease* lease_of(Rank rank, Step step, uint32_t first_chunk, uint32_t chunk_count) const;
  // Chunks leased and not committed yet.
  uint32_t chunks_in_flight(Rank rank) const;
  size_t free_slots(Rank rank) const { return state_of(rank).free.size(); }
  QuarantineInfo quarantine(Rank rank) const;
  const Lease* find(LeaseId lease) const {
    const auto found = leases_.find(lease);
    return found == leases_.end() ? nullptr : &found->second;
  }
  // Empty, or the invariant that does not hold. `referenced`: slots of committed versions.
  std::string check_invariants(Rank rank, std::span<const SlotIndex> referenced,
                               uint32_t slot_count) const;

 private:
  struct Quarantined {
    SlotIndex slot;
    Incarnation writer;
    bool recovered = false;            // from before this store: older writers than `writer` too
    uint64_t free_at_ms = UINT64_MAX;  // set when the writer has drained or is reaped
  };
  struct RankState {
    // Constant after add_rank.
    std::vector<uint32_t> slots_of_chunk;
    Incarnation recovered_last;  // 0: no store ran before this one
    // Changes.
    Incarnation live;
    Incarnation fence;  // the newest one known; older ones are refused
    bool fence_is_lost = false;
    bool accounted = false;            // the launcher has told which older ones are not reaped
    std::set<Incarnation> not_reaped;  // said hello, was lost or superseded: may still write
    std::set<Incarnation> reaped;
    // When the grace period is over of the last older one that recovered slots had to wait for.
    uint64_t older_grace_ms = 0;
    std::deque<SlotIndex> free;  // first in, first out: the longest free is granted first
    std::vector<Quarantined> quarantine;
    std::map<uint32_t, LeaseId> lease_of;  // by first chunk; ranges never overlap
  };
  using LeaseIterator = std::map<LeaseId, Lease>::iterator;

  RankState& state_of(Rank rank);
  const RankState& state_of(Rank rank) const;
  Status check_live(const RankState& state, Rank rank, Incarnation incarnation) const;
  Status check_window(const RankState& state, Rank rank, Step step, uint32_t first_chunk,
                      uint32_t chunk_count) const;
  // The lease if it is the incarnation's and has not expired.
  Result<const Lease*> check_lease(Rank rank, Incarnation incarnation, LeaseId lease,
                                   uint64_t now_ms) const;
  const Lease* overlapping(const RankState& state, uint32_t first_chunk,
                           uint32_t chunk_count) const;
  void know(RankState& state, Incarnation incarnation);
  void end_leases(RankState& state, bool drained);
  void end_lease(RankState& state, LeaseIterator lease, bool drained);
  void expire(RankState& state, uint64_t now_ms);
  void release(RankState& state, uint64_t now_ms);
  static bool may_release(const RankState& state, const Quarantined& held, uint64_t now_ms);
  void note_deadline(uint64_t at_ms) { next_deadline_ms_ = std::min(next_deadline_ms_, at_ms); }
  void recompute_deadline(uint64_t now_ms);

  LeaseTableOptions options_;
  std::map<Rank, RankState> ranks_;
  std::map<LeaseId, Lease> leases_;
  std::vector<Lease> expired_;  // not reported yet
  uint64_t next_lease_ = 1;
  uint64_t next_deadline_ms_ = UINT64_MAX;
};

}  // namespace optlease
