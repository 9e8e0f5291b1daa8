// What the launcher decides, and nothing of how it is done: which process starts when, who is dead,
// who is too silent, when the job is complete, in which order it stops. Pure: events and `now_ms`
// come in, actions go out (take_actions); no process, socket or clock is touched here.
// Used by the Supervisor (the shell around it) and by tests that kill in microseconds.
//
// Order of start: store, then actors once the store answers, then trainers once every actor is
// attached and step 0 is committed. Order of stop: trainers, then actors through the store's
// StopStore, then whatever is left by SIGKILL. A new actor may start while its predecessor is a
// zombie, because the store fences it; a new store or trainer waits until the old one is reaped.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/restart_policy.h"
#include "shm/contract/messages.h"
#include "shm/contract/status.h"

namespace optlease {

// How a process ended, as waitpid tells it.
struct ExitInfo {
  bool by_signal = false;
  int code = 0;  // signal number or exit status
  bool clean() const { return !by_signal && code == 0; }
};
// "signal 9 (Killed)", "exit code 3 (...)".
std::string text_of(const ExitInfo& info);
std::string text_of(Seat seat);  // "host_store", "gpu_actor 1"

enum class DeathCause {
  kOwn,           // it ended by itself or was killed by somebody else
  kRehearsal,     // a configured kill
  kRequested,     // `optlease restart`
  kHeartbeat,     // silent for too long
  kStartTimeout,  // did not come up in time
  kStop,          // the job stops
};
const char* name_of(DeathCause cause);

enum class SeatState { kWaiting, kBackoff, kStarting, kRunning, kDying, kEnded };
const char* name_of(SeatState state);

enum class Ending {
  kNone,              // still going
  kCompleted,         // every step is committed, or every trainer ended well
  kStopped,           // asked to
  kRestartIntensity,  // too many deaths
  kFatalExit,         // a process ended in a way that no restart mends
  kSpawnFailed,       // a program could not be started at all
  kTrainersDisagree,  // one ended well while another asks for a step that needs them all
  kStateWentBack,     // a store serves an older committed step than was seen already
  kLauncherFailed,    // the launcher itself ran out of memory, threads or the like
};
const char* name_of(Ending ending);

struct Action {
  enum class Kind {
    kSpawn,        // seat, life
    kKill,         // SIGKILL to seat, life; text says why
    kTerminate,    // SIGTERM to seat, life
    kTellStarted,  // to the store, about seat.rank, life
    kTellLost,
    kTellReaped,
    kStopStore,  // ttl_ms
    kNote,       // text for the log
    kDied,       // seat, life, cause: one for the report (never while the job stops)
    kFinish,     // nothing is left to supervise
  };
  Kind kind = Kind::kNote;
  Seat seat = {};
  uint64_t life = 0;
  uint64_t ttl_ms = 0;
  DeathCause cause = DeathCause::kOwn;
  std::string text = {};
};

// What a StatusReply of the store says.
struct StoreFacts {
  StatusReplyBody body{};
  std::vector<RankStatus> ranks;
};

struct CoreOptions {
  uint32_t world_size = 1;
  bool trainers = false;  // one a rank is spawned
  int64_t steps = 0;
  RestartPlan restart;
  uint64_t store_start_timeout_ms = 30000;  // reserving much memory takes long
  uint64_t kill_wait_ms = 10000;            // how long a SIGKILLed process may stay unreaped
  std::vector<uint64_t> last_incarnation;   // by rank, of an earlier run; 0: none
  Step step_committed = kNoStep;            // where the job goes on from
};

class SupervisorCore {
 public:
  SupervisorCore(CoreOptions options, uint64_t now_ms);

  // Events. Those about a life that is not known (any more) are ignored.
  void spawn_failed(Seat seat, uint64_t life, const Status& why, uint64_t now_ms);
  // The first sign of its death: the lifeline's end, or before that the word of its death page.
  void lifeline_closed(Seat seat, uint64_t life, uint64_t now_ms);
  // `fatal`: no restart mends it (a refused configuration, a corrupt state); `last_words`: what it
  // said of that, or nothing.
  void reaped(Seat seat, uint64_t life, const ExitInfo& info, bool fatal, uint64_t now_ms,
              const std::string& last_words = {});
  void store_answered(const StoreFacts& facts, uint64_t now_ms);
  // Kills the seat's process on purpose; it is restarted at once and not counted as a failure.
  // False: there is no process in the seat now.
  bool kill_on_purpose(Seat seat, DeathCause cause, uint64_t now_ms);
  void stop(Ending why, const std::string& text, uint64_t now_ms);
  // Nothing gets another chance: SIGKILL to all.
  void hurry(uint64_t now_ms);
  // Does what time brings. A gap between two calls (a suspended launcher) is nobody's silence.
  void advance(uint64_t now_ms);

  std::vector<Action> take_actions();
  // True while a process waits for its restart: the caller should advance() often.
  bool restart_is_due() const;

  Ending ending() const { return ending_; }
  const std::string& ending_text() const { return ending_text_; }
  // Whose end decided kFatalExit, kSpawnFailed or kRestartIntensity, and how it ended; of a process
  // that could not be started, with what exit code the job ends for it.
  Seat ending_seat() const { return last_dead_.first; }
  ExitInfo ending_exit() const { return ending_exit_; }
  bool finished() const { return mode_ == Mode::kDone; }
  bool stopping() const { return mode_ != Mode::kRun; }
  SeatState state(Seat seat) const;
  uint64_t life(Seat seat) const;  // of the last process in the seat; 0: none yet
  std::vector<Seat> seats() const;
  const StoreFacts& facts() const { return facts_; }
  // The highest step that was ever committed, as far as it was told here or known at the start.
  Step step_seen() const { return step_seen_; }
  // Since the store's last answer; 0 where it is not up.
  uint64_t store_silent_ms(uint64_t now_ms) const;
  // Processes that SIGKILL could not end in kill_wait_ms.
  std::vector<std::string> unreaped() const;

 private:
  enum class Mode { kRun, kStopTrainers, kStopStore, kSaveActors, kKillAll, kDone };
  struct SeatRecord {
    SeatState state = SeatState::kWaiting;
    uint64_t life = 0;
    uint64_t since_ms = 0;                // of the state
    uint64_t due_ms = 0;                  // kBackoff: when to start
    DeathCause cause = DeathCause::kOwn;  // of the death that is under way
    bool ended_well = false;
    uint64_t attached_life = 0;  // the last that the store, at no older step, said is attached
  };
  struct Body {                 // a process that is not reaped yet
    bool lifeline_open = true;  // no sign of its death yet
    bool kill_sent = false;
    uint64_t closed_ms = 0;
    DeathCause cause = DeathCause::kOwn;
  };
  using BodyKey = std::pair<Seat, uint64_t>;

  void set_state(SeatRecord& record, SeatState state, uint64_t now_ms);
  void say(Action action) { actions_.push_back(std::move(action)); }
  void note(const std::string& text);
  void spawn(Seat seat, uint64_t now_ms);
  void kill(Seat seat, uint64_t life, DeathCause cause, const std::string& why);
  void tell_all_facts(uint64_t now_ms);
  bool went_back(const StoreFacts& facts, uint64_t now_ms);
  // The seat's process is gone for the purposes of the job.
  void vacate(Seat seat, uint64_t now_ms);
  void count_death(Seat seat, DeathCause cause, uint64_t now_ms);
  void start_what_is_due(uint64_t now_ms);
  bool may_start(Seat seat) const;
  void check_timeouts(uint64_t now_ms);
  void check_heartbeats(uint64_t now_ms);
  bool trainer_is_done(uint32_t rank) const;
  bool waits_for_peers(const RankStatus& rank, uint64_t now_ms) const;
  void check_trainers_agree(uint64_t now_ms);
  void check_completion(uint64_t now_ms);
  void check_zombies(uint64_t now_ms);
  void advance_stop(uint64_t now_ms);
  void enter_stop_store(uint64_t now_ms);
  void enter_save_actors(uint64_t now_ms);
  void enter_kill_all(uint64_t now_ms);
  void note_late(const std::string& who, uint64_t waited_ms);
  void send_stop_store(uint64_t now_ms);
  bool any_body(Role role) const;
  SeatRecord& store() { return records_.at(Seat{Role::kHostStore, 0}); }
  const SeatRecord& store() const { return records_.at(Seat{Role::kHostStore, 0}); }

  CoreOptions options_;
  RestartPolicy policy_;
  std::map<Seat, SeatRecord> records_;
  std::map<BodyKey, Body> bodies_;
  // By rank: dead incarnations the store must know, and when they were reaped.
  std::map<uint32_t, std::map<uint64_t, uint64_t>> reaped_;
  std::vector<Action> actions_;
  StoreFacts facts_;
  Mode mode_ = Mode::kRun;
  Ending ending_ = Ending::kNone;
  std::string ending_text_;
  BodyKey last_dead_;  // the death that ended the job, where one did
  ExitInfo ending_exit_;
  std::string exit_at_hand_;  // of the death that is being counted, where it is known already
  bool store_was_up_ = false;
  Step step_seen_ = kNoStep;      // the highest that was ever committed, as far as is known here
  uint64_t uneven_since_ms_ = 0;  // a trainer is done and another rank waits for it; 0: no
  bool all_were_attached_ = false;
  uint64_t answered_ms_ = 0;  // when the store answered last
  uint64_t advanced_ms_ = 0;
  uint64_t stop_deadline_ms_ = 0;
  uint64_t stop_sent_ms_ = 0;
};

}  // namespace optlease
