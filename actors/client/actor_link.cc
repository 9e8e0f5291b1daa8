#include "actors/client/actor_link.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "actors/client/job_files.h"
#include "shm/kill_point.h"

namespace optlease {

namespace {

constexpr int kRepeatMs = 200;

// False for a stranger's frame and for a late answer to an earlier request.
bool answers(const OpenRequest& request, const std::string& frame) {
  const auto decoded = decode(frame);
  if (!decoded || decoded.value().header.sequence != request.sequence) return false;
  if (decoded.value().kind == request.answer) return true;
  return decoded.value().kind == MessageKind::kRefused &&
         decoded.value().as<RefusedBody>().kind == static_cast<uint16_t>(request.kind);
}

}  // namespace

Status outcome_of(const OpenRequest& request, const std::string& reply) {
  const auto decoded = decode(reply);
  OPTLEASE_CHECK(decoded.is_ok(), "%s", decoded.status().text().c_str());
  const Decoded& frame = decoded.value();
  auto code = StatusCode::kOk;
  if (frame.kind == MessageKind::kStepReply)
    code = static_cast<StatusCode>(frame.as<StepReplyBody>().status);
  if (frame.kind == MessageKind::kRefused) {
    code = static_cast<StatusCode>(frame.as<RefusedBody>().status);
    if (code == StatusCode::kOk) code = StatusCode::kInternal;  // a refusal is never a success
  }
  if (code == StatusCode::kOk) return Status::ok();
  return {code, format("rank %u's actor refused %s: %.*s", frame.header.rank, name_of(request.kind),
                       static_cast<int>(frame.payload.size()), frame.payload.data())};
}

ActorLink::ActorLink(const RunDirectory& directory, uint32_t rank,
                     std::unique_ptr<SocketContext> context, Socket socket)
    : directory_(directory), context_(std::move(context)), socket_(std::move(socket)) {
  speaker_.rank = rank;
}

Result<ActorLink> ActorLink::connect(const RunDirectory& directory, uint32_t rank) {
  auto context = std::make_unique<SocketContext>();
  SocketOptions options;
  options.routing_id = private_routing_id(format("trainer.%d", static_cast<int>(::getpid())));
  // Repeats must not pile up while no actor listens: one that waits is as good as a hundred.
  options.send_high_water_mark = 2;
  auto socket =
      Socket::connect(*context, Socket::Type::kDealer, directory.actor_socket(Rank{rank}), options);
  if (!socket) return socket.status();
  return ActorLink(directory, rank, std::move(context), std::move(socket.value()));
}

Result<std::string> ActorLink::exchange(const OpenRequest& request, Deadline deadline) {
  uint64_t refused_as_busy = 0;
  for (;;) {
    const Status sent = socket_.send(Message{{}, request.frame});
    // Busy: an earlier repeat still waits for an actor to connect to.
    if (!sent && sent.code() != StatusCode::kBusy) return sent;
    KILL_POINT("client.asked");
    const Deadline repeat = Deadline::after_ms(deadline.remaining_ms(kRepeatMs));
    do {
      std::vector<bool> ready;
      OPTLEASE_TRY(poll_sockets(PollSet{{&socket_}, {}}, repeat.remaining_ms(), &ready));
      Message message;
      while (socket_.receive(&message)) {
        if (!answers(request, message.frame)) continue;
        if (outcome_of(request, message.frame).code() != StatusCode::kBusy)
          return std::move(message.frame);
        ++refused_as_busy;
      }
    } while (!repeat.passed());
    OPTLEASE_TRY(check_still_running(directory_));
    if (deadline.passed())
      return Status{StatusCode::kTimeout, what_to_check(request, refused_as_busy)};
  }
}

std::string ActorLink::what_to_check(const OpenRequest& request, uint64_t refused_as_busy) const {
  const std::string path = directory_.actor_socket(Rank{speaker_.rank});
  const std::string who =
      format("rank %u's actor of job '%s'", speaker_.rank, directory_.job_name().c_str());
  if (refused_as_busy > 0)
    return format(
        "%s answered %s %llu times that it is busy, and nothing else in time: `optlease "
        "status` shows which step and which rank it waits for",
        who.c_str(), name_of(request.kind), static_cast<unsigned long long>(refused_as_busy));
  if (::access(path.c_str(), F_OK) != 0)
    return format(
        "%s is not up: %s is not there. Check that `optlease run` still runs, and the "
        "actor's log in %s",
        who.c_str(), path.c_str(), directory_.path().c_str());
  return format(
      "%s did not answer %s in time (its socket %s exists). It may wait for other ranks, "
      "whose trainers must attach and step too, or be between two lives: `optlease status` "
      "and the logs in %s say which",
      who.c_str(), name_of(request.kind), path.c_str(), directory_.path().c_str());
}

void ActorLink::say_detach() {
  // Best effort: the actor needs no goodbye, it only forgets this trainer sooner.
  (void)socket_.send(Message{{}, encode_empty(speaker_, MessageKind::kDetach, ++last_sequence_)});
  KILL_POINT("client.detached");
}

}  // namespace optlease
