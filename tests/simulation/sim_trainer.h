// A life of a trainer: attaches to its rank's actor, computes gradients, asks for the step, and so
// on to the last one, as the client library does (actors/client): one request at a time, repeated
// until it is answered. It looks at its parameters whenever it would use them.
#pragma once

#include <functional>
#include <string>

#include "tests/simulation/sim_actor.h"

namespace optlease {

class SimTrainer final : public SimProcess {
 public:
  using ToActor = std::function<void(const std::string& peer, std::string frame)>;
  SimTrainer(SimContext& context, const SimPlace& place, uint64_t number, uint32_t rank,
             uint64_t life, ToActor to_actor);

  void begin() override;
  SimLink& link() { return link_; }
  const std::string& peer() const { return peer_; }

 private:
  void on_death() override { link_.close(/*at_once=*/true); }
  void request(std::string frame);
  void repeat(uint64_t sequence);
  void on_frame(const Decoded& frame);
  void on_attached(const Decoded& frame);
  void on_reply(const Decoded& frame);
  void compute();
  void ask();

  SimPlace place_;
  const Rank rank_;
  const std::string peer_;
  SimLink link_;
  std::string request_;  // in flight; empty: none
  uint64_t sequence_ = 0;
  Step step_ = kNoStep;  // the last that was answered
};

}  // namespace optlease
