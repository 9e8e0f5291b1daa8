// What a rank's actor makes of its trainer's requests: Attach, Prepare and StepRequest
// (docs/PROTOCOL.md, "Trainer and actor"). Keeps the one request in hand and answers it when the
// step's parameters are final; every request may come again, to this or a later incarnation, and is
// answered the same. Bad frames are answered with words where they name a request, else dropped and
// counted. Pure: frames come in and go out; used by TrainerDesk, which has the socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/wire/codec.h"
#include "actors/wire/socket.h"
#include "shm/control_view.h"

namespace optlease {

// What must be known to answer.
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

class TrainerRequests {
 public:
  explicit TrainerRequests(Rank rank) : rank_(rank) {}

  // One frame of `peer`. A new request for the next step is then in_hand(); while a step is open
  // that is the one after it, which cannot begin yet.
  void handle(const std::string& peer, std::string_view frame, const DeskFacts& facts);
  // Answers what can be answered. `control`: blobs and step records.
  void answer(const DeskFacts& facts, const ControlView& control);
  // What was answered since it was emptied last.
  std::vector<Message>* outgoing() { return &outgoing_; }

  const std::optional<StepRequestInHand>& in_hand() const { return request_; }
  // The step whose gradients the attached trainer is computing, as far as it told; or kNoStep.
  Step prepared() const { return prepared_; }
  uint64_t refusals() const { return refusals_; }

 private:
  void on_attach(const std::string& peer, const Decoded& frame);
  void on_prepare(Step step, const DeskFacts& facts);
  void refuse(const std::string& peer, MessageKind kind, uint64_t sequence, const Status& why);
  void on_step_request(const std::string& peer, const Decoded& frame, const DeskFacts& facts);
  void reply_step(const std::string& peer, uint64_t sequence, Step step, const StepRecord* record,
                  const Status& status);
  void reply_attached(const DeskFacts& facts, const ControlView& control);

  Rank rank_;
  std::optional<StepRequestInHand> request_;
  Step prepared_ = kNoStep;
  std::optional<std::pair<std::string, uint64_t>> attaching_;  // peer, sequence: the latest
  std::vector<Message> outgoing_;
  uint64_t refusals_ = 0;
};

}  // namespace optlease
