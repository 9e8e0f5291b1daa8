// Where a job's sockets and segments are. Pure path arithmetic plus the creation of the run
// directory: mode 0700, owned by this user, no symlink, or refused in words.
//
//   run directory   $XDG_RUNTIME_DIR/optlease/<job>  or  /tmp/optlease-<uid>/<job>
//   segments        /optlease.<uid>.<job>.ctl | .r<rank> (arena) | .g<rank> (gradient shards)
//                   | .d<rank> (resident slots)
//                   | .lock (empty; its flock is the ownership of the job)
#pragma once

#include <sys/types.h>

#include <istream>
#include <string>

#include "shm/contract/ids.h"
#include "shm/contract/status.h"

namespace optlease {

// Null-terminated reason why `name` is no job name ([A-Za-z0-9_-], 1..48 bytes, no leading '-'), or
// an empty string.
std::string why_invalid_job_name(const std::string& name);

// Whether a file of `uid` may be anybody's: in a user namespace that maps some users only, all
// others' files look like 65534's. `uid_map` is the text of /proc/self/uid_map. False where that
// user is one of the namespace's own, as in one that maps everybody, or where the text is not
// understood.
bool is_unmapped(uid_t uid, std::istream& uid_map);

// The directory that holds all run directories of this user (not created).
std::string run_root();
// The same for another value of XDG_RUNTIME_DIR; null or no absolute path: as if it were not set.
std::string run_root_under(const char* xdg_runtime_dir);

class RunDirectory {
 public:
  // Paths only; nothing is touched. InvalidArgument where a socket path would pass 107 bytes.
  static Result<RunDirectory> of(const std::string& job_name);
  // Creates root and directory where missing; refuses foreign owners, symlinks, other modes, and a
  // folder of the root in which others may rename it.
  Status create() const;
  // For those who use what is there: refuses the same. NotFound: there is none.
  Status check() const;

  const std::string& path() const { return path_; }
  const std::string& job_name() const { return job_name_; }
  std::string job_file() const;                   // JobPlan as JSON, while the job runs
  std::string kept_file() const;                  // the same, of a state that was kept at the end
  std::string store_socket() const;               // host store ROUTER
  std::string launcher_socket() const;            // launcher ROUTER, JSON requests
  std::string vault_socket() const;               // launcher, Unix stream: shared-buffer fds
  std::string actor_socket(Rank rank) const;      // actor ROUTER: trainer protocol
  std::string telemetry_socket(Rank rank) const;  // actor PUB
  std::string snapshot_socket(Rank rank) const;   // actor ROUTER: full snapshot on request
  std::string group_directory() const;            // Gloo rendezvous files, one folder a group epoch
  std::string log_file(const std::string& process) const;

  std::string control_segment() const;  // shm_open names, with the leading '/'
  std::string arena_segment(Rank rank) const;
  std::string gradient_segment(Rank rank) const;
  std::string resident_segment(Rank rank) const;
  std::string lock_segment() const;

 private:
  std::string path_;
  std::string job_name_;
};

// "optlease.<uid>." — what every segment name of this user starts with, without the '/'.
std::string segment_prefix();

}  // namespace optlease
