// Where a trainer's requests arrive at its rank's actor: a socket around TrainerRequests. Used by
// GpuActor.
#pragma once

#include <cstdint>
#include <optional>

#include "actors/gpu_actor/trainer_requests.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"

namespace optlease {

class TrainerDesk {
 public:
  // `take_over`: as SocketOptions::take_over_path.
  static Result<TrainerDesk> open(SocketContext& context, const RunDirectory& directory, Rank rank,
                                  bool take_over = false);

  // Reads what has come.
  void receive(const DeskFacts& facts);
  // As TrainerRequests', and sends it.
  void answer(const DeskFacts& facts, const ControlView& control);

  const std::optional<StepRequestInHand>& in_hand() const { return requests_.in_hand(); }
  Step prepared() const { return requests_.prepared(); }
  Socket* socket() { return &socket_; }
  uint64_t refusals() const { return requests_.refusals(); }

 private:
  TrainerDesk(Socket socket, Rank rank) : socket_(std::move(socket)), requests_(rank) {}
  void send();

  Socket socket_;
  TrainerRequests requests_;
};

}  // namespace optlease
