// What the Supervisor hears: children, the store, tools, signals.
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actors/runtime/clock.h"
#include "actors/runtime/lifeline.h"
#include "actors/runtime/log.h"
#include "launcher/supervisor.h"
#include "shm/eintr.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

constexpr size_t kTailLines = 12;

uint64_t now() { return static_cast<uint64_t>(now_ms()); }

// An end that a restart would only repeat. A trainer's exit codes are its own.
bool is_fatal(Seat seat, const ExitInfo& info) {
  if (seat.role == Role::kTrainer || info.by_signal) return false;
  const auto code = static_cast<ExitCode>(info.code);
  switch (code) {
    case ExitCode::kOk:
    case ExitCode::kReplaced:
    case ExitCode::kLauncherLost:
    case ExitCode::kInterrupted:
    case ExitCode::kAlreadyRunning:
      return false;  // not its own failure: another life may do well
    case ExitCode::kStateExists:
    case ExitCode::kStateAbsent:
      // An actor makes no state: its predecessor's socket, or the store's segment, is on its way.
      return seat.role == Role::kHostStore;
    case ExitCode::kInternal:
    case ExitCode::kUsage:
    case ExitCode::kBadConfiguration:
    case ExitCode::kNoResources:
    case ExitCode::kCrashLoop:
    case ExitCode::kStoreLost:
    case ExitCode::kCorruptState:
    case ExitCode::kTimeout:
    case ExitCode::kNoDevice:
    case ExitCode::kIo:
    case ExitCode::kNotRunning:
    case ExitCode::kTrainerFailed:
      return !restart_can_help(code);
  }
  return false;  // no exit code of ours, such as 126 and 127 of a shell
}

}  // namespace

void Supervisor::hear_children() {
  std::vector<Key> keys;
  for (const auto& [key, live] : living_) keys.push_back(key);
  for (const Key& key : keys) {
    Live& live = living_.at(key);
    hear_lifeline(key, live);  // first: what it said before its death counts
    if (live.lifeline_open && live.dead()) first_sign(key, live);
    reap(key);
  }
}

void Supervisor::hear_lifeline(const Key& key, Live& live) {
  while (live.lifeline_open) {
    const LifelineEvent event = read_lifeline(live.lifeline.get());
    switch (event.kind) {
      case LifelineEvent::Kind::kNothing:
        return;
      case LifelineEvent::Kind::kNoise:
        break;
      case LifelineEvent::Kind::kRehearsal:
        if (!rehearsals_.reached(event.rehearsal, {key.first, key.second})) {
          (void)answer_rehearsal(live.lifeline.get()).is_ok();
        }
        break;
      case LifelineEvent::Kind::kClosed:
        first_sign(key, live);
        break;
    }
  }
}

// It is dead, whatever else of it is still there: the death page says so long before the lifeline.
void Supervisor::first_sign(const Key& key, Live& live) {
  KILL_POINT("launcher.death_seen");
  live.lifeline_open = false;
  core_.lifeline_closed(key.first, key.second, now());
  // The death is recorded while the process's pid is still known.
  act();
  victim_gone({key.first, key.second});
}

void Supervisor::reap(const Key& key) {
  Live& live = living_.at(key);
  siginfo_t info{};
  const auto peek = [&] {
    return waitid(P_PIDFD, static_cast<id_t>(live.child.pidfd()), &info,
                  WEXITED | WNOHANG | WNOWAIT);
  };
  // Reaped already, where the launcher failed before anybody could be told.
  if (!live.child.is_reaped() && (retry_eintr(peek) != 0 || info.si_pid == 0)) return;
  // Its own children must not go on next to a successor; the group's number is still ours.
  live.child.signal_group(SIGKILL);
  const auto exit = live.child.try_reap();
  if (!exit) return;
  KILL_POINT("launcher.reaped");
  const bool fatal = is_fatal(key.first, *exit);
  core_.reaped(key.first, key.second, *exit, fatal, now(),
               fatal ? last_error_of(live.log_file) : "");
  act();
  recovery_.exited(key.first, key.second, *exit, now());
  if (!exit->by_signal && exit->code != 0) {
    const std::string tail = tail_of(live.log_file, kTailLines);
    say(text_of(key.first) + " ended with " + text_of(*exit) +
        (tail.empty() ? " and has written nothing to " + live.log_file
                      : "; the end of " + live.log_file + ":\n" + tail));
  }
  keep_totals(key, live);
  living_.erase(key);
  victim_gone({key.first, key.second});
}

void Supervisor::do_rehearsals() {
  for (const Rehearsals::Wanted& wanted : rehearsals_.to_kill()) {
    // A target that is not there now is killed once it is.
    if (!core_.kill_on_purpose(wanted.target, DeathCause::kRehearsal, now())) continue;
    rehearsals_.killed(wanted.index, {wanted.target, core_.life(wanted.target)});
    act();
  }
}

void Supervisor::victim_gone(LifeOf victim) {
  for (const LifeOf& asker : rehearsals_.gone(victim)) {
    const auto living = living_.find({asker.seat, asker.life});
    if (living == living_.end() || !living->second.lifeline_open) continue;
    (void)answer_rehearsal(living->second.lifeline.get()).is_ok();
  }
}

void Supervisor::hear_signals() {
  signalfd_siginfo info{};
  while (retry_eintr([&] { return read(signal_fd_.get(), &info, sizeof info); }) ==
         static_cast<ssize_t>(sizeof info)) {
    ++signals_;
    if (signals_ == 1) {
      const char* name = sigabbrev_np(static_cast<int>(info.ssi_signo));
      core_.stop(Ending::kStopped, format("SIG%s was received", name != nullptr ? name : "?"),
                 now());
    } else {
      say("a second signal: killing what is left");
      core_.hurry(now());
    }
  }
}

void Supervisor::hear_store() {
  const StoreLink::Arrived arrived = link_.receive();
  if (!arrived.refusal.empty()) log_warn("the store refused: %s", arrived.refusal.c_str());
  if (!arrived.facts) return;
  if (!store_was_up_) open_watch();
  if (!store_was_up_) KILL_POINT("launcher.store_up");
  store_was_up_ = true;
  const Step before = core_.facts().body.step_committed;
  core_.store_answered(*arrived.facts, now());
  if (arrived.facts->body.step_committed > before) KILL_POINT("launcher.step");
  watch_residents();
  for (const DeathRecord& whole : recovery_.store_answered(*arrived.facts, now())) {
    say(text_of(whole.seat) + " recovered: " + timeline_of(whole));
  }
}

void Supervisor::hear_tools() {
  while (auto received = control_.receive()) {
    const ControlRequest& request = received->request;
    switch (request.command) {
      case ControlRequest::Command::kStatus:
        control_.reply(received->peer, to_json(status()));
        break;
      case ControlRequest::Command::kStop:
        if (request.keep) keep_ = *request.keep;
        core_.stop(Ending::kStopped, "`optlease stop` was called", now());
        control_.reply(received->peer, to_json(status()));
        break;
      case ControlRequest::Command::kRestart:
        request_restart(received->peer, request.rank);
        break;
    }
  }
}

void Supervisor::request_restart(const std::string& peer, uint32_t rank) {
  if (rank >= setup_.plan.segment.world_size) {
    control_.reply(peer,
                   error_reply_json(ExitCode::kUsage, format("rank %u: the job has %u ranks", rank,
                                                             setup_.plan.segment.world_size)));
    return;
  }
  const Seat seat{Role::kGpuActor, rank};
  const uint64_t life = core_.life(seat);
  if (!core_.kill_on_purpose(seat, DeathCause::kRequested, now())) {
    control_.reply(peer, error_reply_json(ExitCode::kNotRunning,
                                          format("rank %u's actor is %s: nothing to restart", rank,
                                                 name_of(core_.state(seat)))));
    return;
  }
  restart_waiters_.push_back({peer, rank, life});
  act();
}

void Supervisor::answer_restarts() {
  std::erase_if(restart_waiters_, [&](const RestartWaiter& waiter) {
    const Seat seat{Role::kGpuActor, waiter.rank};
    if (core_.stopping()) {
      control_.reply(waiter.peer, error_reply_json(ExitCode::kNotRunning, "the job is stopping"));
      return true;
    }
    if (core_.state(seat) != SeatState::kRunning || core_.life(seat) <= waiter.old_life) {
      return false;
    }
    control_.reply(waiter.peer, to_json(status()));
    return true;
  });
}

JobStatus Supervisor::status() const {
  const StoreFacts& facts = core_.facts();
  JobStatus out;
  out.job = claim_.run.job_name();
  out.state = core_.stopping() ? "stopping" : store_was_up_ ? "running" : "starting";
  out.device = setup_.plan.device;
  out.world_size = setup_.plan.segment.world_size;
  out.steps = setup_.plan.steps;
  out.step_committed = store_was_up_ ? facts.body.step_committed : claim_.step_committed;
  out.step_open = store_was_up_ ? facts.body.step_open : kNoStep;
  out.steps_skipped = facts.body.steps_skipped;
  out.commits = facts.body.commits;
  out.refusals = facts.body.refusals;
  out.restarts = recovery_.restarts();
  out.processes.push_back({name_of(Role::kLauncher), 0, static_cast<int>(getpid()), 1,
                           core_.stopping() ? "stopping" : "running", "", kNoStep, 0});
  for (const Seat seat : core_.seats()) {
    ProcessStatus process;
    process.role = name_of(seat.role);
    process.rank = seat.rank;
    process.incarnation = core_.life(seat);
    process.state = name_of(core_.state(seat));
    const auto living = living_.find({seat, process.incarnation});
    if (living != living_.end()) process.pid = static_cast<int>(living->second.child.pid());
    if (seat.role == Role::kHostStore) process.silent_ms = core_.store_silent_ms(now());
    if (seat.role == Role::kGpuActor && seat.rank < facts.ranks.size() &&
        facts.ranks[seat.rank].incarnation == process.incarnation) {
      const RankStatus& rank = facts.ranks[seat.rank];
      process.phase = name_of(static_cast<Phase>(rank.phase));
      process.step = rank.step;
      process.silent_ms = rank.silent_ms;
    }
    out.processes.push_back(std::move(process));
  }
  return out;
}

}  // namespace optlease
