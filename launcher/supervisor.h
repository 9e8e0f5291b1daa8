// The launcher's event loop: gives SupervisorCore its events (lifelines, pidfds, status replies,
// signals, requests of tools, time) and does what it asks for (spawn, kill, tell the store). It
// decides nothing that the core could decide. Used by run_job.cc, one per process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/child_args.h"
#include "actors/runtime/death_page.h"
#include "actors/runtime/job_plan.h"
#include "actors/wire/socket.h"
#include "launcher/committed_word.h"
#include "launcher/control_channel.h"
#include "launcher/job_claim.h"
#include "launcher/process.h"
#include "launcher/recovery_log.h"
#include "launcher/rehearsals.h"
#include "launcher/run_plan.h"
#include "launcher/stall_watch.h"
#include "launcher/store_link.h"
#include "launcher/supervisor_core.h"
#include "launcher/telemetry_probe.h"
#include "shm/name_watch.h"
#include "shm/vault.h"

namespace optlease {

struct SupervisorSetup {
  JobPlan plan;
  std::string program_directory;
  uint64_t planned_shm_bytes = 0;               // reserving it takes time, which the store is given
  std::function<void(const std::string&)> say;  // one line of progress for people
};

class Supervisor {
 public:
  // Opens every socket of the launcher. REQUIRES: the stop signals are blocked
  // (block_stop_signals), `claim` outlives the supervisor.
  static Result<std::unique_ptr<Supervisor>> open(SocketContext& context, SupervisorSetup setup,
                                                  const JobClaim& claim);
  // Kills and reaps whatever still lives: nothing but a failure in run() leaves anything.
  ~Supervisor();

  // Runs the job to its end, whatever that is. What the loop throws stops the job, in order if that
  // is still possible.
  void run();

  // What happened, for the report; meaningful once run() has returned.
  const SupervisorCore& core() const { return core_; }
  const RecoveryLog& recovery() const { return recovery_; }
  const Rehearsals& rehearsals() const { return rehearsals_; }
  std::vector<Stall> stalls() const { return stall_watch_.stalls(); }
  const std::vector<KilledAtStop>& killed_at_stop() const { return killed_at_stop_; }
  // Of one rank's actors in this run.
  RankLives lives(uint32_t rank) const;
  uint64_t buffer_bytes_peak() const { return buffer_bytes_peak_; }
  uint64_t process_bytes_peak() const { return process_bytes_peak_; }
  bool keep_requested() const { return keep_; }
  // Why it ended with kLauncherFailed or kSpawnFailed.
  const Status& failure() const { return failure_; }
  // NameWatch::restore of what the job's state lies in.
  // REQUIRES: run() has returned and everything was reaped.
  Status restore_names(std::vector<std::string>* made);

 private:
  using Key = std::pair<Seat, uint64_t>;
  struct Live {
    Child child;
    UniqueFd lifeline;                  // none of a trainer
    bool lifeline_open = false;         // false too once the death page has spoken
    std::unique_ptr<DeathWatch> watch;  // of an actor, where the page could be made
    std::string log_file;
    LastHeard heard;  // where it is killed for not doing its part
    bool dead() const { return watch != nullptr && watch->dead(); }
  };
  struct RestartWaiter {
    std::string peer;
    uint32_t rank = 0;
    uint64_t old_life = 0;
  };

  Supervisor(SocketContext& context, SupervisorSetup setup, const JobClaim& claim,
             ControlServer control, Vault vault, TelemetryProbe telemetry, UniqueFd signals);

  // supervisor.cc: the loop and what the core asks for.
  void loop();
  bool end_after(const std::exception& error);
  void kill_what_lives();
  void wait();
  void act();
  void execute(const Action& action);
  void start_process(Seat seat, uint64_t life);
  Status try_to_start(Seat seat, uint64_t life, Live* live);
  Result<Child> spawn_child(Seat seat, uint64_t life, const ProcessPlan& process, Live* live);
  ChildArgs args_for(Seat seat, uint64_t life, int lifeline_fd);
  void tick();
  void sample();
  void say(const std::string& text) { setup_.say(text); }

  // supervisor_names.cc: what the job's state lies in.
  void open_watch();
  void watch_names();
  void watch_residents();

  // supervisor_deaths.cc
  void kill(const Action& action, Live& live);
  LastHeard last_heard(const Action& action, const std::string& standing) const;
  std::string standing_of_seat(Seat seat) const;
  void look_for_stalls();
  void record_death(const Action& action);
  std::string cause_text(const Action& action) const;
  void keep_totals(const Key& key, const Live& live);
  static std::optional<LifeTotals> totals_of(const Live& live);

  // supervisor_events.cc: what the world has to say.
  void hear_children();
  void hear_lifeline(const Key& key, Live& live);
  void first_sign(const Key& key, Live& live);
  void reap(const Key& key);
  void do_rehearsals();
  void victim_gone(LifeOf victim);
  void hear_signals();
  void hear_store();
  void hear_tools();
  void answer_restarts();
  void request_restart(const std::string& peer, uint32_t rank);
  JobStatus status() const;

  SocketContext& context_;
  SupervisorSetup setup_;
  const JobClaim& claim_;
  std::map<Seat, ProcessPlan> processes_;
  SupervisorCore core_;
  RecoveryLog recovery_;
  StallWatch stall_watch_;
  std::vector<KilledAtStop> killed_at_stop_;
  Rehearsals rehearsals_;
  StoreLink link_;
  ControlServer control_;
  Vault vault_;
  TelemetryProbe telemetry_;
  UniqueFd signal_fd_;
  std::map<Key, Live> living_;
  std::vector<Action> actions_;  // the core's, of which the first next_action_ were taken up
  size_t next_action_ = 0;
  std::vector<LivesTotals> totals_;  // by rank: of actors that are reaped
  std::vector<RestartWaiter> restart_waiters_;
  int64_t next_query_ms_ = 0;
  int64_t next_second_ms_ = 0;
  Step said_step_ = kNoStep;
  uint64_t buffer_bytes_peak_ = 0;
  uint64_t process_bytes_peak_ = 0;
  int signals_ = 0;
  bool keep_ = false;
  bool stop_seen_ = false;
  bool store_was_up_ = false;
  std::optional<NameWatch> names_;          // once a store was up
  std::optional<CommittedWord> committed_;  // the same
  bool serving_ = false;
  bool residents_watched_ = false;
  bool lock_loss_said_ = false;
  Status failure_;
};

// SIGINT, SIGTERM and SIGHUP are taken from a descriptor, SIGPIPE is ignored. REQUIRES: called
// before any thread exists, so that every thread inherits the mask.
Status block_stop_signals();

}  // namespace optlease
