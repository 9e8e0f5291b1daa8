// What an actor tells the world about itself: one flat JSON document (docs/MONITORING.md),
// published on its PUB socket and answered in full on its snapshot socket. Used by GPU actors
// (writing) and monitors (reading). Nobody has to listen, and nobody who listens badly costs the
// actor anything.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/runtime/step_times.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"
#include "shm/contract/ids.h"
#include "shm/contract/messages.h"
#include "shm/contract/status.h"

namespace optlease {

inline constexpr uint32_t kTelemetrySchema = 2;

// Where the last whole step's time went, in seconds; the stages follow one another.
struct StepTimeline {
  double wait_peers = 0;
  double reduce = 0;  // with the norm
  double wait_open = 0;
  double stream = 0;
  double wait_committed = 0;
  double gather = 0;
};

// Totals count since the incarnation started. Doubles that are not known are NaN (JSON null).
struct ActorTelemetry {
  // Who. `sequence` and `time_seconds` are filled in by the publisher.
  std::string job;
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  uint32_t pid = 0;
  std::string device;
  uint64_t sequence = 0;    // of the last published document; from 1 in each incarnation
  double time_seconds = 0;  // Unix time
  // Where it is.
  Phase phase = Phase::kStarting;
  Step step_committed = kNoStep;
  Step step = kNoStep;       // being worked on
  uint32_t chunks_done = 0;  // of that step
  uint32_t chunks_total = 0;
  // Traffic and time.
  uint64_t h2d_bytes_total = 0;
  uint64_t d2h_bytes_total = 0;
  uint64_t bounced_bytes_total = 0;      // of both: not pinned, copied twice
  double step_h2d_bytes_per_second = 0;  // of the last whole step
  double step_d2h_bytes_per_second = 0;
  double lease_wait_seconds_total = 0;
  uint64_t leases_deferred_total = 0;      // granted only when credit came free
  double credit_wait_seconds_total = 0;    // of those, from asked to granted, summed over windows
  double exposed_stall_seconds_total = 0;  // link idle although chunks were left to move
  double step_lease_wait_seconds = 0;      // of both, what came since the step before the last
  double step_exposed_stall_seconds = 0;
  double kernel_seconds_total = 0;
  // Events.
  uint64_t commits_total = 0;  // chunks
  uint64_t refusals_total = 0;
  uint64_t restarts_total = 0;  // of this rank's actor
  // Memory.
  uint64_t staging_bytes = 0;
  uint64_t staging_peak_bytes = 0;
  uint64_t staging_budget_bytes = 0;
  uint64_t pinned_bytes = 0;       // of the rank's arena, by now
  uint64_t pin_refused_bytes = 0;  // of it, what cannot be
  uint64_t resident_bytes = 0;     // slots of the state's part that stays on the device
  uint64_t rss_bytes = 0;          // host memory of the process, mapped segments included
  uint64_t private_bytes = 0;      // of it, what no segment and no file is behind
  // Steps.
  uint64_t steps_total = 0;
  uint64_t steps_skipped_total = 0;
  double step_seconds = 0;  // the last one
  StepTimeSummary step_seconds_history;
  StepTimeline timeline;
  double grad_norm = std::nan("");
};

std::string to_json(const ActorTelemetry& telemetry);
// Missing or ill-typed fields are errors; unknown ones are not (a newer actor may say more).
// WrongVersion: another schema.
Result<ActorTelemetry> telemetry_from_json(const std::string& text);
// Every key of the document, in order.
std::vector<std::string> telemetry_field_names();

// Owns the actor's PUB and snapshot sockets. Belongs to one thread. Nothing here blocks or fails
// because of a peer.
class TelemetryPublisher {
 public:
  // `take_over`: as SocketOptions::take_over_path.
  static Result<TelemetryPublisher> open(SocketContext& context, const RunDirectory& directory,
                                         Rank rank, uint64_t interval_ms, bool take_over = false);

  // True when the next document is due; use it to skip the gathering of numbers.
  bool due(int64_t now_ms) const { return now_ms >= next_ms_; }
  // Publishes if due. Returns whether it did.
  bool publish(const ActorTelemetry& telemetry, int64_t now_ms);
  // Answers the requests that wait on the snapshot socket, at most kSnapshotsPerCall of them.
  void answer_snapshots(const ActorTelemetry& telemetry);

  // At an orderly end, instead: one document more to each of those that asked last, asked for or
  // not. It is on its way when the publisher ends.
  void answer_last(const ActorTelemetry& telemetry);

  Socket* snapshot_socket() { return &snapshot_; }  // for poll_sockets

  static constexpr int kSnapshotsPerCall = 32;
  static constexpr size_t kAskersMax = 16;

 private:
  TelemetryPublisher(Socket pub, Socket snapshot, uint64_t interval_ms);
  std::string document(const ActorTelemetry& telemetry) const;

  Socket pub_;
  Socket snapshot_;
  int64_t interval_ms_;
  int64_t next_ms_ = 0;
  uint64_t sequence_ = 0;
  std::vector<std::string> askers_;  // their routing ids, the last kAskersMax of them
};

}  // namespace optlease
