// What the launcher knows from the actors' snapshot sockets, for its report: it asks each actor
// about once a second and once more before the job stops, hears the last word of each that ends in
// order, and keeps the last answer of every incarnation. What must not be missing of one that was
// killed is counted elsewhere (rank_lives.h). Never blocks except in ask_once_more and
// collect_last. Not thread-safe.
#pragma once

#include <vector>

#include "actors/runtime/clock.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"
#include "launcher/rank_lives.h"

namespace optlease {

class TelemetryProbe {
 public:
  static Result<TelemetryProbe> open(SocketContext& context, const RunDirectory& run,
                                     uint32_t world_size);

  // Asks every rank for a snapshot.
  void ask();
  // Takes in what has arrived.
  void collect();
  // Asks and waits until every rank has answered, at most `timeout_ms`.
  void ask_once_more(int timeout_ms);
  // After the actors' orderly ends: waits, at most `timeout_ms`, until each one's last word is
  // there.
  void collect_last(int timeout_ms);

  const LivesHeard& heard(uint32_t rank) const { return heard_.at(rank); }

 private:
  // Takes in what arrives until `done`, at most until the deadline.
  template <class Done>
  void collect_until(Deadline deadline, const Done& done);

  std::vector<Socket> sockets_;    // by rank
  std::vector<LivesHeard> heard_;  // by rank
  std::vector<uint64_t> answers_;  // by rank
};

}  // namespace optlease
