// How StoreService lets lease requests wait for credit (window_credits.h) and answers them later.
#include <algorithm>

#include "actors/host_store/store_service.h"

namespace optlease {

// By rank, of a whole window. A slot's bytes stand for its chunk's: the last chunk of a shard may
// be shorter.
std::vector<uint64_t> StoreService::window_bytes_of(const ControlView& view) {
  std::vector<uint64_t> bytes;
  for (uint32_t r = 0; r < view.header().world_size; ++r) {
    const RankRecord& rank = view.rank(Rank{r});
    const uint32_t chunks = std::min(view.header().window_chunks, rank.chunk_count);
    bytes.push_back(chunks * rank.slot_bytes);
  }
  return bytes;
}

// From the coordinator and the lease table, each time: whatever ends a lease gives back its credit.
// Of a step that is not open yet everything is left, and its first windows are read ahead.
void StoreService::load_credits() {
  const bool leasing = coordinator_.may_lease(coordinator_.step_committed() + 1);
  for (uint32_t r = 0; r < peers_.size(); ++r) {
    const Rank rank{r};
    const RankRecord& record = store_.view().rank(rank);
    const uint64_t left = record.chunk_count - coordinator_.chunks_done(rank);
    credits_.set_load(rank, {.remaining_bytes = leasing ? left * record.slot_bytes : 0,
                             .in_flight_bytes = leases_.chunks_in_flight(rank) * record.slot_bytes,
                             .attached = peers_[r].attached.value != 0});
  }
}

// True where the request waits now: it is answered by grant_waiting(). What the lease table would
// refuse anyway, and what it has granted already, never waits.
Result<bool> StoreService::wait_for_credit(const Request& request, const LeaseRequestBody& body) {
  const Rank rank = request.rank();
  if (body.chunk_count > store_.view().header().window_chunks) return false;
  if (leases_.lease_of(rank, body.step, body.first_chunk, body.chunk_count) != nullptr) {
    return false;
  }
  uint64_t chunks = 0;
  for (uint32_t chunk = body.first_chunk; chunk < body.first_chunk + body.chunk_count; ++chunk) {
    chunks += store_.view().version(rank, ChunkIndex{chunk}) < body.step ? 1 : 0;
  }
  const uint64_t bytes = chunks * store_.view().rank(rank).slot_bytes;
  load_credits();
  if (bytes == 0 || (credits_.waiting(rank) == 0 && credits_.may_grant(rank, bytes))) return false;
  if (credits_.wait(rank, {request.frame.header, body, bytes})) return true;
  return Status{StatusCode::kBusy, format("%zu leases of rank %u wait for credit",
                                          credits_.waiting(rank), rank.value)};
}

// A request may have become wrong while it waited: it is looked at as if it came now.
void StoreService::grant_waiting(uint64_t now_ms) {
  while (credits_.anybody_waits()) {
    load_credits();
    const std::optional<WaitingLease> lease = credits_.next();
    if (!lease) return;
    const std::string& peer = peers_[lease->header.rank].address;
    Status granted = check_lease(Rank{lease->header.rank}, lease->body);
    if (granted.is_ok()) granted = grant_lease(peer, lease->header, lease->body, 1, now_ms);
    if (!granted.is_ok()) refuse(peer, lease->header, granted);
  }
}

}  // namespace optlease
