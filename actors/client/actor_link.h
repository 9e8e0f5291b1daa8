// One trainer's conversation with its rank's actor: a request is repeated until it is answered, to
// whatever incarnation of the actor listens at the time. Used by the client; it knows frames and
// deadlines, and nothing of buffers or blobs. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "actors/runtime/clock.h"
#include "actors/wire/codec.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"
#include "shm/contract/status.h"

namespace optlease {

// A request in the form in which it is repeated.
struct OpenRequest {
  MessageKind kind{};
  MessageKind answer{};
  uint64_t sequence = 0;
  std::string frame;
};

// Ok where `reply` grants `request`, or the refusal's status and words.
// REQUIRES: `reply` came from exchange(request).
Status outcome_of(const OpenRequest& request, const std::string& reply);

class ActorLink {
 public:
  static Result<ActorLink> connect(const RunDirectory& directory, uint32_t rank);

  template <class Body>
  OpenRequest open(MessageKind kind, MessageKind answer, const Body& body,
                   std::string_view payload = {}) {
    const uint64_t sequence = ++last_sequence_;
    return {kind, answer, sequence, encode(speaker_, kind, sequence, body, payload)};
  }

  // The frame that settles `request`: its answer or its refusal, see outcome_of(). One that says
  // Busy settles nothing: it is asked again. After an error nobody knows whether the request was
  // heard; exchange it again.
  Result<std::string> exchange(const OpenRequest& request, Deadline deadline);

  // Says what has no answer, without waiting for anything: the actor that listens at the time, or
  // the next one, hears it. One that the queue has no room for is dropped.
  template <class Body>
  void say(MessageKind kind, const Body& body) {
    (void)socket_.send(Message{{}, encode(speaker_, kind, ++last_sequence_, body)});
  }
  // Tells the actor that this trainer goes.
  void say_detach();

 private:
  ActorLink(const RunDirectory& directory, uint32_t rank, std::unique_ptr<SocketContext> context,
            Socket socket);
  std::string what_to_check(const OpenRequest& request, uint64_t refused_as_busy) const;

  RunDirectory directory_;
  Speaker speaker_;
  uint64_t last_sequence_ = 0;
  // The context outlives its sockets: members are destroyed last to first.
  std::unique_ptr<SocketContext> context_;
  Socket socket_;
};

}  // namespace optlease
