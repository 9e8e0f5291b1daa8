// Watches that segments' names are still those that were opened: somebody may remove or replace
// them under a running job. What is watched stays in memory as long as the watch lives, and can be
// given a name again. Used by the host store, which also marks what it serves, and by the launcher,
// which restores names at a job's end. It holds descriptors, no mapping.
#pragma once

#include <string>
#include <vector>

#include "shm/segment.h"

namespace optlease {

class NameWatch {
 public:
  static Result<NameWatch> over(const std::vector<std::string>& names);
  // True where `stands`, under the name of `was`, is what its maker may have made anew in its
  // place: then it is watched instead, and `was` is given up. Neither is mapped.
  using Successor = bool (*)(const Segment& was, const Segment& stands);
  // Watches these, too. On failure none of them. Without `successor` nothing takes their place.
  Status add(const std::vector<std::string>& names, Successor successor = nullptr);
  // Marks segment `name` as served while the watch lives. Busy where another process serves or
  // probes it: try again later.
  // REQUIRES: it is watched.
  Status serve(const std::string& name);

  // The paths that were lost since the last call; each is told once.
  std::vector<std::string> lost_now();
  // Makes every lost segment anew, under its name and with its bytes, and adds the paths to `made`.
  // The copy needs as much shared memory again. All are tried; the first error is NoSpace, or
  // AlreadyExists where somebody has put another file there, which is left alone.
  // REQUIRES: no process writes to them any more.
  Status restore(std::vector<std::string>* made);

 private:
  struct Watched {
    Segment segment;
    bool told = false;
    Successor successor = nullptr;
  };
  static bool is_ours(Watched& watched);
  std::vector<Watched> watched_;
};

}  // namespace optlease
