#include "actors/runtime/telemetry.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/runtime/json_fields.h"
#include "actors/runtime/log.h"
#include "shm/contract/limits.h"

namespace optlease {
namespace {

// A monitor that falls behind loses documents and counts the gap; the actor keeps only this many.
constexpr int kTelemetryHighWaterMark = 16;
constexpr int kSnapshotHighWaterMark = 64;
// Requests are short; whoever sends more is dropped.
constexpr int64_t kSnapshotRequestBytesMax = 4096;
// What an end waits at most for a peer that does not read.
constexpr int kLastWordsMs = 50;

// Every key with its member, in the document's order, once for writer and reader.
template <class Archive, class Telemetry>
void fields(Archive& a, Telemetry& t) {
  a("job", t.job);
  a("rank", t.rank);
  a("incarnation", t.incarnation);
  a("pid", t.pid);
  a("device", t.device);
  a("sequence", t.sequence);
  a("time_seconds", t.time_seconds);
  a("phase", t.phase);
  a("optlease_actor_step_committed", t.step_committed);
  a("optlease_actor_step", t.step);
  a("optlease_actor_step_chunks_done", t.chunks_done);
  a("optlease_actor_step_chunks", t.chunks_total);
  a("optlease_actor_h2d_bytes_total", t.h2d_bytes_total);
  a("optlease_actor_d2h_bytes_total", t.d2h_bytes_total);
  a("optlease_actor_bounced_bytes_total", t.bounced_bytes_total);
  a("optlease_actor_step_h2d_bytes_per_second", t.step_h2d_bytes_per_second);
  a("optlease_actor_step_d2h_bytes_per_second", t.step_d2h_bytes_per_second);
  a("optlease_actor_lease_wait_seconds_total", t.lease_wait_seconds_total);
  a("optlease_actor_leases_deferred_total", t.leases_deferred_total);
  a("optlease_actor_credit_wait_seconds_total", t.credit_wait_seconds_total);
  a("optlease_actor_exposed_stall_seconds_total", t.exposed_stall_seconds_total);
  a("optlease_actor_step_lease_wait_seconds", t.step_lease_wait_seconds);
  a("optlease_actor_step_exposed_stall_seconds", t.step_exposed_stall_seconds);
  a("optlease_actor_kernel_seconds_total", t.kernel_seconds_total);
  a("optlease_actor_commits_total", t.commits_total);
  a("optlease_actor_refusals_total", t.refusals_total);
  a("optlease_actor_restarts_total", t.restarts_total);
  a("optlease_actor_staging_bytes", t.staging_bytes);
  a("optlease_actor_staging_peak_bytes", t.staging_peak_bytes);
  a("optlease_actor_staging_budget_bytes", t.staging_budget_bytes);
  a("optlease_actor_pinned_bytes", t.pinned_bytes);
  a("optlease_actor_pin_refused_bytes", t.pin_refused_bytes);
  a("optlease_actor_resident_bytes", t.resident_bytes);
  a("optlease_actor_rss_bytes", t.rss_bytes);
  a("optlease_actor_private_bytes", t.private_bytes);
  a("optlease_actor_steps_total", t.steps_total);
  a("optlease_actor_steps_skipped_total", t.steps_skipped_total);
  a("optlease_actor_step_seconds", t.step_seconds);
  a("optlease_actor_step_seconds_p50", t.step_seconds_history.p50);
  a("optlease_actor_step_seconds_p90", t.step_seconds_history.p90);
  a("optlease_actor_step_seconds_p99", t.step_seconds_history.p99);
  a("optlease_actor_step_seconds_max", t.step_seconds_history.max);
  a("optlease_actor_step_wait_peers_seconds", t.timeline.wait_peers);
  a("optlease_actor_step_reduce_seconds", t.timeline.reduce);
  a("optlease_actor_step_wait_open_seconds", t.timeline.wait_open);
  a("optlease_actor_step_stream_seconds", t.timeline.stream);
  a("optlease_actor_step_wait_committed_seconds", t.timeline.wait_committed);
  a("optlease_actor_step_gather_seconds", t.timeline.gather);
  a("optlease_actor_grad_norm", t.grad_norm);
}

double unix_seconds() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(
             std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count()) /
         1000.0;
}

JsonFieldWriter write(const ActorTelemetry& telemetry) {
  JsonFieldWriter writer;
  writer("schema", kTelemetrySchema);
  fields(writer, telemetry);
  return writer;
}

}  // namespace

std::string to_json(const ActorTelemetry& telemetry) { return write(telemetry).text(); }

std::vector<std::string> telemetry_field_names() { return write({}).keys(); }

Result<ActorTelemetry> telemetry_from_json(const std::string& text) {
  const auto invalid = [](const std::string& rule) {
    return Status(StatusCode::kInvalidArgument, "the telemetry document is invalid: " + rule);
  };
  JsonFieldReader reader(text, JsonFieldReader::Nulls::kUnknown);
  uint64_t schema = 0;
  reader("schema", schema);
  if (!reader.error().empty()) return invalid(reader.error());
  if (schema != kTelemetrySchema) {
    return Status(StatusCode::kWrongVersion,
                  format("telemetry schema %llu; this program reads %u: use the monitor of the "
                         "same build as the job",
                         static_cast<unsigned long long>(schema), kTelemetrySchema));
  }
  ActorTelemetry telemetry;
  fields(reader, telemetry);
  if (!reader.error().empty()) return invalid(reader.error());
  return telemetry;
}

Result<TelemetryPublisher> TelemetryPublisher::open(SocketContext& context,
                                                    const RunDirectory& directory, Rank rank,
                                                    uint64_t interval_ms, bool take_over) {
  SocketOptions options;
  options.take_over_path = take_over;
  options.message_bytes_max = kSnapshotRequestBytesMax;
  options.linger_ms = 0;  // nobody is owed telemetry
  options.send_high_water_mark = kTelemetryHighWaterMark;
  options.receive_high_water_mark = kSnapshotHighWaterMark;
  Result<Socket> pub =
      Socket::bind(context, Socket::Type::kPub, directory.telemetry_socket(rank), options);
  if (!pub) return pub.status();
  options.linger_ms = kLastWordsMs;
  Result<Socket> snapshot =
      Socket::bind(context, Socket::Type::kRouter, directory.snapshot_socket(rank), options);
  if (!snapshot) return snapshot.status();
  return TelemetryPublisher(std::move(pub).value(), std::move(snapshot).value(), interval_ms);
}

TelemetryPublisher::TelemetryPublisher(Socket pub, Socket snapshot, uint64_t interval_ms)
    : pub_(std::move(pub)),
      snapshot_(std::move(snapshot)),
      interval_ms_(static_cast<int64_t>(std::max<uint64_t>(interval_ms, 1))) {}

bool TelemetryPublisher::publish(const ActorTelemetry& telemetry, int64_t now_ms) {
  if (!due(now_ms)) return false;
  ++sequence_;
  next_ms_ = now_ms + interval_ms_;
  const Status sent = pub_.send({{}, document(telemetry)});
  if (!sent)
    log_debug("telemetry %llu: %s", static_cast<unsigned long long>(sequence_),
              sent.text().c_str());
  return true;
}

void TelemetryPublisher::answer_snapshots(const ActorTelemetry& telemetry) {
  std::string frame;
  Message request;
  for (int answered = 0; answered < kSnapshotsPerCall; ++answered) {
    if (!snapshot_.receive(&request)) return;
    if (frame.empty()) frame = document(telemetry);
    std::erase(askers_, request.peer);
    if (askers_.size() == kAskersMax) askers_.erase(askers_.begin());
    askers_.push_back(request.peer);
    // A monitor that left or does not read its answers is its own loss.
    const Status sent = snapshot_.send({request.peer, frame});
    if (!sent) log_debug("snapshot: %s", sent.text().c_str());
  }
}

void TelemetryPublisher::answer_last(const ActorTelemetry& telemetry) {
  const std::string frame = document(telemetry);
  for (const std::string& peer : askers_) {
    const Status sent = snapshot_.send({peer, frame});
    if (!sent) log_debug("last snapshot: %s", sent.text().c_str());
  }
}

std::string TelemetryPublisher::document(const ActorTelemetry& telemetry) const {
  ActorTelemetry filled = telemetry;
  filled.sequence = sequence_;
  filled.time_seconds = unix_seconds();
  return to_json(filled);
}

}  // namespace optlease
