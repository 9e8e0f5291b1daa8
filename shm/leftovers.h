// What jobs of this user have left on this node: segments and run directories, grouped by job, and
// their removal. Used by `optlease status` and `optlease clean`. It touches nothing of a job that
// lives, of another user or of another version, and follows no symbolic link.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shm/contract/ids.h"
#include "shm/contract/status.h"

namespace optlease {

// Where to look. The names of a job: "/" + segment_prefix + <job> + ".ctl" | ".lock" | ".r<rank>" |
// ".g<rank>" | ".d<rank>", and run_root + "/" + <job>.
struct LeftoverPlaces {
  std::string segment_prefix;  // "optlease.<uid>."
  std::string run_root;        // need not exist; empty: none
};

enum class LeftoverState {
  kLive,       // its lock is held: some process of it runs
  kResumable,  // valid and unlocked: can go on from `step_committed`
  kKept,       // the same, and stopped with the wish to keep it
  kRemains,    // no step was ever committed, its removal has begun, or it is no state; `why` says
  kDamaged,    // it holds, or may hold, a committed step and cannot be used as it is; `why` says
  kForeign,    // something that this program neither uses nor removes has its names; `why` says
};
const char* name_of(LeftoverState state);

struct LeftoverJob {
  std::string job;
  LeftoverState state = LeftoverState::kForeign;
  Step step_committed = kNoStep;      // kNoStep where it cannot be read
  std::string why;                    // kRemains, kDamaged, kForeign: the reason in words
  std::vector<std::string> segments;  // names with '/', ascending, the lock among them
  std::string run_directory;          // empty: none
  uint64_t bytes = 0;                 // of shared memory
};

// Jobs ascending by name. A broken job is an entry, not an error; so is a name of this user's jobs
// that another user has taken.
Result<std::vector<LeftoverJob>> scan_leftovers(const LeftoverPlaces& places);

struct CleanOptions {
  bool dry_run = false;  // report only; not even a lock is made
  bool include_kept = false;
  bool include_damaged = false;
  std::string only_job;  // empty: all
  // Further evidence that a job lives, asked where its lock is free or gone: somebody may have
  // deleted the lock's name under it. Empty: the lock alone decides.
  std::function<bool(const std::string& job)> answers;
};

struct CleanedItem {
  std::string path;
  uint64_t bytes = 0;
};

struct CleanReport {
  std::vector<CleanedItem> removed;  // or what would be
  std::vector<std::string> kept;     // "<job>: why it was left"
  uint64_t bytes = 0;
};

// Takes each job's lock before it looks and removes, so that it races neither starters nor others
// who clean.
Result<CleanReport> clean_leftovers(const LeftoverPlaces& places, const CleanOptions& options);

}  // namespace optlease
