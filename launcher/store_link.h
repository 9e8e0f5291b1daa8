// The launcher's and the tools' conversation with the host store: facts about incarnations, status
// queries, holds and the stop. Non-blocking; what the socket does not take now is kept in order and
// sent later. Not thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"
#include "launcher/supervisor_core.h"
#include "shm/contract/messages.h"
#include "shm/contract/status.h"

namespace optlease {

class StoreLink {
 public:
  // `name`: "launcher" or "tool.<pid>".
  StoreLink(SocketContext& context, RunDirectory run, std::string name);

  // A new connection, for a new life of the store: what was queued for the old one is dropped.
  Status reconnect();
  bool is_open() const { return socket_.has_value(); }
  Socket* socket() { return &*socket_; }  // REQUIRES: is_open()

  // REQUIRES: kind is one of the three kIncarnation... kinds.
  void tell(MessageKind kind, uint32_t rank, uint64_t incarnation);
  void query_status();
  void stop_store(uint64_t ttl_ms);
  // `sequence` 0: a new request; otherwise the one that it repeats. Returns the sequence.
  uint64_t request_hold(uint64_t hold_id, uint64_t ttl_ms, uint64_t sequence = 0);
  void release_hold(uint64_t hold_id);
  // Sends what waits; call it in every round of the loop.
  void flush();

  // What has arrived since the last call. The latest reply of each kind counts.
  struct Arrived {
    std::optional<StoreFacts> facts;
    std::optional<HoldBody> hold;
    uint64_t hold_sequence = 0;  // of the request that `hold` answers
    std::string refusal;         // empty: none
  };
  Arrived receive();

 private:
  void queue(std::string frame);

  SocketContext& context_;
  RunDirectory run_;
  std::string name_;
  std::optional<Socket> socket_;
  std::deque<std::string> waiting_;
  uint64_t sequence_ = 0;
};

// A hold on the job's steps, for reading its state at rest. Blocks, with deadlines.
class StepHold {
 public:
  // Waits until no step is open. Timeout where that takes longer than `timeout_ms`; what `alive`
  // says where the job ends meanwhile (asked about twice a second).
  static Result<StepHold> take(SocketContext& context, const RunDirectory& run, uint64_t timeout_ms,
                               const std::function<Status()>& alive);
  StepHold(StepHold&&) = default;
  ~StepHold();

  Step step() const { return body_.step; }
  // Renews the hold and waits for the store's answer; PeerLost where it may have ended, and then
  // whatever was read since the last call must not be trusted.
  Status keep();

 private:
  StepHold(std::unique_ptr<StoreLink> link, const HoldBody& body);
  std::unique_ptr<StoreLink> link_;
  HoldBody body_{};
};

}  // namespace optlease
