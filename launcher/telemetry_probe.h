// What the launcher knows from the actors' snapshot sockets, for its report: it asks each actor
// about once a second and once more before the job stops, hears the last word of each that ends in
// order, and keeps the last answer of every incarnation. Never blocks except in ask_once_more and
// collect_last. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/clock.h"
#include "actors/runtime/telemetry.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"

namespace optlease {

// Of one rank over all its incarnations.
struct RankTraffic {
  std::optional<ActorTelemetry> last;  // of the latest incarnation that was heard
  uint64_t h2d_bytes = 0;              // sums of the last answer of each incarnation: what a killed
  uint64_t d2h_bytes = 0;              // one moved after its last answer is missing
  uint64_t leases_deferred = 0;        // they waited for credit
  double credit_wait_seconds = 0;
  uint64_t staging_peak_bytes = 0;  // the largest of them
  uint32_t incarnations_heard = 0;
};

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

  RankTraffic traffic(uint32_t rank) const;

 private:
  // Takes in what arrives until `done`, at most until the deadline.
  template <class Done>
  void collect_until(Deadline deadline, const Done& done);

  std::vector<Socket> sockets_;                            // by rank
  std::vector<std::map<uint64_t, ActorTelemetry>> heard_;  // by rank and incarnation
  std::vector<uint64_t> answers_;                          // by rank
};

}  // namespace optlease
