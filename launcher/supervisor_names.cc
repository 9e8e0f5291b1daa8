// The names of the job's segments, which somebody may remove or replace under it: watched while it
// runs, put back at its end.
#include "launcher/supervisor.h"
#include "shm/resident_segment.h"

namespace optlease {

// As soon as the segments are there: what is open can be given its name back. Not the gradient
// segments: their actors make them anew between steps, and an old one's sums would be a wrong
// step's.
void Supervisor::open_watch() {
  std::vector<std::string> names = {claim_.run.control_segment()};
  for (uint32_t r = 0; r < setup_.plan.segment.world_size; ++r) {
    names.push_back(claim_.run.arena_segment(Rank(r)));
  }
  auto word = CommittedWord::open(claim_.run.control_segment());
  if (word) committed_.emplace(std::move(word).value());
  auto watch = NameWatch::over(names);
  if (!watch) return say("the segments' names cannot be watched: " + watch.status().message());
  names_.emplace(std::move(watch).value());
}

// Somebody may remove or replace what lies in /dev/shm. The job goes on with what it has mapped.
void Supervisor::watch_names() {
  if (!names_ || core_.stopping()) return;
  // Between two lives of the store this alone says that the job lives.
  if (!serving_) serving_ = names_->serve(claim_.run.arena_segment(Rank(0))).is_ok();
  for (const std::string& path : names_->lost_now()) {
    say(path + " was removed or replaced by somebody. The job goes on, but a process that has to " +
        "be restarted cannot map its state: `optlease stop --keep` saves it under its name again");
  }
  if (lock_loss_said_ || claim_.lock.name_still_ours()) return;
  lock_loss_said_ = true;
  say("somebody removed this job's lock from /dev/shm; the job goes on");
}

// Their actors make them, and may make them anew until the initial state is committed. Where the
// device's memory holds what counts they may later, too, when somebody removed or damaged one.
void Supervisor::watch_residents() {
  const SegmentPlan& segment = setup_.plan.segment;
  if (!names_ || residents_watched_ || !segment.split.has_resident()) return;
  if (core_.facts().body.step_committed < 0) return;
  std::vector<std::string> names;
  for (uint32_t r = 0; r < segment.world_size; ++r) {
    names.push_back(claim_.run.resident_segment(Rank(r)));
  }
  residents_watched_ = true;
  const bool is_an_image = setup_.plan.device != "cpu";
  const Status added = names_->add(names, is_an_image ? is_made_anew : nullptr);
  if (!added.is_ok()) say("the resident segments cannot be watched: " + added.message());
}

Status Supervisor::restore_names(std::vector<std::string>* made) {
  return names_ ? names_->restore(made) : Status::ok();
}

}  // namespace optlease
