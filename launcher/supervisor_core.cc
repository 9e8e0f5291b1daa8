#include "launcher/supervisor_core.h"

#include <algorithm>
#include <utility>

namespace optlease {
namespace {

// A lifeline that closed says that the process is ending, and so does a death page; a process that
// merely closed the one or lost its main thread would never be reaped: it is helped along after
// this long.
constexpr uint64_t kZombieKillMs = 2000;
// Two calls of advance() further apart than this: the launcher itself was stopped.
constexpr uint64_t kPauseMs = 1000;

}  // namespace

SupervisorCore::SupervisorCore(CoreOptions options, uint64_t now_ms)
    : options_(std::move(options)),
      policy_(options_.restart),
      step_seen_(options_.step_committed),
      advanced_ms_(now_ms) {
  records_[Seat{Role::kHostStore, 0}].since_ms = now_ms;
  for (uint32_t r = 0; r < options_.world_size; ++r) {
    SeatRecord& actor = records_[Seat{Role::kGpuActor, r}];
    actor.since_ms = now_ms;
    if (r < options_.last_incarnation.size() && options_.last_incarnation[r] != 0) {
      // The job's lock is ours, so every process of an earlier run is gone: the store may hear it.
      actor.life = options_.last_incarnation[r];
      reaped_[r][actor.life] = now_ms;
    }
    if (options_.trainers) records_[Seat{Role::kTrainer, r}].since_ms = now_ms;
  }
}

void SupervisorCore::set_state(SeatRecord& record, SeatState state, uint64_t now_ms) {
  record.state = state;
  record.since_ms = now_ms;
}

void SupervisorCore::note(const std::string& text) {
  Action action;
  action.kind = Action::Kind::kNote;
  action.text = text;
  say(std::move(action));
}

// Of one that was reaped a moment ago a copy may still be on its way: the new store must wait for
// its grace period, as it does for one that it hears to be lost before it hears who lives.
void SupervisorCore::tell_all_facts(uint64_t now_ms) {
  for (const auto& [rank, lives] : reaped_) {
    for (const auto& [life, reaped_ms] : lives) {
      if (now_ms - reaped_ms > options_.restart.quarantine_grace_ms) continue;
      say({.kind = Action::Kind::kTellLost, .seat = {Role::kGpuActor, rank}, .life = life});
    }
  }
  for (const auto& [key, body] : bodies_) {
    if (key.first.role != Role::kGpuActor) continue;
    const auto kind = body.lifeline_open ? Action::Kind::kTellStarted : Action::Kind::kTellLost;
    say({.kind = kind, .seat = key.first, .life = key.second});
  }
  for (const auto& [rank, lives] : reaped_) {
    for (const auto& [life, reaped_ms] : lives) {
      say({.kind = Action::Kind::kTellReaped, .seat = {Role::kGpuActor, rank}, .life = life});
    }
  }
}

void SupervisorCore::spawn(Seat seat, uint64_t now_ms) {
  SeatRecord& record = records_.at(seat);
  record.life += 1;
  record.cause = DeathCause::kOwn;
  bodies_[{seat, record.life}] = Body{};
  // A trainer has no sign of life of its own: its step requests are its actor's business.
  set_state(record, seat.role == Role::kTrainer ? SeatState::kRunning : SeatState::kStarting,
            now_ms);
  // The store hears of an incarnation before that can say hello.
  if (seat.role == Role::kGpuActor) {
    say({.kind = Action::Kind::kTellStarted, .seat = seat, .life = record.life});
  }
  say({.kind = Action::Kind::kSpawn, .seat = seat, .life = record.life});
  // A restarted store has forgotten everything that it was ever told.
  if (seat.role == Role::kHostStore) tell_all_facts(now_ms);
}

void SupervisorCore::kill(Seat seat, uint64_t life, DeathCause cause, const std::string& why) {
  const auto found = bodies_.find({seat, life});
  if (found == bodies_.end() || found->second.kill_sent) return;
  found->second.kill_sent = true;
  found->second.cause = cause;
  SeatRecord& record = records_.at(seat);
  if (record.life == life) {
    record.cause = cause;
    if (record.state == SeatState::kStarting || record.state == SeatState::kRunning) {
      record.state = SeatState::kDying;
    }
  }
  say({.kind = Action::Kind::kKill, .seat = seat, .life = life, .cause = cause, .text = why});
}

bool SupervisorCore::kill_on_purpose(Seat seat, DeathCause cause, uint64_t) {
  const auto found = records_.find(seat);
  if (found == records_.end() || stopping()) return false;
  const SeatRecord& record = found->second;
  const auto body = bodies_.find({seat, record.life});
  if (body == bodies_.end() || !body->second.lifeline_open || body->second.kill_sent) return false;
  kill(seat, record.life, cause, name_of(cause));
  return true;
}

void SupervisorCore::lifeline_closed(Seat seat, uint64_t life, uint64_t now_ms) {
  const auto found = bodies_.find({seat, life});
  if (found == bodies_.end() || !found->second.lifeline_open) return;
  found->second.lifeline_open = false;
  found->second.closed_ms = now_ms;
  if (seat.role == Role::kGpuActor) {
    say({.kind = Action::Kind::kTellLost, .seat = seat, .life = life});
  }
  SeatRecord& record = records_.at(seat);
  if (record.life != life) return;
  record.state = SeatState::kDying;
  // The store fences an actor's old life, so its successor need not wait for the zombie.
  if (seat.role == Role::kGpuActor) vacate(seat, now_ms);
}

void SupervisorCore::reaped(Seat seat, uint64_t life, const ExitInfo& info, bool fatal,
                            uint64_t now_ms, const std::string& last_words) {
  const auto found = bodies_.find({seat, life});
  if (found == bodies_.end()) return;
  const bool was_open = found->second.lifeline_open;
  bodies_.erase(found);
  if (seat.role == Role::kGpuActor) {
    if (was_open) say({.kind = Action::Kind::kTellLost, .seat = seat, .life = life});
    reaped_[seat.rank][life] = now_ms;
    say({.kind = Action::Kind::kTellReaped, .seat = seat, .life = life});
  }
  SeatRecord& record = records_.at(seat);
  const std::string last = text_of(seat) + " ended with " + text_of(info);
  if (fatal && !stopping()) {
    set_state(record, SeatState::kEnded, now_ms);
    last_dead_ = {seat, life};
    ending_exit_ = info;
    stop(Ending::kFatalExit, last + (last_words.empty() ? "" : ": " + last_words), now_ms);
    return;
  }
  // An actor's lifeline closes before its exit code is known.
  if (ending_ == Ending::kRestartIntensity && last_dead_ == BodyKey{seat, life} && !was_open) {
    ending_text_ += "; " + last;
    ending_exit_ = info;
  }
  if (record.life != life || (seat.role == Role::kGpuActor && !was_open)) return;
  record.ended_well = info.clean() && record.cause == DeathCause::kOwn;
  if (seat.role == Role::kTrainer && record.ended_well) {
    set_state(record, SeatState::kEnded, now_ms);
    return;
  }
  exit_at_hand_ = last;
  if (!stopping()) ending_exit_ = info;
  vacate(seat, now_ms);
  exit_at_hand_.clear();
}

void SupervisorCore::vacate(Seat seat, uint64_t now_ms) {
  SeatRecord& record = records_.at(seat);
  if (stopping()) {
    set_state(record, SeatState::kEnded, now_ms);
    return;
  }
  const DeathCause cause = record.cause;
  set_state(record, SeatState::kBackoff, now_ms);
  say({.kind = Action::Kind::kDied, .seat = seat, .life = record.life, .cause = cause});
  if (seat.role == Role::kHostStore) {
    // Every actor has to say hello again; its time to do so starts when the new store is up.
    for (auto& [other, theirs] : records_) {
      if (other.role == Role::kGpuActor && theirs.state == SeatState::kRunning) {
        set_state(theirs, SeatState::kStarting, now_ms);
      }
    }
    facts_.ranks.clear();
  }
  count_death(seat, cause, now_ms);
}

void SupervisorCore::count_death(Seat seat, DeathCause cause, uint64_t now_ms) {
  SeatRecord& record = records_.at(seat);
  if (cause == DeathCause::kRehearsal || cause == DeathCause::kRequested) {
    record.due_ms = now_ms;
    return;
  }
  const bool go_on = policy_.note_death(seat, now_ms);
  record.due_ms = now_ms + policy_.backoff_ms(seat, now_ms);
  if (go_on) return;
  std::string text =
      format("%u restarts within %llu ms, one more than restart.intensity allows",
             policy_.recent(now_ms), static_cast<unsigned long long>(options_.restart.period_ms));
  text += "; the last to die was " + text_of(seat) + " (" + name_of(cause) + ")";
  if (!exit_at_hand_.empty()) text += "; " + exit_at_hand_;
  last_dead_ = {seat, record.life};
  stop(Ending::kRestartIntensity, text, now_ms);
}

// A committed step is for ever. A store that knows a lower one serves other segments than its
// predecessor did: nobody gets the time to write another history over them, but actors that are
// older than the exchange save what lies in their device's memory into the files that they mapped.
bool SupervisorCore::went_back(const StoreFacts& facts, uint64_t now_ms) {
  const Step committed = facts.body.step_committed;
  if (committed >= step_seen_ || stopping()) {
    step_seen_ = std::max(step_seen_, committed);
    return false;
  }
  stop(Ending::kStateWentBack,
       format(
           "host_store (incarnation %llu) says that step %lld is the last that is committed, and "
           "step %lld was committed before: the job's segments in /dev/shm were exchanged for an "
           "older copy while no store ran, or are damaged. Nothing goes on from there. Newer files "
           "that were moved away are kept, with what the actors save in them now; those that were "
           "removed end with this job, and bytes that were overwritten are gone. Put the newer "
           "segments back and resume, resume from the older ones if that is wanted, or start "
           "again with --fresh",
           static_cast<unsigned long long>(store().life), static_cast<long long>(committed),
           static_cast<long long>(step_seen_)),
       now_ms);
  enter_save_actors(now_ms);
  return true;
}

void SupervisorCore::store_answered(const StoreFacts& facts, uint64_t now_ms) {
  if (went_back(facts, now_ms)) return;
  facts_ = facts;
  answered_ms_ = now_ms;
  SeatRecord& record = store();
  if (record.state == SeatState::kStarting) {
    set_state(record, SeatState::kRunning, now_ms);
    store_was_up_ = true;
    for (auto& [seat, theirs] : records_) {
      if (seat.role == Role::kGpuActor && theirs.state == SeatState::kStarting) {
        theirs.since_ms = now_ms;
      }
    }
  }
  bool all = facts.ranks.size() >= options_.world_size;
  for (uint32_t r = 0; r < options_.world_size && r < facts.ranks.size(); ++r) {
    SeatRecord& actor = records_.at(Seat{Role::kGpuActor, r});
    const bool attached = actor.life != 0 && facts.ranks[r].incarnation == actor.life;
    if (attached) actor.attached_life = actor.life;
    if (attached && actor.state == SeatState::kStarting) {
      set_state(actor, SeatState::kRunning, now_ms);
    }
    all = all && attached;
  }
  if (all && facts.body.step_committed >= 0) all_were_attached_ = true;
}

bool SupervisorCore::may_start(Seat seat) const {
  switch (seat.role) {
    case Role::kLauncher:
      return false;
    case Role::kHostStore:
      return true;
    case Role::kGpuActor:
      return store_was_up_;
    case Role::kTrainer:
      return all_were_attached_;
  }
  return false;
}

void SupervisorCore::start_what_is_due(uint64_t now_ms) {
  for (auto& [seat, record] : records_) {
    if (stopping()) return;
    const bool due = record.state == SeatState::kWaiting ||
                     (record.state == SeatState::kBackoff && record.due_ms <= now_ms);
    if (due && may_start(seat)) spawn(seat, now_ms);
  }
}

void SupervisorCore::check_timeouts(uint64_t now_ms) {
  for (auto& [seat, record] : records_) {
    if (record.state != SeatState::kStarting) continue;
    const bool is_store = seat.role == Role::kHostStore;
    // Without a store nobody can attach: that is the store's timeout, not the actor's.
    if (!is_store && store().state != SeatState::kRunning) continue;
    const uint64_t limit =
        is_store ? options_.store_start_timeout_ms : options_.restart.start_timeout_ms;
    const uint64_t waited = now_ms - record.since_ms;
    if (waited < limit) continue;
    const auto ms = static_cast<unsigned long long>(waited);
    kill(seat, record.life, DeathCause::kStartTimeout,
         format("it did not come up within %llu ms", ms));
  }
}

void SupervisorCore::check_heartbeats(uint64_t now_ms) {
  const uint64_t limit = options_.restart.heartbeat_timeout_ms;
  if (store().state != SeatState::kRunning) return;
  const uint64_t silent = now_ms - answered_ms_;
  if (silent >= limit) {
    kill({Role::kHostStore, 0}, store().life, DeathCause::kHeartbeat,
         format("it has not answered for %llu ms", static_cast<unsigned long long>(silent)));
    return;
  }
  for (uint32_t r = 0; r < options_.world_size && r < facts_.ranks.size(); ++r) {
    const Seat seat{Role::kGpuActor, r};
    const SeatRecord& record = records_.at(seat);
    const RankStatus& rank = facts_.ranks[r];
    if (record.state != SeatState::kRunning || rank.incarnation != record.life) continue;
    if (rank.silent_ms < limit) continue;
    kill(seat, record.life, DeathCause::kHeartbeat,
         format("it has been silent for %llu ms", static_cast<unsigned long long>(rank.silent_ms)));
  }
}

void SupervisorCore::check_zombies(uint64_t now_ms) {
  std::vector<BodyKey> late;
  for (const auto& [key, body] : bodies_) {
    if (body.lifeline_open || body.kill_sent) continue;
    if (now_ms - body.closed_ms >= kZombieKillMs) late.push_back(key);
  }
  for (const BodyKey& key : late) {
    kill(key.first, key.second, records_.at(key.first).cause,
         "it is dead by its lifeline or death page but cannot be reaped");
  }
}

void SupervisorCore::check_completion(uint64_t now_ms) {
  if (!store_was_up_ || store().state != SeatState::kRunning) return;
  const StatusReplyBody& body = facts_.body;
  if (!options_.trainers) {
    // An open step, even one past the last, is finished first: its commits have begun.
    if (body.step_committed >= options_.steps && body.step_open == kNoStep) {
      stop(Ending::kCompleted, "every step is committed", now_ms);
    }
    return;
  }
  check_trainers_agree(now_ms);
  for (uint32_t r = 0; r < options_.world_size; ++r) {
    if (!trainer_is_done(r)) return;
  }
  // The trainers' last step may still be on its way to the store.
  if (body.step_open != kNoStep || facts_.ranks.empty()) return;
  stop(Ending::kCompleted, "every trainer ended with exit code 0", now_ms);
}

void SupervisorCore::advance(uint64_t now_ms) {
  const uint64_t gap = now_ms - advanced_ms_;
  advanced_ms_ = now_ms;
  if (gap > kPauseMs) {
    answered_ms_ = std::min(answered_ms_ + gap, now_ms);
    for (RankStatus& rank : facts_.ranks) rank.silent_ms = 0;
    for (auto& [seat, record] : records_) record.since_ms = std::min(record.since_ms + gap, now_ms);
    if (uneven_since_ms_ != 0) uneven_since_ms_ = std::min(uneven_since_ms_ + gap, now_ms);
  }
  check_zombies(now_ms);
  if (mode_ == Mode::kRun) {
    check_timeouts(now_ms);
    check_heartbeats(now_ms);
    check_completion(now_ms);
    start_what_is_due(now_ms);
  }
  if (mode_ != Mode::kRun && mode_ != Mode::kDone) advance_stop(now_ms);
}

std::vector<Action> SupervisorCore::take_actions() { return std::exchange(actions_, {}); }

}  // namespace optlease
