#include "launcher/job_place.h"

#include <unistd.h>

#include "actors/wire/socket.h"
#include "shm/processes.h"
#include "shm/segment.h"

namespace optlease {

std::optional<JobPlace> runs_elsewhere(const RunDirectory& run) {
  if (is_listening(run.launcher_socket())) return std::nullopt;
  const std::string here = run_root();
  const std::string socket = run.launcher_socket().substr(here.size());
  const std::string plan = run.job_file().substr(here.size());
  std::optional<JobPlace> silent;
  // The lock's name may have been removed under the job: then its segments tell.
  for (const std::string& name :
       {run.lock_segment(), run.control_segment(), run.arena_segment(Rank(0))}) {
    for (const int pid : processes_with_open(Segment::path_of(name))) {
      JobPlace place;
      place.pid = pid;
      place.xdg_runtime_dir = environment_of(pid, "XDG_RUNTIME_DIR");
      place.run_root = run_root_under(place.xdg_runtime_dir.c_str());
      if (place.run_root == here) continue;
      place.listens = is_listening(place.run_root + socket);
      if (place.listens) return place;
      // A tool that only reads the state has its lock too, but no run directory of the job.
      if (!silent && access((place.run_root + plan).c_str(), F_OK) == 0) silent = place;
    }
  }
  return silent;
}

std::string lock_holders_text(const RunDirectory& run) {
  return describe_processes(processes_with_open(Segment::path_of(run.lock_segment())));
}

}  // namespace optlease
