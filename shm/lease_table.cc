#include "shm/lease_table.h"

#include <iterator>
#include <utility>

#include "shm/contract/limits.h"

namespace optlease {
namespace {

// A number for %llu.
unsigned long long num(auto id) { return id.value; }

uint32_t slots_of(const std::vector<uint32_t>& slots_of_chunk, uint32_t first, uint32_t count) {
  uint32_t slots = 0;
  for (uint32_t chunk = first; chunk < first + count; ++chunk) slots += slots_of_chunk[chunk];
  return slots;
}

}  // namespace

LeaseTable::LeaseTable(LeaseTableOptions options) : options_(options) {
  OPTLEASE_CHECK(options.window_chunks >= 1 && options.window_chunks <= kWindowChunksMax,
                 "window_chunks is %u", options.window_chunks);
  OPTLEASE_CHECK(options.lease_ms > 0, "lease_ms is 0");
}

void LeaseTable::add_rank(Rank rank, std::vector<uint32_t> slots_of_chunk,
                          std::vector<SlotIndex> unreferenced, Incarnation last_incarnation) {
  OPTLEASE_CHECK(!ranks_.contains(rank), "rank %u is added twice", rank.value);
  RankState& state = ranks_[rank];
  state.slots_of_chunk = std::move(slots_of_chunk);
  state.recovered_last = last_incarnation;
  state.fence = last_incarnation;
  state.accounted = last_incarnation.value == 0;
  if (state.accounted) {
    state.free.assign(unreferenced.begin(), unreferenced.end());
    return;
  }
  state.not_reaped.insert(last_incarnation);
  for (SlotIndex slot : unreferenced) {
    state.quarantine.push_back({.slot = slot, .writer = last_incarnation, .recovered = true});
  }
}

LeaseTable::RankState& LeaseTable::state_of(Rank rank) {
  const auto found = ranks_.find(rank);
  OPTLEASE_CHECK(found != ranks_.end(), "rank %u was never added", rank.value);
  return found->second;
}

const LeaseTable::RankState& LeaseTable::state_of(Rank rank) const {
  return const_cast<LeaseTable*>(this)->state_of(rank);
}

// A newer one is known now: whoever was before it is as good as lost, and may still write.
void LeaseTable::know(RankState& state, Incarnation incarnation) {
  if (incarnation <= state.fence) return;
  const bool runs = state.fence.value != 0 && !state.reaped.contains(state.fence);
  if (runs) state.not_reaped.insert(state.fence);
  state.fence = incarnation;
  state.fence_is_lost = false;
  if (state.live.value != 0) end_leases(state, /*drained=*/false);
  state.live = Incarnation{0};
}

void LeaseTable::started(Rank rank, Incarnation incarnation, uint64_t now_ms) {
  RankState& state = state_of(rank);
  expire(state, now_ms);
  know(state, incarnation);
  // Its successor was faster than this word, and whatever it did for an earlier life of the store
  // it may be doing still.
  const bool superseded = incarnation < state.fence && !state.reaped.contains(incarnation);
  if (superseded) state.not_reaped.insert(incarnation);
  if (incarnation >= state.recovered_last) state.accounted = true;
  release(state, now_ms);
}

Status LeaseTable::hello(Rank rank, Incarnation incarnation, uint64_t now_ms) {
  RankState& state = state_of(rank);
  const bool lost = incarnation == state.fence && state.fence_is_lost;
  if (incarnation < state.fence || lost || incarnation.value == 0 ||
      state.reaped.contains(incarnation)) {
    return {
        StatusCode::kStaleIncarnation,
        format("incarnation %llu of rank %u is gone: the newest known is %llu%s", num(incarnation),
               rank.value, num(state.fence), lost ? ", and it was lost" : "")};
  }
  expire(state, now_ms);
  know(state, incarnation);
  if (state.live == incarnation) end_leases(state, /*drained=*/true);
  state.live = incarnation;
  state.not_reaped.insert(incarnation);
  for (Quarantined& held : state.quarantine) {
    if (held.writer == incarnation) held.free_at_ms = now_ms;  // it has drained
  }
  release(state, now_ms);
  return Status::ok();
}

void LeaseTable::lost(Rank rank, Incarnation incarnation, uint64_t now_ms) {
  RankState& state = state_of(rank);
  expire(state, now_ms);
  know(state, incarnation);
  if (incarnation == state.fence) state.fence_is_lost = true;
  if (state.live == incarnation) {
    end_leases(state, /*drained=*/false);
    state.live = Incarnation{0};
  }
  // Whatever it was told, an earlier life of the store included, it may be doing still.
  if (!state.reaped.contains(incarnation)) state.not_reaped.insert(incarnation);
}

void LeaseTable::reaped(Rank rank, Incarnation incarnation, uint64_t now_ms) {
  RankState& state = state_of(rank);
  const bool was_waited_for = state.not_reaped.contains(incarnation);
  lost(rank, incarnation, now_ms);
  if (!state.reaped.insert(incarnation).second) return;  // repeated: the grace period runs already
  state.not_reaped.erase(incarnation);
  if (incarnation >= state.recovered_last) state.accounted = true;
  const uint64_t free_at_ms = now_ms + options_.quarantine_grace_ms;
  // A recovered slot may have had an older writer: the last reaping starts its grace, whether the
  // last incarnation has said hello already or says it within that time.
  if (was_waited_for && incarnation < state.recovered_last) state.older_grace_ms = free_at_ms;
  for (Quarantined& held : state.quarantine) {
    if (held.writer == incarnation) held.free_at_ms = free_at_ms;
  }
  if (!state.quarantine.empty()) note_deadline(free_at_ms);
}

Status LeaseTable::check_live(const RankState& state, Rank rank, Incarnation incarnation) const {
  if (incarnation.value != 0 && state.live == incarnation) return Status::ok();
  return {StatusCode::kStaleIncarnation,
          format("incarnation %llu of rank %u is not attached (attached: %llu, newest known: %llu)",
                 num(incarnation), rank.value, num(state.live), num(state.fence))};
}

Status LeaseTable::check_window(const RankState& state, Rank rank, Step step, uint32_t first_chunk,
                                uint32_t chunk_count) const {
  const size_t chunks = state.slots_of_chunk.size();
  if (step >= 0 && chunk_count > 0 && chunk_count <= options_.window_chunks &&
      uint64_t{first_chunk} + chunk_count <= chunks) {
    return Status::ok();
  }
  return {StatusCode::kInvalidArgument,
          format("chunks [%u, +%u) for step %lld: rank %u has %zu chunks, a window at most %u",
                 first_chunk, chunk_count, static_cast<long long>(step), rank.value, chunks,
                 options_.window_chunks)};
}

const Lease* LeaseTable::overlapping(const RankState& state, uint32_t first_chunk,
                                     uint32_t chunk_count) const {
  auto next = state.lease_of.lower_bound(first_chunk);
  if (next != state.lease_of.end() && next->first < first_chunk + chunk_count) {
    return &leases_.at(next->second);
  }
  if (next == state.lease_of.begin()) return nullptr;
  const Lease& before = leases_.at(std::prev(next)->second);
  return before.first_chunk + before.chunk_count > first_chunk ? &before : nullptr;
}

Result<Lease> LeaseTable::grant(Rank rank, Incarnation incarnation, Step step, uint32_t first_chunk,
                                uint32_t chunk_count, uint64_t now_ms) {
  RankState& state = state_of(rank);
  OPTLEASE_TRY(check_live(state, rank, incarnation));
  OPTLEASE_TRY(check_window(state, rank, step, first_chunk, chunk_count));
  expire(state, now_ms);
  if (const Lease* other = overlapping(state, first_chunk, chunk_count)) {
    if (other->first_chunk == first_chunk && other->chunk_count == chunk_count &&
        other->step == step) {
      return *other;
    }
    return Status{
        StatusCode::kBusy,
        format("chunks [%u, +%u) of rank %u overlap lease %llu of [%u, +%u)", first_chunk,
               chunk_count, rank.value, num(other->id), other->first_chunk, other->chunk_count)};
  }
  const uint32_t needed = slots_of(state.slots_of_chunk, first_chunk, chunk_count);
  if (state.lease_of.size() >= kLeasesInFlightMax || needed > state.free.size()) {
    return Status{
        StatusCode::kBusy,
        format("rank %u: the window needs %u shadow slots, %zu are free, %zu quarantined; "
               "%zu leases of at most %u are in flight",
               rank.value, needed, state.free.size(), state.quarantine.size(),
               state.lease_of.size(), kLeasesInFlightMax)};
  }
  Lease lease{LeaseId{next_lease_++},
              rank,
              incarnation,
              step,
              first_chunk,
              chunk_count,
              0,
              {state.free.begin(), state.free.begin() + needed},
              now_ms + options_.lease_ms};
  state.free.erase(state.free.begin(), state.free.begin() + needed);
  state.lease_of.emplace(first_chunk, lease.id);
  note_deadline(lease.expires_ms);
  return leases_.emplace(lease.id, std::move(lease)).first->second;
}

Result<const Lease*> LeaseTable::check_lease(Rank rank, Incarnation incarnation, LeaseId lease,
                                             uint64_t now_ms) const {
  OPTLEASE_TRY(check_live(state_of(rank), rank, incarnation));
  const auto found = leases_.find(lease);
  const bool theirs = found != leases_.end() && found->second.rank == rank &&
                      found->second.incarnation == incarnation;
  if (!theirs || found->second.expires_ms <= now_ms) {
    return Status{
        StatusCode::kStaleLease,
        format("lease %llu of rank %u, incarnation %llu: %s", num(lease), rank.value,
               num(incarnation),
               theirs ? "it has expired" : "there is none (ended, expired or another's)")};
  }
  return &found->second;
}

Status LeaseTable::may_commit(Rank rank, Incarnation incarnation, LeaseId id, Step step,
                              uint32_t first_chunk, uint32_t chunk_count,
                              std::span<const SlotEntry> shadow, uint64_t now_ms) const {
  const Result<const Lease*> checked = check_lease(rank, incarnation, id, now_ms);
  if (!checked) return checked.status();
  const Lease& lease = *checked.value();
  if (step != lease.step) {
    return {StatusCode::kStaleStep,
            format("lease %llu writes version %lld, not %lld", num(id),
                   static_cast<long long>(lease.step), static_cast<long long>(step))};
  }
  const uint32_t next = lease.first_chunk + lease.committed;
  const uint32_t left = lease.chunk_count - lease.committed;
  if (first_chunk != next || chunk_count == 0 || chunk_count > left) {
    return {StatusCode::kInvalidArgument,
            format("lease %llu commits chunks in order: [%u, +%u) named, [%u, +%u) left", num(id),
                   first_chunk, chunk_count, next, left)};
  }
  const uint32_t needed = slots_of(state_of(rank).slots_of_chunk, first_chunk, chunk_count);
  bool same = shadow.size() == needed;
  for (uint32_t i = 0; same && i < needed; ++i) {
    same = shadow[i].slot == lease.shadow[i].value && shadow[i].reserved_zero == 0;
  }
  if (!same) {
    return {StatusCode::kInvalidArgument,
            format("the %zu slots named are not the %u shadow slots that lease %llu was granted",
                   shadow.size(), needed, num(id))};
  }
  return Status::ok();
}

void LeaseTable::committed(LeaseId id, uint32_t chunk_count, std::span<const SlotIndex> freed) {
  const auto found = leases_.find(id);
  OPTLEASE_CHECK(found != leases_.end(), "lease %llu is not there", num(id));
  Lease& lease = found->second;
  OPTLEASE_CHECK(lease.committed + chunk_count <= lease.chunk_count, "%u chunks", chunk_count);
  RankState& state = state_of(lease.rank);
  const uint32_t slots =
      slots_of(state.slots_of_chunk, lease.first_chunk + lease.committed, chunk_count);
  lease.shadow.erase(lease.shadow.begin(), lease.shadow.begin() + slots);
  lease.committed += chunk_count;
  state.free.insert(state.free.end(), freed.begin(), freed.end());
  if (lease.committed == lease.chunk_count) {
    state.lease_of.erase(lease.first_chunk);
    leases_.erase(found);
  }
}

Status LeaseTable::give_back(Rank rank, Incarnation incarnation, LeaseId id, uint64_t now_ms) {
  const Result<const Lease*> checked = check_lease(rank, incarnation, id, now_ms);
  if (!checked) return checked.status();
  end_lease(state_of(rank), leases_.find(id), /*drained=*/true);
  return Status::ok();
}

Status LeaseTable::heartbeat(Rank rank, Incarnation incarnation, uint64_t now_ms) {
  RankState& state = state_of(rank);
  OPTLEASE_TRY(check_live(state, rank, incarnation));
  expire(state, now_ms);  // first: a heartbeat revives nothing
  for (const auto& [first_chunk, id] : state.lease_of) {
    leases_.at(id).expires_ms = now_ms + options_.lease_ms;
  }
  return Status::ok();
}

void LeaseTable::end_leases(RankState& state, bool drained) {
  while (!state.lease_of.empty()) {
    end_lease(state, leases_.find(state.lease_of.begin()->second), drained);
  }
}

void LeaseTable::end_lease(RankState& state, LeaseIterator found, bool drained) {
  const Lease& lease = found->second;
  if (drained) {
    state.free.insert(state.free.end(), lease.shadow.begin(), lease.shadow.end());
  } else {
    for (SlotIndex slot : lease.shadow) {
      state.quarantine.push_back({.slot = slot, .writer = lease.incarnation});
    }
  }
  state.lease_of.erase(lease.first_chunk);
  leases_.erase(found);
}

void LeaseTable::expire(RankState& state, uint64_t now_ms) {
  if (now_ms < next_deadline_ms_) return;
  for (auto next = state.lease_of.begin(); next != state.lease_of.end();) {
    const auto lease = leases_.find(next->second);
    ++next;
    if (lease->second.expires_ms > now_ms) continue;
    expired_.push_back(lease->second);
    end_lease(state, lease, /*drained=*/false);
  }
}

// What has drained, or outlived its grace. That a writer is attached proves nothing about a lease
// of it that expired later: only its hello does, and hello marks the slots.
bool LeaseTable::may_release(const RankState& state, const Quarantined& held, uint64_t now_ms) {
  if (held.free_at_ms > now_ms) return false;
  if (!held.recovered) return true;
  if (!state.accounted) return false;
  // Any older one may have been granted it by an earlier life of the store.
  if (state.older_grace_ms > now_ms) return false;
  return state.not_reaped.empty() || *state.not_reaped.begin() >= held.writer;
}

void LeaseTable::release(RankState& state, uint64_t now_ms) {
  std::erase_if(state.quarantine, [&](const Quarantined& held) {
    if (!may_release(state, held, now_ms)) return false;
    state.free.push_back(held.slot);
    return true;
  });
}

std::vector<Lease> LeaseTable::advance(uint64_t now_ms) {
  if (now_ms >= next_deadline_ms_) {
    for (auto& [rank, state] : ranks_) {
      expire(state, now_ms);
      release(state, now_ms);
    }
    recompute_deadline(now_ms);
  }
  return std::exchange(expired_, {});
}

void LeaseTable::recompute_deadline(uint64_t now_ms) {
  next_deadline_ms_ = UINT64_MAX;
  for (const auto& [id, lease] : leases_) note_deadline(lease.expires_ms);
  for (const auto& [rank, state] : ranks_) {
    for (const Quarantined& held : state.quarantine) {
      // One whose grace is over waits for a message, not for a time.
      if (held.free_at_ms > now_ms) note_deadline(held.free_at_ms);
      if (held.recovered && state.older_grace_ms > now_ms) note_deadline(state.older_grace_ms);
    }
  }
}

bool LeaseTable::older_are_reaped(Rank rank) const {
  const RankState& state = state_of(rank);
  if (!state.accounted) return false;
  if (state.live.value == 0) return state.not_reaped.empty();
  return state.not_reaped.empty() || *state.not_reaped.begin() >= state.live;
}

std::string LeaseTable::check_invariants(Rank rank, std::span<const SlotIndex> referenced,
                                         uint32_t slot_count) const {
  const RankState& state = state_of(rank);
  std::vector<const char*> owner(slot_count, nullptr);
  std::string broken;
  const auto claim = [&](SlotIndex slot, const char* by) {
    if (slot.value >= slot_count) {
      broken = format("slot %u (%s) is past the last of %u", slot.value, by, slot_count);
    } else if (owner[slot.value] != nullptr) {
      broken = format("slot %u is both %s and %s", slot.value, owner[slot.value], by);
    } else {
      owner[slot.value] = by;
    }
  };
  for (SlotIndex slot : referenced) claim(slot, "committed");
  for (SlotIndex slot : state.free) claim(slot, "free");
  for (const Quarantined& held : state.quarantine) claim(held.slot, "quarantined");
  uint32_t end = 0;
  for (const auto& [first_chunk, id] : state.lease_of) {
    const Lease& lease = leases_.at(id);
    for (SlotIndex slot : lease.shadow) claim(slot, "granted");
    if (lease.incarnation != state.live) broken = "a lease outlived its incarnation's attachment";
    if (lease.first_chunk < end) broken = format("two leases cover chunk %u", lease.first_chunk);
    end = lease.first_chunk + lease.chunk_count;
    const uint32_t next = lease.first_chunk + lease.committed;
    if (lease.shadow.size() != slots_of(state.slots_of_chunk, next, end - next)) {
      broken = format("lease %llu has %zu shadow slots", num(id), lease.shadow.size());
    }
  }
  for (uint32_t slot = 0; broken.empty() && slot < slot_count; ++slot) {
    if (owner[slot] == nullptr) broken = format("slot %u is lost: it is in no state", slot);
  }
  return broken;
}

}  // namespace optlease
