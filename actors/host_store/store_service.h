// The host store without its socket: takes frames, answers with frames. It owns the chunk store,
// the lease table and the step coordinator of the node and is the only caller of any of them. Used
// by HostStore (the shell with socket, clock and signals) and by tests that drive it in process. It
// never waits, and no frame can make it abort: what is wrong is answered with Refused. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "actors/host_store/peer_name.h"
#include "actors/host_store/step_coordinator.h"
#include "actors/host_store/window_credits.h"
#include "actors/wire/codec.h"
#include "actors/wire/socket.h"
#include "shm/chunk_store.h"
#include "shm/lease_table.h"

namespace optlease {

struct StoreOptions {
  uint64_t lease_ms = 5000;
  uint64_t quarantine_grace_ms = 100;
  bool all_older_reaped = false;  // no incarnation that an earlier store knew lives any more
  bool keep_state = false;        // what the segment shall say after a clean end
  CreditOptions credits = {};     // how ranks share the node's bandwidth
};

class StoreService {
 public:
  // Corrupt: the chunks' versions do not fit the committed step.
  static Result<StoreService> start(ChunkStore store, const StoreOptions& options, uint64_t now_ms);

  // Handles one frame; its answers join the outgoing messages. One whose sender's `identity` is not
  // ok is refused with its words.
  void handle(const std::string& peer, std::string_view frame, uint64_t now_ms,
              const Status& identity = Status::ok());
  // Does what time and the handled frames allow. Call after each batch of handle().
  void settle(uint64_t now_ms);
  std::vector<Message>* outgoing() { return &outgoing_; }
  // When settle() has something to do although no frame came; UINT64_MAX: never.
  uint64_t next_deadline_ms() const;

  // As a StopStore message does.
  void stop(uint64_t ttl_ms, uint64_t now_ms) { coordinator_.stop(ttl_ms, now_ms); }
  // The stop is done and its messages are outgoing.
  bool finished() const { return finished_; }

  const ChunkStore& store() const { return store_; }
  const LeaseTable& leases() const { return leases_; }
  const StepCoordinator& coordinator() const { return coordinator_; }
  const WindowCredits& credits() const { return credits_; }
  uint64_t strangers_dropped() const { return strangers_dropped_; }
  uint64_t refusals() const { return refusals_; }
  // Empty, or what does not hold between segment and lease table.
  std::string check_invariants() const;
  // One line for the log: epoch, step, records, chunks.
  std::string describe() const;

 private:
  struct Request {
    const std::string& peer;
    PeerName name;
    Decoded frame;
    uint64_t now_ms;
    Rank rank() const { return Rank{frame.header.rank}; }
    Incarnation incarnation() const { return Incarnation{frame.header.incarnation}; }
  };
  using Handler = Status (StoreService::*)(const Request&);
  struct RankPeer {
    Incarnation attached;  // 0: none
    std::string address;   // its routing id
    uint64_t heard_ms = 0;
    Step step = kNoStep;  // of its last heartbeat
    uint32_t phase = 0;
    std::set<uint32_t> corrupt_chunks;
    // The committed step as of which its resident slots are saved. They move on with the next step
    // only, whoever serves the rank meanwhile.
    Step resident_saved = kNoStep;
  };
  struct HoldOwner {
    std::string peer;
    uint64_t sequence = 0;
    uint64_t ttl_ms = 0;
  };

  StoreService(ChunkStore store, const StoreOptions& options, const CoordinatorFacts& facts);
  static Result<CoordinatorFacts> facts_of(const ChunkStore& store);
  static Status check_records(const ChunkStore& store, const CoordinatorFacts& facts);
  void add_ranks(const StoreOptions& options, uint64_t now_ms);

  // store_service.cc: who may say what, and what actions do.
  Status dispatch(const Request& request);
  Status from_actor(const Request& request, Handler handler);
  Status from_launcher(const Request& request, Handler handler);
  Status from_operator(const Request& request, Handler handler);
  Status check_rank(uint32_t rank) const;
  void refuse(const std::string& peer, const MessageHeader& header, const Status& why);
  void perform(const StoreAction& action);
  void commit_step(Step step);
  void apply_skip(Step step);
  void void_records(Step step);
  void count_skipped();
  // Carries what the lease table knows of the rank to the coordinator.
  void sync_rank(Rank rank);

  // store_handlers.cc: one a message of an actor, named for it.
  Status on_hello(const Request& request);
  Status on_step_ready(const Request& request);
  Status on_step_record(const Request& request);
  Status on_lease_request(const Request& request);
  Status on_commit_request(const Request& request);
  Status on_lease_return(const Request& request);
  Status on_published(const Request& request);
  Status on_heartbeat(const Request& request);
  Status on_corrupt_chunk(const Request& request);
  Status on_resident_saved(const Request& request);
  Status check_chunks(Rank rank, uint32_t first_chunk, uint32_t chunk_count) const;
  Status check_lease_step(Step step) const;
  Status check_commit_step(Step step) const;
  Status check_lease(Rank rank, const LeaseRequestBody& body) const;
  Status grant_lease(const std::string& peer, const MessageHeader& asked,
                     const LeaseRequestBody& body, uint32_t deferred, uint64_t now_ms);
  void send_grant(const std::string& peer, const MessageHeader& asked, const Lease& lease,
                  uint32_t deferred);
  void commit_chunks(Rank rank, const CommitRequestBody& body, std::span<const SlotEntry> shadow);

  // store_credits.cc
  static std::vector<uint64_t> window_bytes_of(const ControlView& view);
  void load_credits();
  Result<bool> wait_for_credit(const Request& request, const LeaseRequestBody& body);
  void grant_waiting(uint64_t now_ms);

  // store_handlers_control.cc: one a message of launcher or tool.
  Status on_incarnation_started(const Request& request);
  Status on_incarnation_lost(const Request& request);
  Status on_incarnation_reaped(const Request& request);
  Status on_status_query(const Request& request);
  Status on_hold_request(const Request& request);
  Status on_hold_release(const Request& request);
  Status on_stop_store(const Request& request);
  Result<uint64_t> hold_for(const Request& request, const HoldBody& body);
  void grant_hold(uint64_t hold_id);
  bool residents_are_saved() const;

  template <class Body>
  void reply(const Request& request, MessageKind kind, const Body& body,
             std::string_view payload = {}) {
    const Speaker speaker{request.frame.header.rank, request.frame.header.incarnation,
                          epoch_.value};
    outgoing_.push_back(
        {request.peer, encode(speaker, kind, request.frame.header.sequence, body, payload)});
  }
  // To every attached rank.
  template <class Body>
  void broadcast(MessageKind kind, const Body& body, std::string_view payload = {}) {
    for (uint32_t r = 0; r < peers_.size(); ++r) {
      const Incarnation to = peers_[r].attached;
      if (to.value == 0) continue;
      const Speaker speaker{r, to.value, epoch_.value};
      outgoing_.push_back({peers_[r].address, encode(speaker, kind, ++broadcasts_, body, payload)});
    }
  }

  // Constant after construction.
  StoreOptions options_;
  StoreEpoch epoch_;
  // The node's state.
  ChunkStore store_;
  LeaseTable leases_;
  StepCoordinator coordinator_;
  WindowCredits credits_;
  std::vector<RankPeer> peers_;
  std::optional<StepRecord> record_;  // of the step at work, as the first rank to have it wrote it
  std::map<uint64_t, HoldOwner> holds_;  // by hold id
  // This life's output.
  std::vector<Message> outgoing_;
  uint64_t broadcasts_ = 0;
  uint64_t commits_ = 0;   // chunks
  uint64_t refusals_ = 0;  // but for Busy, which only says: ask again
  uint64_t strangers_dropped_ = 0;
  bool finished_ = false;
};

}  // namespace optlease
