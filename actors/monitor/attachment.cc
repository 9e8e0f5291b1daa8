#include "actors/monitor/attachment.h"

#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr int kFramesPerSocket = 64;  // in one call

}  // namespace

Result<JobAttachment> JobAttachment::attach(SocketContext& context, const RunDirectory& directory,
                                            uint32_t world_size) {
  JobAttachment attachment;
  SocketOptions options;
  options.message_bytes_max = kTelemetryBytesMax;
  options.linger_ms = 0;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    options.send_high_water_mark = 1000;
    Result<Socket> subscriber = Socket::connect(context, Socket::Type::kSub,
                                                directory.telemetry_socket(Rank(rank)), options);
    if (!subscriber) return subscriber.status();
    attachment.subscribers_.push_back(std::move(subscriber).value());
    options.send_high_water_mark = 1;  // an absent actor is not asked a hundred times at once later
    Result<Socket> requester = Socket::connect(context, Socket::Type::kDealer,
                                               directory.snapshot_socket(Rank(rank)), options);
    if (!requester) return requester.status();
    attachment.requesters_.push_back(std::move(requester).value());
  }
  return attachment;
}

void JobAttachment::ask(const MonitorState& state, int64_t now_ms) {
  if (now_ms < next_ask_ms_) return;
  next_ask_ms_ = now_ms + kAskAgainMs;
  for (size_t rank = 0; rank < requesters_.size(); ++rank) {
    if (state.ranks()[rank].last) continue;
    // Busy: the last question still waits for the actor to appear.
    (void)requesters_[rank].send({{}, "snapshot"});
  }
}

Status JobAttachment::receive(int timeout_ms, std::vector<Update>* updates) {
  PollSet set;
  for (Socket& socket : requesters_) set.sockets.push_back(&socket);
  for (Socket& socket : subscribers_) set.sockets.push_back(&socket);
  std::vector<bool> ready;
  OPTLEASE_TRY(poll_sockets(set, timeout_ms, &ready));
  Message message;
  for (size_t i = 0; i < ready.size(); ++i) {
    if (!ready[i]) continue;
    const bool is_snapshot = i < requesters_.size();
    const auto rank = static_cast<uint32_t>(is_snapshot ? i : i - requesters_.size());
    const auto source =
        is_snapshot ? MonitorState::Source::kSnapshot : MonitorState::Source::kPublished;
    for (int taken = 0; taken < kFramesPerSocket && set.sockets[i]->receive(&message); ++taken) {
      updates->push_back({rank, source, message.frame});
    }
  }
  return Status::ok();
}

}  // namespace optlease
