// The command line tools' conversation with a running launcher over launcher.sock: one JSON object
// a request, one a reply. Requests: {"command": "status"}, {"command": "restart", "rank": N},
// {"command": "stop", "keep": true|false|null}. Replies have "ok"; where that is false, "error" and
// "code" (an exit code). Both ends are here so that they agree. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/exit_code.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"
#include "shm/contract/status.h"

namespace optlease {

struct ControlRequest {
  enum class Command { kStatus, kRestart, kStop };
  Command command = Command::kStatus;
  uint32_t rank = 0;         // kRestart
  std::optional<bool> keep;  // kStop; nothing: as the job says
};
std::string to_json(const ControlRequest& request);
// InvalidArgument with the words for the sender.
Result<ControlRequest> control_request_from_json(const std::string& text);

std::string error_reply_json(ExitCode code, const std::string& text);

// One process in a status reply.
struct ProcessStatus {
  std::string role;  // launcher | host_store | gpu_actor | trainer
  uint32_t rank = 0;
  int pid = 0;               // 0: no process now
  uint64_t incarnation = 0;  // of an actor; lives so far of others
  std::string state;
  std::string phase;       // of an actor; else empty
  int64_t step = -1;       // of an actor
  uint64_t silent_ms = 0;  // of an actor, to the store; of the store, to the launcher
};
struct JobStatus {
  std::string job;
  std::string state;  // starting | running | stopping
  std::string device;
  uint32_t world_size = 0;
  int64_t steps = 0;
  int64_t step_committed = -1;
  int64_t step_open = -1;
  uint64_t steps_skipped = 0;
  uint64_t commits = 0;
  uint64_t refusals = 0;
  uint64_t restarts = 0;
  std::vector<ProcessStatus> processes;
};
std::string to_json(const JobStatus& status);

// The launcher's end. Requests come with the peer that is to be answered, now or later.
class ControlServer {
 public:
  static Result<ControlServer> open(SocketContext& context, const RunDirectory& run);
  struct Received {
    std::string peer;
    ControlRequest request;
  };
  // Answers malformed requests itself. Nothing: no request waits.
  std::optional<Received> receive();
  void reply(const std::string& peer, const std::string& json);
  Socket* socket() { return &socket_; }

 private:
  explicit ControlServer(Socket socket) : socket_(std::move(socket)) {}
  Socket socket_;
};

// The tool's end. Timeout where no launcher answers within `timeout_ms`; what `alive` says where
// the job ends meanwhile (asked about twice a second).
Result<std::string> ask_launcher(SocketContext& context, const RunDirectory& run,
                                 const ControlRequest& request, uint64_t timeout_ms,
                                 const std::function<Status()>& alive);

}  // namespace optlease
