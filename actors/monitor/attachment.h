// The monitor's sockets: a SUB and a snapshot DEALER to every rank of a job. Actors may come and
// go; connections are made again by themselves. Belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/monitor/monitor_state.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"

namespace optlease {

class JobAttachment {
 public:
  static Result<JobAttachment> attach(SocketContext& context, const RunDirectory& directory,
                                      uint32_t world_size);

  struct Update {
    uint32_t rank = 0;
    MonitorState::Source source = MonitorState::Source::kPublished;
    std::string frame;
  };
  // Asks every rank that `state` has not heard for a snapshot, again each kAskAgainMs.
  void ask(const MonitorState& state, int64_t now_ms);
  // Waits at most `timeout_ms`, then appends what came. Bounded, whatever the actors send.
  Status receive(int timeout_ms, std::vector<Update>* updates);

  static constexpr int64_t kAskAgainMs = 300;

 private:
  JobAttachment() = default;

  std::vector<Socket> subscribers_;  // [rank]
  std::vector<Socket> requesters_;   // [rank]
  int64_t next_ask_ms_ = 0;
};

}  // namespace optlease
