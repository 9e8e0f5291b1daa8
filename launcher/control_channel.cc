#include "launcher/control_channel.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "actors/runtime/clock.h"
#include "launcher/job_place.h"
#include "shm/contract/limits.h"

namespace optlease {
namespace {

using nlohmann::json;

constexpr int64_t kLiveCheckMs = 500;
constexpr int64_t kRequestBytesMax = 4096;
// Replies list every process of a job: more than kRankCountMax lines of JSON never come together.
constexpr int64_t kReplyBytesMax = 4 << 20;

const char* name_of(ControlRequest::Command command) {
  switch (command) {
    case ControlRequest::Command::kStatus:
      return "status";
    case ControlRequest::Command::kRestart:
      return "restart";
    case ControlRequest::Command::kStop:
      return "stop";
  }
  return "?";
}

json process_json(const ProcessStatus& process) {
  json out = {{"role", process.role},
              {"rank", process.rank},
              {"pid", process.pid},
              {"incarnation", process.incarnation},
              {"state", process.state}};
  if (!process.phase.empty()) {
    out["phase"] = process.phase;
    out["step"] = process.step;
  }
  if (!process.phase.empty() || process.role == "host_store") out["silent_ms"] = process.silent_ms;
  return out;
}

}  // namespace

std::string to_json(const ControlRequest& request) {
  json out = {{"command", name_of(request.command)}};
  if (request.command == ControlRequest::Command::kRestart) out["rank"] = request.rank;
  if (request.keep) out["keep"] = *request.keep;
  return out.dump();
}

Result<ControlRequest> control_request_from_json(const std::string& text) {
  const json in = json::parse(text, nullptr, false);
  const auto refuse = [](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, why);
  };
  if (!in.is_object()) return refuse("the request is no JSON object");
  const auto command = in.find("command");
  if (command == in.end() || !command->is_string()) return refuse("\"command\" is missing");
  ControlRequest out;
  const std::string name = command->get<std::string>();
  if (name == "status") return out;
  if (name == "restart") {
    out.command = ControlRequest::Command::kRestart;
    const auto rank = in.find("rank");
    if (rank == in.end() || !rank->is_number_unsigned()) return refuse("\"rank\" is no number");
    const uint64_t value = rank->get<uint64_t>();
    if (value >= kRankCountMax) return refuse("\"rank\" is larger than any job's");
    out.rank = static_cast<uint32_t>(value);
    return out;
  }
  if (name == "stop") {
    out.command = ControlRequest::Command::kStop;
    const auto keep = in.find("keep");
    if (keep == in.end() || keep->is_null()) return out;
    if (!keep->is_boolean()) return refuse("\"keep\" is neither true, false nor null");
    out.keep = keep->get<bool>();
    return out;
  }
  return refuse("the command is none of status, restart, stop");
}

std::string error_reply_json(ExitCode code, const std::string& text) {
  return json{{"ok", false}, {"error", text}, {"code", static_cast<int>(code)}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

std::string to_json(const JobStatus& status) {
  json processes = json::array();
  for (const ProcessStatus& process : status.processes) processes.push_back(process_json(process));
  return json{{"ok", true},
              {"job", status.job},
              {"state", status.state},
              {"device", status.device},
              {"world_size", status.world_size},
              {"steps", status.steps},
              {"step_committed", status.step_committed},
              {"step_open", status.step_open},
              {"steps_skipped", status.steps_skipped},
              {"commits", status.commits},
              {"refusals", status.refusals},
              {"restarts", status.restarts},
              {"processes", std::move(processes)}}
      .dump();
}

Result<ControlServer> ControlServer::open(SocketContext& context, const RunDirectory& run) {
  SocketOptions options;
  options.message_bytes_max = kRequestBytesMax;
  auto socket = Socket::bind(context, Socket::Type::kRouter, run.launcher_socket(), options);
  if (!socket) return socket.status();
  return ControlServer(std::move(socket).value());
}

std::optional<ControlServer::Received> ControlServer::receive() {
  Message message;
  while (socket_.receive(&message)) {
    const auto request = control_request_from_json(message.frame);
    if (request) return Received{message.peer, request.value()};
    reply(message.peer, error_reply_json(ExitCode::kUsage, request.status().message()));
  }
  return std::nullopt;
}

void ControlServer::reply(const std::string& peer, const std::string& json_text) {
  // A tool that went away does not need its answer.
  (void)socket_.send(Message{peer, json_text}).is_ok();
}

Result<std::string> ask_launcher(SocketContext& context, const RunDirectory& run,
                                 const ControlRequest& request, uint64_t timeout_ms,
                                 const std::function<Status()>& alive) {
  SocketOptions options;
  options.message_bytes_max = kReplyBytesMax;
  options.linger_ms = 0;
  auto socket = Socket::connect(context, Socket::Type::kDealer, run.launcher_socket(), options);
  if (!socket) return socket.status();
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(timeout_ms));
  OPTLEASE_TRY(socket.value().send(Message{"", to_json(request)}));
  Message reply;
  int64_t looked_ms = now_ms();
  while (!deadline.passed()) {
    std::vector<bool> ready;
    OPTLEASE_TRY(poll_sockets({{&socket.value()}, {}}, deadline.remaining_ms(200), &ready));
    if (socket.value().receive(&reply)) return reply.frame;
    if (now_ms() - looked_ms < kLiveCheckMs) continue;
    looked_ms = now_ms();
    OPTLEASE_TRY(alive());
  }
  std::string who = lock_holders_text(run);
  who = who.empty() ? ", or the job runs from another run directory (XDG_RUNTIME_DIR)"
                    : "; its lock is open in " + who;
  return Status(StatusCode::kTimeout,
                format("the launcher of job %s did not answer within %llu ms (%s): it is stopped "
                       "or busy, or gone and a child of it is left%s",
                       run.job_name().c_str(), static_cast<unsigned long long>(timeout_ms),
                       run.launcher_socket().c_str(), who.c_str()));
}

}  // namespace optlease
