// Who may read and write which slots now. Pure: no clock, socket or memory; `now_ms` and facts come
// in, decisions go out. One table for the node; it is the store's private memory and dies with it.
//
// A slot of a rank's arena is committed (some chunk's canonical version), free, granted (shadow of a
// live lease) or quarantined (a process that may still write it has not been shown to be gone).
// Invariant: these four partition the arena at all times (check_invariants).
#pragma once

#include <cstdint>
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
  uint32_t committed = 0;              // chunks of it already committed, in order
  std::vector<SlotIndex> shadow;       // slots still granted, chunks ascending, slots in order
  uint64_t expires_ms = 0;
};

// The quarantine of one rank at one time, why it is held.
struct QuarantineInfo { uint32_t slots = 0; uint32_t waiting_for_reap = 0; };

class LeaseTable {
 public:
  // slots_of_chunk: per chunk of the rank, how many slots it needs. `unreferenced` are the slots that
  // no committed version occupies. Where `last_incarnation` is not 0 they start in quarantine until
  // that incarnation says hello (drained) or is reaped; else free.
  LeaseTable(LeaseTableOptions options);
  void add_rank(Rank rank, std::vector<uint32_t> slots_of_chunk, std::vector<SlotIndex> unreferenced,
                Incarnation last_incarnation);

  // The incarnation is attached and has drained: its own quarantine and leases end at once, its
  // slots are free. Older incarnations of the rank stay fenced. StaleIncarnation if a newer one is
  // known or it was lost.
  Status hello(Rank rank, Incarnation incarnation, uint64_t now_ms);
  // Its lifeline closed: leases end, slots go to quarantine, later messages are stale.
  void lost(Rank rank, Incarnation incarnation, uint64_t now_ms);
  // Its process was reaped: its quarantined slots are free after the grace period.
  void reaped(Rank rank, Incarnation incarnation, uint64_t now_ms);

  // Grants [first_chunk, +chunk_count) for writing version `step`. Repeating a request whose lease
  // lives returns that lease. Busy: no free shadow slots now, or an overlapping lease of this
  // incarnation. StaleIncarnation, InvalidArgument (range) otherwise.
  Result<Lease> grant(Rank rank, Incarnation incarnation, Step step, uint32_t first_chunk,
                      uint32_t chunk_count, uint64_t now_ms);
  // Accepts a commit of the next `chunk_count` chunks of the lease with exactly its shadow slots;
  // returns nothing but permission. StaleLease: unknown or expired. StaleStep, InvalidArgument.
  // The caller then flips the words and calls committed() with the slots that became free.
  Status may_commit(Rank rank, Incarnation incarnation, LeaseId lease, Step step, uint32_t first_chunk,
                    uint32_t chunk_count, std::span<const SlotEntry> shadow, uint64_t now_ms) const;
  void committed(LeaseId lease, uint32_t chunk_count, std::span<const SlotIndex> freed);
  // The lessee drained and gives the lease back: its remaining slots are free.
  Status give_back(Rank rank, Incarnation incarnation, LeaseId lease);
  // Renews every lease of the incarnation. StaleIncarnation if it is not the live one.
  Status heartbeat(Rank rank, Incarnation incarnation, uint64_t now_ms);

  // Ends expired leases (slots to quarantine, until their incarnation's hello, or reaped + grace),
  // frees what has outlived its grace. Returns the leases that ended, for the log.
  std::vector<Lease> advance(uint64_t now_ms);
  // When advance() next has something to do; UINT64_MAX: never.
  uint64_t next_deadline_ms() const;

  // True when every incarnation of the rank older than `incarnation` that was ever granted a lease
  // is reaped (design rule 2: only then may a step be marked committed).
  bool older_are_reaped(Rank rank) const;
  Incarnation live(Rank rank) const;   // 0: none attached
  uint32_t lease_count(Rank rank) const;
  uint32_t free_slots(Rank rank) const;
  QuarantineInfo quarantine(Rank rank) const;
  const Lease* find(LeaseId lease) const;
  // Empty, or the invariant that does not hold. `referenced`: slots of committed versions.
  std::string check_invariants(Rank rank, std::span<const SlotIndex> referenced, uint32_t slot_count) const;

 private:
  struct RankState;
  struct Quarantined { SlotIndex slot; Incarnation writer; uint64_t free_at_ms; };
  LeaseTableOptions options_;
  std::map<Rank, RankState> ranks_;
  std::map<LeaseId, Lease> leases_;
  uint64_t next_lease_ = 1;
};

}  // namespace optlease
