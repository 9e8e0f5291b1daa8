#include "launcher/recovery_log.h"

namespace optlease {
namespace {

std::string seconds_of(const char* what, const std::optional<uint64_t>& ms) {
  if (!ms) return format("not %s yet", what);
  return format("%s %.3f", what, static_cast<double>(*ms) / 1000.0);
}

}  // namespace

const char* name_of(DeathSign sign) {
  switch (sign) {
    case DeathSign::kDeathPage:
      return "death_page";
    case DeathSign::kLifeline:
      return "lifeline";
    case DeathSign::kExit:
      return "exit";
  }
  return "?";
}

std::string text_of(const Rehearsal& rehearsal) {
  return format("step %lld, %s of rank %u", static_cast<long long>(rehearsal.step),
                name_of(rehearsal.phase), rehearsal.at_rank);
}

std::string timeline_of(const DeathRecord& record) {
  std::string text =
      format("first commit %.3f s after its death (seen by %s; ",
             static_cast<double>(record.recovery_ms.value_or(0)) / 1000.0, name_of(record.sign)) +
      seconds_of("started", record.restart_ms) + ", ";
  if (record.attach_ms) text += seconds_of("attached", record.attach_ms) + ", ";
  return text + seconds_of("reaped", record.reap_ms) + ")";
}

void RecoveryLog::died(Seat seat, uint64_t life, int pid, DeathCause cause, Step step_committed,
                       uint64_t now_ms, DeathSign sign, std::optional<Rehearsal> rehearsal) {
  for (Open& open : all_) {
    // The successor died before it had recovered: its predecessor's recovery never happened.
    if (open.record.seat == seat) open.done = true;
  }
  Open open;
  open.record.seat = seat;
  open.record.life = life;
  open.record.pid = pid;
  open.record.cause = cause;
  open.record.sign = sign;
  open.record.step_committed = step_committed;
  open.record.rehearsal = rehearsal;
  open.record.at_ms = now_ms - start_ms_;
  open.died_ms = now_ms;
  all_.push_back(open);
}

void RecoveryLog::heard(Seat seat, uint64_t life, const LastHeard& heard) {
  for (Open& open : all_) {
    if (open.record.seat == seat && open.record.life == life) open.record.heard = heard;
  }
}

void RecoveryLog::exited(Seat seat, uint64_t life, const ExitInfo& info, uint64_t now_ms) {
  for (Open& open : all_) {
    if (open.record.seat != seat || open.record.life != life) continue;
    open.record.exit = info;
    open.record.reap_ms = now_ms - open.died_ms;
  }
}

void RecoveryLog::spawned(Seat seat, uint64_t life, uint64_t now_ms) {
  for (Open& open : all_) {
    if (open.done || open.record.seat != seat || open.successor != 0) continue;
    open.successor = life;
    open.record.restart_ms = now_ms - open.died_ms;
  }
}

bool RecoveryLog::is_attached(const Open& open, const StoreFacts& facts) const {
  if (open.record.seat.role != Role::kGpuActor) return true;
  const uint32_t rank = open.record.seat.rank;
  return rank < facts.ranks.size() && facts.ranks[rank].incarnation == open.successor;
}

uint64_t RecoveryLog::commits_of(const Open& open, const StoreFacts& facts) const {
  switch (open.record.seat.role) {
    case Role::kGpuActor: {
      const uint32_t rank = open.record.seat.rank;
      return rank < facts.ranks.size() ? facts.ranks[rank].chunks_committed : 0;
    }
    case Role::kHostStore:
      return facts.body.commits;
    case Role::kTrainer:
    case Role::kLauncher:
      return 0;
  }
  return 0;
}

std::vector<DeathRecord> RecoveryLog::store_answered(const StoreFacts& facts, uint64_t now_ms) {
  std::vector<DeathRecord> whole;
  for (Open& open : all_) {
    if (open.done || open.successor == 0 || !is_attached(open, facts)) continue;
    const uint64_t commits = commits_of(open, facts);
    if (!open.has_baseline) {
      open.has_baseline = true;
      open.baseline_step = facts.body.step_committed;
      open.baseline_commits = commits;
      if (open.record.seat.role != Role::kTrainer) open.record.attach_ms = now_ms - open.died_ms;
      continue;
    }
    if (facts.body.step_committed <= open.baseline_step && commits <= open.baseline_commits) {
      continue;
    }
    open.record.recovery_ms = now_ms - open.died_ms;
    open.done = true;
    whole.push_back(open.record);
  }
  return whole;
}

bool RecoveryLog::is_measuring() const {
  for (const Open& open : all_) {
    if (!open.done && open.successor != 0) return true;
  }
  return false;
}

uint64_t RecoveryLog::restarts() const {
  uint64_t count = 0;
  for (const Open& open : all_) count += open.record.restart_ms ? 1 : 0;
  return count;
}

std::vector<DeathRecord> RecoveryLog::records() const {
  std::vector<DeathRecord> out;
  for (const Open& open : all_) out.push_back(open.record);
  return out;
}

}  // namespace optlease
