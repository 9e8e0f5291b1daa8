// A client's connection to a server, as a DEALER to a ROUTER: frames arrive in the order in which
// they were sent, or not at all. While no server is there the client's frames wait; of what is on
// its way when a server dies a part is lost and the rest waits for the next life. A server reaches
// only who has connected to this life of it. A stalled frame stalls all that come after it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "tests/simulation/sim_context.h"

namespace optlease {

class SimLink {
 public:
  using Receiver = std::function<void(std::string frame)>;

  SimLink(SimContext& context, Receiver at_server, Receiver at_client)
      : context_(context), at_server_(std::move(at_server)), at_client_(std::move(at_client)) {}
  SimLink(const SimLink&) = delete;
  SimLink& operator=(const SimLink&) = delete;

  // From the client. `waiting_max`: with so many that no server took yet, this one is dropped.
  void send(std::string frame, size_t waiting_max = SIZE_MAX);
  // From the server of that life; dropped where the client is not connected to it.
  void reply(uint64_t server_life, std::string frame);
  // A server listens: the client connects a little later. The one before is down.
  void server_up(uint64_t server_life);
  void server_down();
  // The client is dead. `at_once`: what it had sent lies at the server already.
  void close(bool at_once = false);

 private:
  struct InFlight {
    uint64_t number = 0;
    std::string frame;
  };
  uint64_t delay_us();
  void connect(uint64_t server_life);
  void push_up(std::string frame);

  SimContext& context_;
  Receiver at_server_, at_client_;
  bool closed_ = false;
  uint64_t server_ = 0;     // that listens; 0: none
  uint64_t connected_ = 0;  // to which life; 0: none
  uint64_t next_ = 1;
  std::deque<std::string> waiting_;
  std::deque<InFlight> up_, down_;
  uint64_t up_at_us_ = 0, down_at_us_ = 0;  // when the last frame arrives
};

}  // namespace optlease
