// The stopping half of SupervisorCore, one reason to stop, its accessors and its words.
#include <csignal>
#include <cstring>

#include "actors/runtime/exit_code.h"
#include "launcher/supervisor_core.h"

namespace optlease {
namespace {

constexpr uint64_t kStopRepeatMs = 500;  // StopStore is repeated until the store ends

}  // namespace

bool SupervisorCore::any_body(Role role) const {
  for (const auto& [key, body] : bodies_) {
    if (key.first.role == role) return true;
  }
  return false;
}

void SupervisorCore::stop(Ending why, const std::string& text, uint64_t now_ms) {
  if (stopping()) return;
  ending_ = why;
  ending_text_ = text;
  mode_ = Mode::kStopTrainers;
  stop_deadline_ms_ = now_ms + options_.restart.stop_timeout_ms;
  for (auto& [seat, record] : records_) {
    if (record.state == SeatState::kWaiting || record.state == SeatState::kBackoff) {
      set_state(record, SeatState::kEnded, now_ms);
    }
  }
  for (const auto& [key, body] : bodies_) {
    if (key.first.role != Role::kTrainer) continue;
    say({.kind = Action::Kind::kTerminate, .seat = key.first, .life = key.second});
  }
}

bool SupervisorCore::trainer_is_done(uint32_t rank) const {
  const SeatRecord& trainer = records_.at(Seat{Role::kTrainer, rank});
  return trainer.state == SeatState::kEnded && trainer.ended_well;
}

// What an actor said before it, or the store, stood still says nothing of now: the silent are
// killed, and their successors asked.
bool SupervisorCore::waits_for_peers(const RankStatus& rank, uint64_t now_ms) const {
  const uint64_t age_ms = now_ms - answered_ms_ + rank.silent_ms;
  return rank.phase == static_cast<uint32_t>(Phase::kWaitPeers) &&
         age_ms < options_.restart.heartbeat_timeout_ms / 2;
}

// A step needs every trainer: where one has ended and another asks for a step, nobody will ever
// answer it. Waiting a while first, since the last answers may be on their way.
void SupervisorCore::check_trainers_agree(uint64_t now_ms) {
  std::string done, waiting;
  for (uint32_t r = 0; r < facts_.ranks.size(); ++r) {
    if (trainer_is_done(r)) {
      done += " " + std::to_string(r);
    } else if (waits_for_peers(facts_.ranks[r], now_ms)) {
      waiting += " " + std::to_string(r);
    }
  }
  if (done.empty() || waiting.empty()) {
    uneven_since_ms_ = 0;
    return;
  }
  if (uneven_since_ms_ == 0) uneven_since_ms_ = now_ms;
  if (now_ms - uneven_since_ms_ < options_.restart.heartbeat_timeout_ms) return;
  stop(
      Ending::kTrainersDisagree,
      format("the trainers of ranks%s ended with exit code 0 after step %lld, and those of ranks%s "
             "ask for another: every trainer must take the same steps",
             done.c_str(), static_cast<long long>(facts_.body.step_committed), waiting.c_str()),
      now_ms);
}

void SupervisorCore::spawn_failed(Seat seat, uint64_t life, const Status& why, uint64_t now_ms) {
  if (bodies_.erase({seat, life}) == 0) return;
  set_state(records_.at(seat), SeatState::kEnded, now_ms);
  if (seat.role == Role::kGpuActor) {
    reaped_[seat.rank][life] = now_ms;
    say({.kind = Action::Kind::kTellReaped, .seat = seat, .life = life});
  }
  if (stopping()) return;
  last_dead_ = {seat, life};
  ending_exit_ = {false, static_cast<int>(exit_code_for_file(why))};
  stop(Ending::kSpawnFailed, text_of(seat) + ": " + why.message(), now_ms);
}

void SupervisorCore::hurry(uint64_t now_ms) {
  if (mode_ == Mode::kDone || mode_ == Mode::kKillAll) return;
  stop(Ending::kStopped, "told to hurry", now_ms);
  enter_kill_all(now_ms);
}

void SupervisorCore::send_stop_store(uint64_t now_ms) {
  // A step that is open and lacks an actor cannot be finished now: waiting for it helps nobody.
  bool everyone = true;
  for (uint32_t r = 0; r < options_.world_size; ++r) {
    const Seat seat{Role::kGpuActor, r};
    everyone = everyone && bodies_.contains({seat, records_.at(seat).life});
  }
  const uint64_t ttl = everyone ? options_.restart.stop_timeout_ms : 1;
  say({.kind = Action::Kind::kStopStore, .seat = {Role::kHostStore, 0}, .ttl_ms = ttl});
  stop_sent_ms_ = now_ms;
}

void SupervisorCore::enter_stop_store(uint64_t now_ms) {
  mode_ = Mode::kStopStore;
  // The step boundary may take one timeout, the actors' own ends another.
  stop_deadline_ms_ = now_ms + 2 * options_.restart.stop_timeout_ms;
  if (store().state == SeatState::kRunning) {
    send_stop_store(now_ms);
    return;
  }
  // One that is starting may find a step open, which the actors can finish: it is told as soon as
  // it answers.
  if (store().state == SeatState::kStarting) {
    stop_sent_ms_ = now_ms - kStopRepeatMs;
    return;
  }
  // No store that could pass the word on (a dead one gets no successor any more, whatever it was to
  // wait for): each process hears it from the launcher. A step that is open stays open, for the run
  // that resumes it.
  stop_sent_ms_ = now_ms;
  for (const auto& [key, body] : bodies_) {
    say({.kind = Action::Kind::kTerminate, .seat = key.first, .life = key.second});
  }
}

// The store served the wrong files, and a trainer has nothing to save. Nor has an actor that was
// never attached before: it mapped the wrong files, too.
void SupervisorCore::enter_save_actors(uint64_t now_ms) {
  mode_ = Mode::kSaveActors;
  stop_deadline_ms_ = now_ms + options_.restart.stop_timeout_ms;
  std::vector<BodyKey> useless;
  for (const auto& [key, body] : bodies_) {
    if (key.first.role == Role::kGpuActor && records_.at(key.first).attached_life == key.second) {
      say({.kind = Action::Kind::kTerminate, .seat = key.first, .life = key.second});
    } else {
      useless.push_back(key);
    }
  }
  for (const BodyKey& key : useless) {
    kill(key.first, key.second, DeathCause::kStop, "it serves an older state, or nobody");
  }
}

void SupervisorCore::enter_kill_all(uint64_t now_ms) {
  mode_ = Mode::kKillAll;
  stop_deadline_ms_ = now_ms + options_.kill_wait_ms;
  std::vector<BodyKey> all;
  for (const auto& [key, body] : bodies_) all.push_back(key);
  for (const BodyKey& key : all) {
    kill(key.first, key.second, DeathCause::kStop, "the job ends and it has not");
  }
}

// What is killed because it did not end by itself is news, also for whoever reads the report.
void SupervisorCore::note_late(const std::string& who, uint64_t waited_ms) {
  const std::string text = format("%s did not end within %llu ms of being asked to", who.c_str(),
                                  static_cast<unsigned long long>(waited_ms));
  note(text + ": killing it");
  ending_text_ += "; " + text + " and was killed";
}

uint64_t SupervisorCore::store_silent_ms(uint64_t now_ms) const {
  const bool up = store().state == SeatState::kRunning || store().state == SeatState::kDying;
  return up && now_ms > answered_ms_ ? now_ms - answered_ms_ : 0;
}

void SupervisorCore::advance_stop(uint64_t now_ms) {
  if (mode_ == Mode::kStopTrainers) {
    if (!any_body(Role::kTrainer)) {
      enter_stop_store(now_ms);
    } else if (now_ms >= stop_deadline_ms_) {
      std::vector<BodyKey> late;
      for (const auto& [key, body] : bodies_) {
        if (key.first.role == Role::kTrainer) late.push_back(key);
      }
      for (const BodyKey& key : late) {
        note_late(text_of(key.first), options_.restart.stop_timeout_ms);
        kill(key.first, key.second, DeathCause::kStop, "it did not end within the stop timeout");
      }
      enter_stop_store(now_ms);
    }
  }
  if (mode_ == Mode::kStopStore && !bodies_.empty()) {
    const bool store_lives = any_body(Role::kHostStore);
    if (now_ms >= stop_deadline_ms_) {
      // The actors end when the store tells them to: where it hangs, it alone is to blame.
      const uint64_t waited_ms = 2 * options_.restart.stop_timeout_ms;
      if (store_lives) {
        note_late(name_of(Role::kHostStore), waited_ms);
      } else {
        for (const auto& [key, body] : bodies_) note_late(text_of(key.first), waited_ms);
      }
      enter_kill_all(now_ms);
    } else if (now_ms - stop_sent_ms_ >= kStopRepeatMs) {
      if (store().state == SeatState::kRunning) {
        send_stop_store(now_ms);
      } else if (!store_lives) {
        stop_sent_ms_ = now_ms;
        for (const auto& [key, body] : bodies_) {
          say({.kind = Action::Kind::kTerminate, .seat = key.first, .life = key.second});
        }
      }
    }
  }
  if (mode_ == Mode::kSaveActors && !bodies_.empty() && now_ms >= stop_deadline_ms_) {
    for (const auto& [key, body] : bodies_) {
      if (!body.kill_sent) note_late(text_of(key.first), options_.restart.stop_timeout_ms);
    }
    enter_kill_all(now_ms);
  }
  const bool gave_up = mode_ == Mode::kKillAll && now_ms >= stop_deadline_ms_;
  if (!bodies_.empty() && !gave_up) return;
  if (mode_ == Mode::kStopTrainers) return;
  for (const std::string& who : unreaped()) {
    note(who + " could not be ended by SIGKILL in time; it may be stuck in a driver");
  }
  mode_ = Mode::kDone;
  say({.kind = Action::Kind::kFinish});
}

bool SupervisorCore::restart_is_due() const {
  for (const auto& [seat, record] : records_) {
    if (record.state == SeatState::kBackoff) return true;
  }
  return false;
}

SeatState SupervisorCore::state(Seat seat) const { return records_.at(seat).state; }

uint64_t SupervisorCore::life(Seat seat) const { return records_.at(seat).life; }

std::vector<Seat> SupervisorCore::seats() const {
  std::vector<Seat> out;
  for (const auto& [seat, record] : records_) out.push_back(seat);
  return out;
}

std::vector<std::string> SupervisorCore::unreaped() const {
  std::vector<std::string> out;
  for (const auto& [key, body] : bodies_) {
    out.push_back(text_of(key.first) +
                  format(" (life %llu)", static_cast<unsigned long long>(key.second)));
  }
  return out;
}

std::string text_of(const ExitInfo& info) {
  if (!info.by_signal) return format("exit code %d", info.code);
  const char* name = sigabbrev_np(info.code);
  return format("signal %d (SIG%s)", info.code, name != nullptr ? name : "?");
}

std::string text_of(Seat seat) {
  if (seat.role == Role::kHostStore || seat.role == Role::kLauncher) return name_of(seat.role);
  return format("%s %u", name_of(seat.role), seat.rank);
}

const char* name_of(DeathCause cause) {
  switch (cause) {
    case DeathCause::kOwn:
      return "crash";
    case DeathCause::kRehearsal:
      return "rehearsal";
    case DeathCause::kRequested:
      return "requested";
    case DeathCause::kHeartbeat:
      return "heartbeat_timeout";
    case DeathCause::kStartTimeout:
      return "start_timeout";
    case DeathCause::kStop:
      return "stop";
  }
  return "?";
}

const char* name_of(SeatState state) {
  switch (state) {
    case SeatState::kWaiting:
      return "waiting";
    case SeatState::kBackoff:
      return "restarting";
    case SeatState::kStarting:
      return "starting";
    case SeatState::kRunning:
      return "running";
    case SeatState::kDying:
      return "dying";
    case SeatState::kEnded:
      return "ended";
  }
  return "?";
}

const char* name_of(Ending ending) {
  switch (ending) {
    case Ending::kNone:
      return "none";
    case Ending::kCompleted:
      return "completed";
    case Ending::kStopped:
      return "stopped";
    case Ending::kRestartIntensity:
      return "restart_intensity_exceeded";
    case Ending::kFatalExit:
      return "fatal_exit";
    case Ending::kSpawnFailed:
      return "spawn_failed";
    case Ending::kTrainersDisagree:
      return "trainers_disagree";
    case Ending::kStateWentBack:
      return "state_went_back";
    case Ending::kLauncherFailed:
      return "launcher_failed";
  }
  return "?";
}

}  // namespace optlease
