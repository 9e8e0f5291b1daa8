#include "launcher/supervisor.h"

#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <fstream>

#include "actors/runtime/child_args.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/exception_status.h"
#include "actors/runtime/lifeline.h"
#include "actors/runtime/log.h"
#include "launcher/job_state.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

constexpr int64_t kQueryMs = 50;           // between status queries
constexpr int64_t kQueryMsMeasuring = 10;  // while a recovery is being measured
constexpr int64_t kSecondMs = 1000;
constexpr int kWaitMsMax = 50;
constexpr int kWaitMsRestart = 2;                      // while a process waits for its restart
constexpr int kSnapshotMs = 500;                       // for the last telemetry before the stop
constexpr uint64_t kReserveBytesPerMs = 256ull << 10;  // a slow machine's zeroing of shared memory
constexpr int kLastWordsMs = 100;  // on their way from processes that have ended
constexpr int kDestructorReapMs = 2000;
constexpr uint64_t kStallHeartbeats = 3;  // an actor that is silent was killed before

uint64_t now() { return static_cast<uint64_t>(now_ms()); }

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  return set;
}

CoreOptions core_options(const SupervisorSetup& setup, const JobClaim& claim) {
  CoreOptions options;
  options.world_size = setup.plan.segment.world_size;
  options.trainers = !setup.plan.trainer.command.empty();
  options.steps = setup.plan.steps;
  options.restart = setup.plan.restart;
  options.store_start_timeout_ms =
      setup.plan.restart.start_timeout_ms + setup.planned_shm_bytes / kReserveBytesPerMs;
  options.last_incarnation = claim.last_incarnation;
  options.step_committed = claim.step_committed;
  return options;
}

// Private memory of a process: what it adds to the node beyond shared segments and program files.
uint64_t private_bytes(pid_t pid) {
  std::ifstream file(format("/proc/%d/status", static_cast<int>(pid)));
  std::string key;
  uint64_t kilobytes = 0;
  while (file >> key) {
    if (key == "RssAnon:" && file >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

// None where it cannot be made: the lifeline tells of the death too, only later.
std::unique_ptr<DeathWatch> make_watch(Seat seat) {
  auto watch = DeathWatch::make();
  if (watch) return std::move(watch).value();
  log_warn("%s: its death will be heard of late: %s", text_of(seat).c_str(),
           watch.status().message().c_str());
  return nullptr;
}

}  // namespace

Status block_stop_signals() {
  const sigset_t set = stop_signals();
  if (sigprocmask(SIG_BLOCK, &set, nullptr) != 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR) {
    return {StatusCode::kInternal, "the stop signals cannot be blocked"};
  }
  return Status::ok();
}

Result<std::unique_ptr<Supervisor>> Supervisor::open(SocketContext& context, SupervisorSetup setup,
                                                     const JobClaim& claim) {
  auto control = ControlServer::open(context, claim.run);
  if (!control) return control.status();
  auto vault = Vault::listen(claim.run.vault_socket());
  if (!vault) return vault.status();
  auto telemetry = TelemetryProbe::open(context, claim.run, setup.plan.segment.world_size);
  if (!telemetry) return telemetry.status();
  KILL_POINT("launcher.sockets_bound");
  const sigset_t set = stop_signals();
  UniqueFd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return Status(StatusCode::kIo, "no signalfd for the stop signals");
  return std::unique_ptr<Supervisor>(
      new Supervisor(context, std::move(setup), claim, std::move(control).value(),
                     std::move(vault).value(), std::move(telemetry).value(), std::move(signals)));
}

Supervisor::Supervisor(SocketContext& context, SupervisorSetup setup, const JobClaim& claim,
                       ControlServer control, Vault vault, TelemetryProbe telemetry,
                       UniqueFd signals)
    : context_(context),
      setup_(std::move(setup)),
      claim_(claim),
      core_(core_options(setup_, claim), now()),
      recovery_(now()),
      stall_watch_(kStallHeartbeats * setup_.plan.restart.heartbeat_timeout_ms,
                   !setup_.plan.trainer.command.empty()),
      rehearsals_(setup_.plan.rehearsals, claim.step_committed),
      link_(context, claim.run, "launcher"),
      control_(std::move(control)),
      vault_(std::move(vault)),
      telemetry_(std::move(telemetry)),
      signal_fd_(std::move(signals)),
      totals_(setup_.plan.segment.world_size),
      keep_(setup_.plan.keep_state) {
  for (ProcessPlan& process : make_process_plan(setup_.plan, claim.run, setup_.program_directory)) {
    const bool is_store = process.role == Role::kHostStore;
    const Seat seat{process.role, is_store ? 0 : process.rank};
    processes_[seat] = std::move(process);
  }
}

Supervisor::~Supervisor() {
  for (auto& [key, live] : living_) live.child.signal_group(SIGKILL);
  for (auto& [key, live] : living_) (void)live.child.reap_within(kDestructorReapMs);
}

void Supervisor::run() {
  try {
    loop();
    return;
  } catch (const std::exception& error) {
    if (!end_after(error)) return kill_what_lives();
  }
  try {
    loop();
  } catch (const std::exception&) {
    kill_what_lives();
  }
}

// False where the job cannot even be told to end.
bool Supervisor::end_after(const std::exception& error) {
  try {
    failure_ = status_of(error);
    log_warn("the launcher: %s; it ends the job in order", failure_.message().c_str());
    core_.stop(Ending::kLauncherFailed, "the launcher: " + failure_.message(), now());
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Whom SIGKILL has ended the core no longer waits for.
void Supervisor::kill_what_lives() {
  for (auto& [key, live] : living_) live.child.signal_group(SIGKILL);
  core_.hurry(now());
  for (auto& [key, live] : living_) {
    const auto exit = live.child.reap_within(kDestructorReapMs);
    if (exit) core_.reaped(key.first, key.second, *exit, false, now());
  }
  living_.clear();
}

void Supervisor::loop() {
  while (!core_.finished()) {
    tick();
    act();
    if (core_.finished()) break;
    wait();
    hear_signals();
    hear_children();
    hear_store();
    hear_tools();
    vault_.serve(now());
    telemetry_.collect();
    do_rehearsals();
    answer_restarts();
  }
  const bool in_order = core_.ending() == Ending::kCompleted || core_.ending() == Ending::kStopped;
  if (in_order) telemetry_.collect_last(kLastWordsMs);
}

void Supervisor::wait() {
  PollSet set;
  set.sockets.push_back(control_.socket());
  if (link_.is_open()) set.sockets.push_back(link_.socket());
  set.fds = {signal_fd_.get(), vault_.fd()};
  for (const auto& [key, live] : living_) {
    set.fds.push_back(live.child.pidfd());
    if (live.lifeline_open) set.fds.push_back(live.lifeline.get());
    if (live.lifeline_open && live.watch) set.fds.push_back(live.watch->fd());
  }
  const int64_t until_query = std::max<int64_t>(0, next_query_ms_ - now_ms());
  int timeout = static_cast<int>(std::min<int64_t>(kWaitMsMax, until_query));
  if (core_.restart_is_due()) timeout = std::min(timeout, kWaitMsRestart);
  std::vector<bool> ready;
  const Status polled = poll_sockets(set, timeout, &ready);
  if (!polled.is_ok()) log_warn("poll: %s", polled.message().c_str());
}

void Supervisor::tick() {
  const int64_t at = now_ms();
  if (link_.is_open() && at >= next_query_ms_) {
    link_.query_status();
    const bool short_wait = recovery_.is_measuring() || !store_was_up_;
    next_query_ms_ = at + (short_wait ? kQueryMsMeasuring : kQueryMs);
  } else if (!link_.is_open()) {
    next_query_ms_ = at + kQueryMs;
  }
  link_.flush();
  if (at >= next_second_ms_) {
    next_second_ms_ = at + kSecondMs;
    sample();
  }
  core_.advance(now());
}

// What is worth looking at once a second.
void Supervisor::sample() {
  telemetry_.ask();
  buffer_bytes_peak_ = std::max(buffer_bytes_peak_, vault_.held_bytes());
  uint64_t bytes = 0;
  for (const auto& [key, live] : living_) {
    // The trainers' memory is the user's own.
    if (key.first.role != Role::kTrainer) bytes += private_bytes(live.child.pid());
  }
  process_bytes_peak_ = std::max(process_bytes_peak_, bytes);
  const StatusReplyBody& body = core_.facts().body;
  if (store_was_up_ && body.step_committed != said_step_) {
    said_step_ = body.step_committed;
    say(format("step %lld of %lld", static_cast<long long>(body.step_committed),
               static_cast<long long>(setup_.plan.steps)));
  }
  watch_names();
  if (store_was_up_ && !core_.stopping()) look_for_stalls();
}

void Supervisor::act() {
  if (core_.stopping() && !stop_seen_) {
    stop_seen_ = true;
    KILL_POINT("launcher.stopping");
    say(std::string("stopping: ") + core_.ending_text());
    // The actors still answer: this is the last moment to ask them how it was.
    telemetry_.ask_once_more(kSnapshotMs);
    sample();
  }
  while (true) {
    if (next_action_ == actions_.size()) {
      actions_ = core_.take_actions();
      next_action_ = 0;
      if (actions_.empty()) return;
    }
    // Counted before it is done: one that fails is not done twice, and those after it are done by
    // the next call.
    execute(actions_[next_action_++]);
  }
}

void Supervisor::execute(const Action& action) {
  const auto living = living_.find({action.seat, action.life});
  switch (action.kind) {
    case Action::Kind::kSpawn:
      start_process(action.seat, action.life);
      return;
    case Action::Kind::kKill:
      if (living != living_.end()) kill(action, living->second);
      return;
    case Action::Kind::kTerminate:
      if (living != living_.end()) living->second.child.signal_group(SIGTERM);
      return;
    case Action::Kind::kTellStarted:
      link_.tell(MessageKind::kIncarnationStarted, action.seat.rank, action.life);
      return;
    case Action::Kind::kTellLost:
      KILL_POINT("launcher.before_loss_told");
      link_.tell(MessageKind::kIncarnationLost, action.seat.rank, action.life);
      return;
    case Action::Kind::kTellReaped:
      KILL_POINT("launcher.before_reaping_told");
      link_.tell(MessageKind::kIncarnationReaped, action.seat.rank, action.life);
      return;
    case Action::Kind::kStopStore:
      link_.stop_store(action.ttl_ms);
      KILL_POINT("launcher.store_told_to_stop");
      return;
    case Action::Kind::kNote:
      say(action.text);
      return;
    case Action::Kind::kDied:
      record_death(action);
      return;
    case Action::Kind::kFinish:
      return;
  }
}

ChildArgs Supervisor::args_for(Seat seat, uint64_t life, int lifeline_fd) {
  ChildArgs args;
  args.job = claim_.run.job_name();
  args.rank = seat.rank;
  args.incarnation = life;
  args.lifeline_fd = lifeline_fd;
  if (seat.role == Role::kGpuActor) {
    args.rehearsals = rehearsals_.open_for(seat.rank);
    return args;
  }
  args.all_older_reaped = life == 1;
  // A store that died while it made the segments left something that nobody can use. Once a store
  // was up there is a state, and nothing ever makes a new one in its place.
  if (!store_was_up_ && !claim_.resumed && !state_is_ready(claim_.run)) {
    const Status removed = remove_segments(claim_.run);
    if (!removed.is_ok()) log_warn("%s", removed.message().c_str());
    args.create = true;
  }
  return args;
}

Result<Child> Supervisor::spawn_child(Seat seat, uint64_t life, const ProcessPlan& process,
                                      Live* live) {
  SpawnRequest request;
  request.argv = process.argv;
  request.environment = process.environment;
  request.log_file = process.log_file;
  live->log_file = process.log_file;
  if (seat.role == Role::kTrainer) {
    // The user's own program: it inherits no descriptor; pidfd and parent-death signal remain.
    request.environment.push_back("OPTLEASE_LOSS_FILE=" + claim_.run.path() +
                                  format("/loss.%u.jsonl", seat.rank));
    return spawn(request);
  }
  auto pair = make_lifeline();
  if (!pair) return pair.status();
  live->lifeline = UniqueFd(pair.value().launcher_fd);
  const UniqueFd child_end(pair.value().child_fd);
  ChildProgram program;
  program.has_rank = seat.role == Role::kGpuActor;
  ChildArgs args = args_for(seat, life, child_end.get());
  // Whoever holds the lock's descriptor keeps the job owned, also when the launcher is gone.
  request.kept_fds = {child_end.get(), claim_.lock.fd()};
  // The others' successors wait until they are reaped: an early word would change nothing.
  if (seat.role == Role::kGpuActor) live->watch = make_watch(seat);
  if (live->watch) {
    args.death_page_fd = live->watch->child_fd();
    request.kept_fds.push_back(args.death_page_fd);
  }
  request.argv = to_argv(process.argv[0], program, args);
  live->lifeline_open = true;
  Result<Child> child = spawn(request);
  if (live->watch) live->watch->close_child_fd();
  return child;
}

Status Supervisor::try_to_start(Seat seat, uint64_t life, Live* live) {
  if (seat.role == Role::kHostStore) OPTLEASE_TRY(link_.reconnect());
  auto child = spawn_child(seat, life, processes_.at(seat), live);
  if (!child) return child.status();
  live->child = std::move(child).value();
  return Status::ok();
}

void Supervisor::start_process(Seat seat, uint64_t life) {
  Status started;
  try {
    // Its place first: a process that was forked is always known.
    started = try_to_start(seat, life, &living_[{seat, life}]);
  } catch (const std::exception& error) {
    started = status_of(error);  // no process is left of it: spawn() sees to that
  }
  if (!started.is_ok()) {
    living_.erase({seat, life});
    failure_ = started;
    return core_.spawn_failed(seat, life, started, now());
  }
  say(text_of(seat) + format(" started (incarnation %llu, pid %d)",
                             static_cast<unsigned long long>(life),
                             static_cast<int>(living_.at({seat, life}).child.pid())));
  KILL_POINT("launcher.spawned");
  recovery_.spawned(seat, life, now());
  next_query_ms_ = std::min(next_query_ms_, now_ms() + kQueryMsMeasuring);
}

}  // namespace optlease
