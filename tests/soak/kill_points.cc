#include "tests/soak/kill_points.h"

#include <cstring>

#include "shm/contract/status.h"

namespace optlease::soak {
namespace {

// A new point gets a row here for each program that comes to it.
constexpr KillPoint kPoints[] = {
    {"launcher.start", "start", Who::kLauncher, When::kBegin},
    {"launcher.sockets_bound", "start", Who::kLauncher, When::kBegin},
    {"launcher.forked", "start", Who::kLauncher, When::kBegin},
    {"launcher.spawned", "start", Who::kLauncher, When::kBegin},
    {"launcher.store_up", "start", Who::kLauncher, When::kBegin},
    {"lock.opened", "start", Who::kLauncher, When::kBegin},
    {"lock.taken", "start", Who::kLauncher, When::kBegin},
    {"claim.locked", "start", Who::kLauncher, When::kBegin},
    {"claim.plan_written", "creation", Who::kLauncher, When::kBegin},
    {"claim.emptied", "creation", Who::kLauncher, When::kBegin},
    {"file.written", "creation", Who::kLauncher, When::kBegin},
    {"file.renamed", "creation", Who::kLauncher, When::kBegin},
    {"reserve.checked", "reservation", Who::kLauncher, When::kBegin},
    {"claim.resumed", "recovery", Who::kLauncher, When::kResume},
    {"launcher.death_seen", "recovery", Who::kLauncher, When::kActorDies},
    {"launcher.before_loss_told", "recovery", Who::kLauncher, When::kActorDies},
    {"launcher.reaped", "recovery", Who::kLauncher, When::kActorDies},
    {"launcher.before_reaping_told", "recovery", Who::kLauncher, When::kActorDies},
    {"vault.fd_received", "fd passing", Who::kLauncher, When::kBegin},
    {"vault.fd_kept", "fd passing", Who::kLauncher, When::kBegin},
    {"vault.answered", "fd passing", Who::kLauncher, When::kBegin},
    {"launcher.step", "step commit", Who::kLauncher, When::kStep},
    {"launcher.stopping", "stop", Who::kLauncher, When::kStop},
    {"launcher.store_told_to_stop", "stop", Who::kLauncher, When::kStop},
    {"launcher.all_ended", "stop", Who::kLauncher, When::kStop},
    {"launcher.reported", "stop", Who::kLauncher, When::kStop},
    {"store.segments_found", "stop", Who::kLauncher, When::kStop},
    {"store.epoch_raised", "stop", Who::kLauncher, When::kStop},
    {"kept_word.written", "stop", Who::kLauncher, When::kStop},
    {"launcher.kept_marked", "stop", Who::kLauncher, When::kStop},
    {"removal.begun", "clean-up", Who::kLauncher, When::kOver},
    {"removal.segment", "clean-up", Who::kLauncher, When::kOver},
    {"directory.emptied", "clean-up", Who::kLauncher, When::kOver},
    {"launcher.directory_done", "clean-up", Who::kLauncher, When::kOver},
    {"lock.unlinked", "clean-up", Who::kLauncher, When::kOver},
    {"launcher.before_report", "clean-up", Who::kLauncher, When::kOver},

    {"store.bound", "creation", Who::kStore, When::kStart},
    {"store.control_made", "creation", Who::kStore, When::kBegin},
    {"store.spaces_written", "creation", Who::kStore, When::kBegin},
    {"store.ranks_written", "creation", Who::kStore, When::kBegin},
    {"store.header_written", "creation", Who::kStore, When::kBegin},
    {"store.arena_made", "creation", Who::kStore, When::kBegin},
    {"store.arena_written", "creation", Who::kStore, When::kBegin},
    {"store.before_ready", "creation", Who::kStore, When::kBegin},
    {"store.ready", "creation", Who::kStore, When::kBegin},
    {"segment.created", "creation", Who::kStore, When::kBegin},
    {"reserve.checked", "reservation", Who::kStore, When::kBegin},
    {"segment.reserved", "reservation", Who::kStore, When::kBegin},
    {"segment.mapped", "reservation", Who::kStore, When::kBegin},
    {"store.segments_found", "recovery", Who::kStore, When::kStart},
    {"store.epoch_raised", "recovery", Who::kStore, When::kStart},
    {"kept_word.written", "recovery", Who::kStore, When::kStart},
    {"store.recovered", "recovery", Who::kStore, When::kStart},
    {"store.loss_heard", "recovery", Who::kStore, When::kActorDies},
    {"store.reaping_heard", "recovery", Who::kStore, When::kActorDies},
    {"store.attached", "recovery", Who::kStore, When::kActorDies},
    {"incarnation.before", "recovery", Who::kStore, When::kActorDies},
    {"incarnation.written", "recovery", Who::kStore, When::kActorDies},
    {"store.reduce_ordered", "collective", Who::kStore, When::kStep},
    {"store.gather_ordered", "collective", Who::kStore, When::kStep},
    {"lease.granted", "lease", Who::kStore, When::kStep},
    {"commit.entry_written", "commit", Who::kStore, When::kStep},
    {"commit.before_flip", "commit", Who::kStore, When::kStep},
    {"commit.flipped", "commit", Who::kStore, When::kStep},
    {"commit.unanswered", "commit", Who::kStore, When::kStep},
    {"commit_unchanged.before_flip", "commit", Who::kStore, When::kStep, Need::kSkippedSteps},
    {"commit_unchanged.flipped", "commit", Who::kStore, When::kStep, Need::kSkippedSteps},
    {"store.ready_taken", "step record", Who::kStore, When::kStep},
    {"sums.emptied", "step record", Who::kStore, When::kStep},
    {"sums.body_written", "step record", Who::kStore, When::kStep},
    {"sums.written", "step record", Who::kStore, When::kStep},
    {"record.emptied", "step record", Who::kStore, When::kStep},
    {"record.body_written", "step record", Who::kStore, When::kStep},
    {"record.written", "step record", Who::kStore, When::kStep},
    {"record.voided", "step record", Who::kStore, When::kActorDiesAtRecord},
    {"store.step_opens", "step record", Who::kStore, When::kStep},
    {"blob.none", "step record", Who::kStore, When::kStep, Need::kNoTrainers},
    {"blob.emptied", "step record", Who::kStore, When::kStep, Need::kTrainers},
    {"blob.bytes_written", "step record", Who::kStore, When::kStep, Need::kTrainers},
    {"blob.written", "step record", Who::kStore, When::kStep, Need::kTrainers},
    {"step_word.before", "step commit", Who::kStore, When::kStep},
    {"step_word.written", "step commit", Who::kStore, When::kStep},
    {"skipped.before", "step commit", Who::kStore, When::kStep, Need::kSkippedSteps},
    {"skipped.counted", "step commit", Who::kStore, When::kStep, Need::kSkippedSteps},
    {"hold.granted", "hold", Who::kStore, When::kHold},
    {"store.told_to_stop", "stop", Who::kStore, When::kStop},
    {"store.stops", "stop", Who::kStore, When::kStop},
    {"store.finished", "stop", Who::kStore, When::kStop},
    {"store.last_words_said", "stop", Who::kStore, When::kStop},

    {"actor.sockets_bound", "start", Who::kActor, When::kStart},
    {"actor.window_mapped", "start", Who::kActor, When::kStart},
    {"actor.started", "start", Who::kActor, When::kStart},
    {"actor.hello_said", "start", Who::kActor, When::kStart},
    {"actor.welcomed", "start", Who::kActor, When::kStart},
    {"actor.pinned", "pin", Who::kActor, When::kStart},
    {"segment.created", "creation", Who::kActor, When::kBegin},
    {"initial.written", "creation", Who::kActor, When::kBegin},
    {"resident.made", "creation", Who::kActor, When::kBegin, Need::kResidentPart},
    {"resident.written", "creation", Who::kActor, When::kBegin, Need::kResidentPart},
    {"reserve.checked", "reservation", Who::kActor, When::kBegin},
    {"segment.reserved", "reservation", Who::kActor, When::kBegin},
    {"segment.mapped", "reservation", Who::kActor, When::kBegin},
    {"actor.buffer_made", "fd passing", Who::kActor, When::kBegin},
    {"actor.buffer_passed", "fd passing", Who::kActor, When::kBegin},
    {"actor.buffer_mapped", "fd passing", Who::kActor, When::kStart},
    {"actor.sums_checked", "recovery", Who::kActor, When::kActorDiesInStep},
    {"actor.detached", "recovery", Who::kActor, When::kStoreDies},
    {"actor.drained", "recovery", Who::kActor, When::kStoreDies},
    {"republish.over", "recovery", Who::kActor, When::kStart},
    {"collective.connected", "collective", Who::kActor, When::kStart},
    {"gradients.filled", "collective", Who::kActor, When::kStep, Need::kNoTrainers},
    {"collective.reduce_begun", "collective", Who::kActor, When::kStep},
    {"collective.reduced", "collective", Who::kActor, When::kStep},
    {"collective.gather_begun", "collective", Who::kActor, When::kStep},
    {"collective.gathered", "collective", Who::kActor, When::kStep},
    {"checksum.summed", "checksum", Who::kActor, When::kStep},
    {"checksum.held", "checksum", Who::kActor, When::kStep},
    {"actor.ready_said", "step record", Who::kActor, When::kStep},
    {"actor.record_made", "step record", Who::kActor, When::kStep},
    {"actor.record_sent", "step record", Who::kActor, When::kStep},
    {"lease.asked", "lease", Who::kActor, When::kStep},
    {"lease.received", "lease", Who::kActor, When::kStep},
    {"lease.returned", "lease", Who::kActor, When::kStep, Need::kSkippedSteps},
    {"copy.in_begun", "copy", Who::kActor, When::kStep},
    {"copy.in_over", "copy", Who::kActor, When::kStep},
    {"shadow.begun", "shadow", Who::kActor, When::kStep},
    {"copy.out_over", "shadow", Who::kActor, When::kStep},
    {"commit.asked", "commit", Who::kActor, When::kStep},
    {"commit.answered", "commit", Who::kActor, When::kStep},
    {"actor.published_said", "step commit", Who::kActor, When::kStep},
    {"trainer.attach_answered", "trainer", Who::kActor, When::kTrainerDies, Need::kTrainers},
    {"trainer.step_taken", "trainer", Who::kActor, When::kStep, Need::kTrainers},
    {"trainer.step_answered", "trainer", Who::kActor, When::kStep, Need::kTrainers},
    {"actor.resident_saved", "hold", Who::kActor, When::kHold, Need::kResidentPart},
    {"actor.ending", "stop", Who::kActor, When::kStop},

    {"client.job_found", "trainer", Who::kTrainer, When::kStart, Need::kTrainers},
    {"client.fd_received", "fd passing", Who::kTrainer, When::kStart, Need::kTrainers},
    {"client.buffers_mapped", "trainer", Who::kTrainer, When::kStart, Need::kTrainers},
    {"client.attached", "trainer", Who::kTrainer, When::kStart, Need::kTrainers},
    {"client.asked", "trainer", Who::kTrainer, When::kStep, Need::kTrainers},
    {"client.prepared", "trainer", Who::kTrainer, When::kStep, Need::kTrainers},
    {"client.step_answered", "trainer", Who::kTrainer, When::kStep, Need::kTrainers},
    {"client.detached", "stop", Who::kTrainer, When::kOver, Need::kTrainers},

    {"hold.taken", "hold", Who::kTool, When::kHold},
    {"lock.opened", "clean-up", Who::kTool, When::kClean},
    {"lock.taken", "clean-up", Who::kTool, When::kClean},
    {"clean.locked", "clean-up", Who::kTool, When::kClean},
    {"removal.begun", "clean-up", Who::kTool, When::kClean},
    {"clean.segment_removed", "clean-up", Who::kTool, When::kClean},
    {"lock.unlinked", "clean-up", Who::kTool, When::kClean},

    {"resident.void", "hold", Who::kActor, When::kElsewhere, Need::kResidentPart, "ResidentTest"},
    {"resident.whole", "hold", Who::kActor, When::kElsewhere, Need::kResidentPart, "ResidentTest"},
    {"unlink.arena", "clean-up", Who::kStore, When::kElsewhere, Need::kNothing, "CrashTest"},
};

}  // namespace

std::span<const KillPoint> kill_points() { return kPoints; }

const KillPoint& kill_point(const char* point, Who who) {
  for (const KillPoint& row : kPoints) {
    if (row.who == who && std::strcmp(row.point, point) == 0) return row;
  }
  OPTLEASE_CHECK(false, "no row %s of %s", point, name_of(who));
}

const char* name_of(Who who) {
  switch (who) {
    case Who::kLauncher:
      return "launcher";
    case Who::kStore:
      return "host_store";
    case Who::kActor:
      return "gpu_actor";
    case Who::kTrainer:
      return "trainer";
    case Who::kTool:
      return "tool";
  }
  return "?";
}

const char* program_of(Who who) {
  switch (who) {
    case Who::kLauncher:
    case Who::kTool:
      return "optlease";
    case Who::kStore:
      return "optlease-host-store";
    case Who::kActor:
      return "optlease-gpu-actor";
    case Who::kTrainer:
      return "optlease-trainer";
  }
  return "?";
}

std::vector<KillPlace> places_of(bool tools) {
  std::vector<KillPlace> places;
  for (const KillPoint& row : kPoints) {
    if ((row.who == Who::kTool) == tools) places.push_back({row.point, program_of(row.who)});
  }
  return places;
}

}  // namespace optlease::soak
