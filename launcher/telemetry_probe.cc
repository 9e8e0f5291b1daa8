#include "launcher/telemetry_probe.h"

#include <algorithm>

#include "actors/runtime/clock.h"

namespace optlease {

Result<TelemetryProbe> TelemetryProbe::open(SocketContext& context, const RunDirectory& run,
                                            uint32_t world_size) {
  TelemetryProbe probe;
  for (uint32_t r = 0; r < world_size; ++r) {
    SocketOptions options;
    // An actor that does not answer is not asked a thousand times when it comes back.
    options.send_high_water_mark = 2;
    options.linger_ms = 0;
    auto socket =
        Socket::connect(context, Socket::Type::kDealer, run.snapshot_socket(Rank(r)), options);
    if (!socket) return socket.status();
    probe.sockets_.push_back(std::move(socket).value());
  }
  probe.heard_.resize(world_size);
  probe.answers_.resize(world_size);
  return probe;
}

void TelemetryProbe::ask() {
  for (Socket& socket : sockets_) (void)socket.send(Message{"", "snapshot"}).is_ok();
}

void TelemetryProbe::collect() {
  for (size_t r = 0; r < sockets_.size(); ++r) {
    Message message;
    while (sockets_[r].receive(&message)) {
      const auto telemetry = telemetry_from_json(message.frame);
      if (!telemetry) continue;
      ++answers_[r];
      heard_[r][telemetry.value().incarnation] = telemetry.value();
    }
  }
}

void TelemetryProbe::ask_once_more(int timeout_ms) {
  collect();
  const std::vector<uint64_t> before = answers_;
  ask();
  collect_until(Deadline::after_ms(timeout_ms), [&] {
    bool all = true;
    for (size_t r = 0; r < answers_.size(); ++r) all = all && answers_[r] > before[r];
    return all;
  });
}

void TelemetryProbe::collect_last(int timeout_ms) {
  collect_until(Deadline::after_ms(timeout_ms), [&] {
    return std::all_of(heard_.begin(), heard_.end(), [&](const auto& lives) {
      return !lives.empty() && lives.rbegin()->second.phase == Phase::kStopping;
    });
  });
}

template <class Done>
void TelemetryProbe::collect_until(Deadline deadline, const Done& done) {
  while (true) {
    collect();
    if (done() || deadline.passed()) return;
    PollSet set;
    for (Socket& socket : sockets_) set.sockets.push_back(&socket);
    std::vector<bool> ready;
    if (!poll_sockets(set, deadline.remaining_ms(20), &ready).is_ok()) return;
  }
}

}  // namespace optlease
