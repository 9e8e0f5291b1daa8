#include "tests/simulation/sim_launcher.h"

#include <algorithm>
#include <utility>

#include "actors/runtime/exit_code.h"
#include "actors/wire/codec.h"

namespace optlease {
namespace {

constexpr uint64_t kQueryMs = 50;
constexpr uint64_t kQueryMsStarting = 10;
constexpr uint64_t kWaitMsRestart = 2;

// As is_fatal in supervisor_events.cc.
bool is_fatal(Seat seat, const ExitInfo& info) {
  if (seat.role == Role::kTrainer || info.by_signal) return false;
  const auto code = static_cast<ExitCode>(info.code);
  const bool not_its_own = code == ExitCode::kOk || code == ExitCode::kReplaced ||
                           code == ExitCode::kLauncherLost || code == ExitCode::kInterrupted ||
                           code == ExitCode::kAlreadyRunning;
  return !not_its_own && !restart_can_help(code);
}

}  // namespace

SimLauncher::SimLauncher(SimContext& context, uint64_t number, uint64_t life, Setup setup)
    : SimProcess(context, number, {Role::kLauncher, 0}, life), setup_(std::move(setup)) {}

void SimLauncher::begin() {
  core_.emplace(setup_.core, context_.clock.now_ms());
  turn();
}

void SimLauncher::on_death() {
  if (link() != nullptr) link()->close();
}

void SimLauncher::on_first_sign(Seat seat, uint64_t life) {
  run([this, seat, life] {
    core_->lifeline_closed(seat, life, context_.clock.now_ms());
    act();
    turn_later(0);
  });
}

void SimLauncher::on_reaped(Seat seat, uint64_t life, const ExitInfo& exit) {
  run([this, seat, life, exit] {
    core_->reaped(seat, life, exit, is_fatal(seat, exit), context_.clock.now_ms());
    turn_later(0);
  });
}

void SimLauncher::restart_on_purpose(Seat seat) {
  run([this, seat] {
    (void)core_->kill_on_purpose(seat, DeathCause::kRequested, context_.clock.now_ms());
    act();
  });
}

void SimLauncher::stop() {
  run([this] {
    core_->stop(Ending::kStopped, "`optlease stop` was called", context_.clock.now_ms());
    turn_later(0);
  });
}

void SimLauncher::turn_later(uint64_t delay_us) {
  const uint64_t mine = ++timer_;
  run_after(delay_us, [this, mine] {
    if (mine == timer_) turn();
  });
}

void SimLauncher::turn() {
  if (finished_) return;
  const uint64_t now_ms = context_.clock.now_ms();
  if (link() != nullptr && now_ms >= next_query_ms_) {
    link()->send(encode_empty(Speaker{}, MessageKind::kStatusQuery, ++sequence_), 1);
    next_query_ms_ = now_ms + (store_was_up_ ? kQueryMs : kQueryMsStarting);
  }
  core_->advance(now_ms);
  act();
  if (core_->finished()) {
    finished_ = true;
    return setup_.finished();
  }
  uint64_t wait_ms = core_->restart_is_due() ? kWaitMsRestart : kQueryMs;
  if (link() != nullptr)
    wait_ms = std::min(wait_ms, std::max<uint64_t>(1, next_query_ms_ - now_ms));
  turn_later(wait_ms * 1000);
}

void SimLauncher::act() {
  for (auto actions = core_->take_actions(); !actions.empty(); actions = core_->take_actions()) {
    for (const Action& action : actions) execute(action);
  }
}

void SimLauncher::execute(const Action& action) {
  switch (action.kind) {
    case Action::Kind::kSpawn:
      return spawn(action);
    case Action::Kind::kKill:
      SIM_TRACE(context_, "launcher kills %s: %s", text_of(action.seat).c_str(),
                action.text.c_str());
      return setup_.kill(action.seat, action.life);
    case Action::Kind::kTerminate:
      return setup_.terminate(action.seat, action.life);
    case Action::Kind::kTellStarted:
      return tell(MessageKind::kIncarnationStarted, action);
    case Action::Kind::kTellLost:
      return tell(MessageKind::kIncarnationLost, action);
    case Action::Kind::kTellReaped:
      return tell(MessageKind::kIncarnationReaped, action);
    case Action::Kind::kStopStore:
      if (link() == nullptr) return;
      link()->send(encode(Speaker{}, MessageKind::kStopStore, ++sequence_,
                          HoldBody{kNoStep, 0, action.ttl_ms}));
      return;
    case Action::Kind::kNote:
      SIM_TRACE(context_, "launcher: %s", action.text.c_str());
      return;
    case Action::Kind::kDied:
    case Action::Kind::kFinish:
      return;
  }
}

void SimLauncher::spawn(const Action& action) {
  const bool is_store = action.seat.role == Role::kHostStore;
  if (is_store) {
    if (link() != nullptr) link()->close();
    links_.push_back(std::make_unique<SimLink>(
        context_, [this](std::string frame) { setup_.to_store(std::move(frame)); },
        [this](std::string frame) { run([this, frame = std::move(frame)] { on_frame(frame); }); }));
  }
  const bool create = is_store && !store_was_up_ && !setup_.resumed && !setup_.state_is_ready();
  setup_.spawn(action.seat, action.life, create);
  next_query_ms_ = std::min(next_query_ms_, context_.clock.now_ms() + kQueryMsStarting);
}

void SimLauncher::tell(MessageKind kind, const Action& action) {
  if (link() == nullptr) return;
  const IncarnationBody body{action.seat.rank, 0, action.life};
  link()->send(encode(Speaker{}, kind, ++sequence_, body));
}

void SimLauncher::on_frame(const std::string& text) {
  const Decoded frame = decode(text).value();
  if (frame.kind != MessageKind::kStatusReply) return;
  store_was_up_ = true;
  core_->store_answered({frame.as<StatusReplyBody>(), frame.entries<RankStatus>()},
                        context_.clock.now_ms());
  turn_later(0);
}

}  // namespace optlease
