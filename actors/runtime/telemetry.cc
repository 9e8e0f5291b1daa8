#include "actors/runtime/telemetry.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "actors/runtime/log.h"
#include "shm/contract/limits.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;

// A monitor that falls behind loses documents and counts the gap; the actor keeps only this many.
constexpr int kTelemetryHighWaterMark = 16;
constexpr int kSnapshotHighWaterMark = 64;
// Requests are short; whoever sends more is dropped.
constexpr int64_t kSnapshotRequestBytesMax = 4096;

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

bool parse_phase(const std::string& text, Phase* out) {
  for (uint32_t number = 0; number <= static_cast<uint32_t>(Phase::kStopping); ++number) {
    if (!is_phase(number) || text != name_of(static_cast<Phase>(number))) continue;
    *out = static_cast<Phase>(number);
    return true;
  }
  return false;
}

struct Writer {
  Json document = {{"schema", kTelemetrySchema}};

  template <class T>
  void operator()(const char* key, const T& value) {
    if constexpr (std::is_same_v<T, Phase>) {
      document[key] = name_of(value);
    } else if constexpr (std::is_same_v<T, double>) {
      document[key] = std::isfinite(value) ? Json(value) : Json(nullptr);
    } else {
      document[key] = value;
    }
  }
};

struct Reader {
  const Json& document;
  std::string error;

  template <class T>
  void operator()(const char* key, T& out) {
    const auto found = document.find(key);
    if (!error.empty()) return;
    if (found == document.end()) {
      error = format("'%s' is missing", key);
    } else if (!read(*found, out)) {
      error = format("'%s' has the wrong type or is out of range", key);
    }
  }

  static bool read(const Json& json, std::string& out) {
    if (!json.is_string()) return false;
    out = json.get<std::string>();
    return true;
  }
  static bool read(const Json& json, Phase& out) {
    return json.is_string() && parse_phase(json.get<std::string>(), &out);
  }
  static bool read(const Json& json, double& out) {
    if (!json.is_number() && !json.is_null()) return false;
    out = json.is_null() ? std::nan("") : json.get<double>();
    return true;
  }
  template <class T>
  requires std::is_integral_v<T>
  static bool read(const Json& json, T& out) {
    if (!json.is_number_integer()) return false;
    const bool fits = json.is_number_unsigned() ? std::in_range<T>(json.get<uint64_t>())
                                                : std::in_range<T>(json.get<int64_t>());
    if (fits) out = json.get<T>();
    return fits;
  }
};

double unix_seconds() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(
             std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count()) /
         1000.0;
}

}  // namespace

std::string to_json(const ActorTelemetry& telemetry) {
  Writer writer;
  fields(writer, telemetry);
  // Job and device names come from outside: bytes that are no UTF-8 are replaced, never thrown on.
  return writer.document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ActorTelemetry> telemetry_from_json(const std::string& text) {
  const Json document = Json::parse(text, nullptr, false);
  const auto invalid = [](const std::string& rule) {
    return Status(StatusCode::kInvalidArgument, "the telemetry document is invalid: " + rule);
  };
  if (!document.is_object()) return invalid("it is no JSON object");
  const auto schema = document.find("schema");
  if (schema == document.end() || !schema->is_number_unsigned()) {
    return invalid("'schema' is missing or no number");
  }
  if (schema->get<uint64_t>() != kTelemetrySchema) {
    return Status(StatusCode::kWrongVersion,
                  format("telemetry schema %s; this program reads %u: use the monitor of the same "
                         "build as the job",
                         schema->dump().c_str(), kTelemetrySchema));
  }
  ActorTelemetry telemetry;
  Reader reader{document, {}};
  fields(reader, telemetry);
  if (!reader.error.empty()) return invalid(reader.error);
  return telemetry;
}

std::vector<std::string> telemetry_field_names() {
  Writer writer;
  const ActorTelemetry empty;
  fields(writer, empty);
  std::vector<std::string> names;
  for (const auto& item : writer.document.items()) names.push_back(item.key());
  return names;
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
    // A monitor that left or does not read its answers is its own loss.
    const Status sent = snapshot_.send({request.peer, frame});
    if (!sent) log_debug("snapshot: %s", sent.text().c_str());
  }
}

std::string TelemetryPublisher::document(const ActorTelemetry& telemetry) const {
  ActorTelemetry filled = telemetry;
  filled.sequence = sequence_;
  filled.time_seconds = unix_seconds();
  return to_json(filled);
}

}  // namespace optlease
