// Where a trainer's requests arrive at its rank's actor: Attach, Prepare and StepRequest
// (docs/PROTOCOL.md, "Trainer and actor"). Keeps the one request in hand and answers it when the
// step's parameters are final; every request may come again, to this or a later incarnation, and is
// answered the same. Bad frames are answered with words where they name a request, else dropped and
// counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "actors/gpu_actor/collective_worker.h"
#include "actors/wire/codec.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"

namespace optlease {

// What the desk needs to know to answer.
struct DeskFacts {
  Step committed = kNoStep;
  Step published = kNoStep;
  Step last = 0;       // the job's last step
  bool quiet = false;  // nothing of this rank's steps is under way
  Step open = kNoStep;
  Step known() const { return open != kNoStep ? open : committed; }
};

struct StepRequestInHand {
  std::string peer;
  uint64_t sequence = 0;
  StepRequestBody body{};
  std::string blob;
};

class TrainerDesk {
 public:
  // `take_over`: as SocketOptions::take_over_path.
  static Result<TrainerDesk> open(SocketContext& context, const RunDirectory& directory, Rank rank,
                                  bool take_over = false);

  // Reads what has come. A new request for the next step is then in_hand(); while a step is open
  // that is the one after it, which cannot begin yet.
  void receive(const DeskFacts& facts);
  // Answers what can be answered. `control`: blobs and step records.
  void answer(const DeskFacts& facts, const ControlView& control);

  const std::optional<StepRequestInHand>& in_hand() const { return request_; }
  // The step whose gradients the attached trainer is computing, as far as it told; or kNoStep.
  Step prepared() const { return prepared_; }
  Socket* socket() { return &socket_; }
  uint64_t refusals() const { return refusals_; }

 private:
  TrainerDesk(Socket socket, Rank rank) : socket_(std::move(socket)), rank_(rank) {}
  void on_attach(const std::string& peer, const Decoded& frame);
  void on_prepare(Step step, const DeskFacts& facts);
  void refuse(const std::string& peer, MessageKind kind, uint64_t sequence, const Status& why);
  void on_step_request(const std::string& peer, const Decoded& frame, const DeskFacts& facts);
  void reply_step(const std::string& peer, uint64_t sequence, Step step, const StepRecord* record,
                  const Status& status);
  void reply_attached(const DeskFacts& facts, const ControlView& control);

  Socket socket_;
  Rank rank_;
  std::optional<StepRequestInHand> request_;
  Step prepared_ = kNoStep;
  std::optional<std::pair<std::string, uint64_t>> attaching_;  // peer, sequence: the latest
  uint64_t refusals_ = 0;
};

}  // namespace optlease
