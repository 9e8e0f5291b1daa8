#include "actors/gpu_actor/trainer_desk.h"

#include <utility>

namespace optlease {
namespace {
constexpr int kMessagesPerTurn = 64;
}  // namespace

Result<TrainerDesk> TrainerDesk::open(SocketContext& context, const RunDirectory& directory,
                                      Rank rank, bool take_over) {
  SocketOptions options;
  options.take_over_path = take_over;
  Result<Socket> socket =
      Socket::bind(context, Socket::Type::kRouter, directory.actor_socket(rank), options);
  if (!socket.is_ok()) return socket.status();
  return TrainerDesk(std::move(socket).value(), rank);
}

void TrainerDesk::receive(const DeskFacts& facts) {
  Message message;
  for (int i = 0; i < kMessagesPerTurn && socket_.receive(&message); ++i) {
    requests_.handle(message.peer, message.frame, facts);
    send();
  }
}

void TrainerDesk::answer(const DeskFacts& facts, const ControlView& control) {
  requests_.answer(facts, control);
  send();
}

// A trainer that is gone asks again when it is back: what cannot be sent now is dropped.
void TrainerDesk::send() {
  for (const Message& message : std::exchange(*requests_.outgoing(), {})) {
    (void)socket_.send(message);
  }
}

}  // namespace optlease
