// What others may ask the lease table about the leases that live: lease_table.cc has what it does.
#include "shm/lease_table.h"

namespace optlease {

const Lease* LeaseTable::lease_of(Rank rank, Step step, uint32_t first_chunk,
                                  uint32_t chunk_count) const {
  const RankState& state = state_of(rank);
  const auto found = state.lease_of.find(first_chunk);
  if (found == state.lease_of.end()) return nullptr;
  const Lease& lease = leases_.at(found->second);
  return lease.step == step && lease.chunk_count == chunk_count ? &lease : nullptr;
}

uint32_t LeaseTable::chunks_in_flight(Rank rank) const {
  uint32_t chunks = 0;
  for (const auto& [first_chunk, id] : state_of(rank).lease_of) {
    const Lease& lease = leases_.at(id);
    chunks += lease.chunk_count - lease.committed;
  }
  return chunks;
}

QuarantineInfo LeaseTable::quarantine(Rank rank) const {
  const RankState& state = state_of(rank);
  QuarantineInfo info{.slots = static_cast<uint32_t>(state.quarantine.size())};
  for (const Quarantined& held : state.quarantine) {
    if (held.free_at_ms == UINT64_MAX) ++info.waiting_for_reap;
  }
  return info;
}

}  // namespace optlease
