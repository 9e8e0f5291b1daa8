#include "actors/host_store/host_store.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "actors/host_store/outbox.h"
#include "actors/host_store/peer_guard.h"
#include "actors/host_store/segments.h"
#include "actors/host_store/store_service.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/job_plan.h"
#include "actors/runtime/lifeline.h"
#include "actors/runtime/log.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"
#include "shm/kill_point.h"
#include "shm/name_watch.h"
#include "shm/processes.h"
#include "shm/shared_buffer.h"

namespace optlease {
namespace {

constexpr int kBatchMessages = 512;  // handled before anything is sent and time is looked at
constexpr int kPollMsMax = 1000;
constexpr int kPollMsWhileWaiting = 5;  // a peer's queue is full
constexpr int64_t kNameCheckMs = 1000;
constexpr int64_t kLastWordsMs = 1000;

uint64_t clock_ms() { return static_cast<uint64_t>(now_ms()); }

ExitCode failed(const Status& why, ExitCode code) {
  log_error("%s (exit code %d, %s)", why.text().c_str(), static_cast<int>(code), name_of(code));
  return code;
}

// SIGTERM and, for a store that was started by hand, SIGINT. Under a launcher an interrupt from the
// terminal reaches the launcher too, which stops the trainers first: it decides.
Result<UniqueFd> open_signals(bool with_interrupt) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  if (with_interrupt) sigaddset(&signals, SIGINT);
  UniqueFd fd(::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd) return Status{StatusCode::kIo, format("signalfd: %s", ::strerror(errno))};
  return fd;
}

class HostStore {
 public:
  HostStore(Socket socket, Lifeline lifeline, UniqueFd signals, StoreService service,
            NameWatch names, std::string control, PeerGuard guard, uint64_t stop_ttl_ms)
      : socket_(std::move(socket)),
        lifeline_(std::move(lifeline)),
        signals_(std::move(signals)),
        service_(std::move(service)),
        names_(std::move(names)),
        control_(std::move(control)),
        guard_(std::move(guard)),
        stop_ttl_ms_(stop_ttl_ms) {}

  ExitCode run() {
    while (!service_.finished()) {
      if (const Status polled = poll(); !polled.is_ok()) return failed(polled, ExitCode::kIo);
      if (lifeline_.closed()) {
        log_warn("the launcher is gone: ending at once, the state stays");
        return ExitCode::kLauncherLost;
      }
      take_signals();
      receive_batch();
      service_.settle(clock_ms());
      outbox_.flush(socket_, service_.outgoing());
      check_names();
    }
    KILL_POINT("store.finished");
    deliver_last_words();
    KILL_POINT("store.last_words_said");
    log_info("stopped: %s; %llu refusals, %llu frames of strangers, %llu frames not delivered",
             service_.describe().c_str(), static_cast<unsigned long long>(service_.refusals()),
             static_cast<unsigned long long>(service_.strangers_dropped()),
             static_cast<unsigned long long>(outbox_.dropped()));
    return ExitCode::kOk;
  }

 private:
  // "Stop" may still wait behind a peer that reads slowly.
  void deliver_last_words() {
    const Deadline deadline = Deadline::after_ms(kLastWordsMs);
    while (outbox_.waiting() && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMsWhileWaiting));
      outbox_.flush(socket_, service_.outgoing());
    }
  }

  Status poll() {
    const uint64_t now = clock_ms();
    const uint64_t deadline = service_.next_deadline_ms();
    int timeout_ms = outbox_.waiting() ? kPollMsWhileWaiting : kPollMsMax;
    if (deadline <= now) {
      timeout_ms = 0;
    } else if (deadline - now < static_cast<uint64_t>(timeout_ms)) {
      timeout_ms = static_cast<int>(deadline - now);
    }
    PollSet set{.sockets = {&socket_}, .fds = {signals_.get()}};
    if (lifeline_.fd() >= 0) set.fds.push_back(lifeline_.fd());
    std::vector<bool> ready;
    return poll_sockets(set, timeout_ms, &ready);
  }

  void take_signals() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      log_info(
          "signal %u from pid %u: stopping at the next step boundary, in %llu ms at the latest",
          info.ssi_signo, info.ssi_pid, static_cast<unsigned long long>(stop_ttl_ms_));
      service_.stop(stop_ttl_ms_, clock_ms());
    }
  }

  void receive_batch() {
    const uint64_t now = clock_ms();
    for (int i = 0; i < kBatchMessages && socket_.receive(&message_); ++i) {
      const PeerGuard::Verdict verdict = guard_.check(message_.peer, message_.pid);
      service_.handle(message_.peer, message_.frame, now, verdict.status);
      if (!verdict.status.is_ok() && verdict.is_new) {
        log_warn("refused: %s: %s", verdict.status.message().c_str(),
                 describe_process(message_.pid).c_str());
      }
    }
  }

  void check_names() {
    if (now_ms() < next_name_check_ms_) return;
    next_name_check_ms_ = now_ms() + kNameCheckMs;
    // A predecessor that is still dying, or a probe, may have the mark: it is no reason to end.
    if (!served_) served_ = names_.serve(control_).is_ok();
    for (const std::string& lost : names_.lost_now()) {
      log_error(
          "%s was removed or replaced by somebody else. The mapped state is intact and the job "
          "goes on, but a restarted process cannot find it: `optlease stop --keep` saves it",
          lost.c_str());
    }
  }

  Socket socket_;
  Lifeline lifeline_;
  UniqueFd signals_;
  StoreService service_;
  NameWatch names_;
  const std::string control_;  // the control segment's name
  PeerGuard guard_;
  bool served_ = false;
  Outbox outbox_;
  Message message_;
  const uint64_t stop_ttl_ms_;
  int64_t next_name_check_ms_ = 0;
};

StoreOptions options_of(const JobPlan& plan, const ChildArgs& args) {
  return {.lease_ms = plan.restart.lease_ms,
          .quarantine_grace_ms = plan.restart.quarantine_grace_ms,
          .all_older_reaped = args.all_older_reaped,
          .keep_state = plan.keep_state,
          .credits = {.ceiling_bytes = plan.in_flight_bytes,
                      .windows_ahead = plan.segment.prefetch_windows + 1}};
}

}  // namespace

ExitCode run_host_store(const ChildArgs& args) {
  Result<Lifeline> lifeline = Lifeline::adopt(args.lifeline_fd);
  if (!lifeline) return failed(lifeline.status(), ExitCode::kUsage);
  const Result<RunDirectory> directory = RunDirectory::of(args.job);
  if (!directory) return failed(directory.status(), ExitCode::kUsage);
  const Status own = directory.value().check();
  if (!own && own.code() != StatusCode::kNotFound) return failed(own, exit_code_for(own));
  const Result<JobPlan> plan = read_job_plan(directory.value().job_file());
  if (!plan) return failed(plan.status(), ExitCode::kBadConfiguration);
  Result<UniqueFd> signals = open_signals(args.lifeline_fd < 0);
  if (!signals) return failed(signals.status(), ExitCode::kIo);

  // The socket first: whoever holds it is the job's only store, and may touch the segments.
  SocketContext context;
  Result<Socket> socket =
      Socket::bind(context, Socket::Type::kRouter, directory.value().store_socket());
  if (!socket) {
    const bool taken = socket.status().code() == StatusCode::kAlreadyExists;
    return failed(socket.status(), taken ? ExitCode::kAlreadyRunning : ExitCode::kIo);
  }
  KILL_POINT("store.bound");
  const SegmentNames names = segment_names(directory.value(), plan.value().segment.world_size);
  Result<ChunkStore> store = open_segments(plan.value(), names, args.create);
  if (!store) return failed(store.status(), exit_code_for_segments(store.status()));
  std::vector<std::string> watched = names.arenas;
  watched.push_back(names.control);
  Result<NameWatch> watch = NameWatch::over(watched);
  if (!watch) return failed(watch.status(), exit_code_for(watch.status()));
  Result<StoreService> service =
      StoreService::start(std::move(store).value(), options_of(plan.value(), args), clock_ms());
  if (!service) return failed(service.status(), exit_code_for(service.status()));
  KILL_POINT("store.recovered");
  log_info("%s: %s", args.create ? "created" : "recovered", service.value().describe().c_str());

  // Half of what the launcher waits before it kills: the actors need the rest.
  const uint64_t stop_ttl_ms = plan.value().restart.stop_timeout_ms / 2;
  HostStore host_store(std::move(socket).value(), std::move(lifeline).value(),
                       std::move(signals).value(), std::move(service).value(),
                       std::move(watch).value(), names.control,
                       PeerGuard(args.lifeline_fd < 0 ? 0 : ::getppid()), stop_ttl_ms);
  return host_store.run();
}

}  // namespace optlease
