// What every death cost: when it happened, why, and how long until the job was whole and moving
// again. Pure: facts and times come in; the report and the progress lines read it.
//
// The figures, each from the moment the launcher saw the death (see DeathSign):
//   restart_ms   until the successor was started
//   attach_ms    until a status reply of the store first named the successor (for the store: until
//   it
//                first answered); a trainer has none
//   recovery_ms  until the first commit seen after that: of a chunk of its rank (actor), of any
//   chunk
//                (store) or of a step (trainer). It includes the time that the training script
//                itself takes between steps.
//   reap_ms      until it was reaped, which a GPU driver delays
// Their resolution is the interval of the status queries, which is short while one is open.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/supervisor_core.h"

namespace optlease {

// What told the launcher first.
enum class DeathSign {
  kDeathPage,  // within a millisecond, before the process's memory and devices are taken down
  kLifeline,   // while its descriptors are closed, or it closed it itself
  kExit,       // once it could be reaped
};
const char* name_of(DeathSign sign);

// What was known of a process that did not do its part, when it was killed for that.
struct LastHeard {
  std::string phase;    // that an actor was in when the store heard of it last; of a trainer its
                        // actor's; empty: not known
  Step step = kNoStep;  // with which step
  std::string why;      // in words; empty: it was not killed by the launcher, or on purpose
};

struct DeathRecord {
  Seat seat;
  uint64_t life = 0;
  int pid = 0;
  DeathCause cause = DeathCause::kOwn;
  DeathSign sign = DeathSign::kExit;
  std::optional<ExitInfo> exit;        // known once it was reaped
  Step step_committed = kNoStep;       // when the launcher saw the death
  std::optional<Rehearsal> rehearsal;  // that killed it
  LastHeard heard;
  uint64_t at_ms = 0;  // since the launcher's start
  std::optional<uint64_t> restart_ms;
  std::optional<uint64_t> attach_ms;
  std::optional<uint64_t> recovery_ms;
  std::optional<uint64_t> reap_ms;
};

struct KilledAtStop {
  Seat seat;
  int pid = 0;
  LastHeard heard;
};

// "step 25, copy_out of rank 1": where a configured kill struck.
std::string text_of(const Rehearsal& rehearsal);
// "first commit 0.412 s after its death (seen by death_page; started 0.021, ...)", of a record
// that is whole.
std::string timeline_of(const DeathRecord& record);

class RecoveryLog {
 public:
  explicit RecoveryLog(uint64_t start_ms) : start_ms_(start_ms) {}

  void died(Seat seat, uint64_t life, int pid, DeathCause cause, Step step_committed,
            uint64_t now_ms, DeathSign sign = DeathSign::kExit,
            std::optional<Rehearsal> rehearsal = std::nullopt);
  // Of the last death of that life.
  void heard(Seat seat, uint64_t life, const LastHeard& heard);
  void exited(Seat seat, uint64_t life, const ExitInfo& info, uint64_t now_ms);
  void spawned(Seat seat, uint64_t life, uint64_t now_ms);
  // Returns the records that became whole with this reply, for the progress lines.
  std::vector<DeathRecord> store_answered(const StoreFacts& facts, uint64_t now_ms);

  // True while a successor has started and its recovery is not measured yet.
  bool is_measuring() const;
  std::vector<DeathRecord> records() const;
  // Of those, that a new process followed.
  uint64_t restarts() const;

 private:
  struct Open {
    DeathRecord record;
    uint64_t died_ms = 0;
    uint64_t successor = 0;  // its life; 0: not started yet
    bool has_baseline = false;
    Step baseline_step = kNoStep;  // at the reply that first named the successor
    uint64_t baseline_commits = 0;
    bool done = false;  // measured, or superseded by another death of the seat
  };
  bool is_attached(const Open& open, const StoreFacts& facts) const;
  uint64_t commits_of(const Open& open, const StoreFacts& facts) const;

  uint64_t start_ms_;
  std::vector<Open> all_;
};

}  // namespace optlease
