// Watches that the names of a job's segments are still those that the store opened: somebody may
// remove or replace them under a running store. While it lives the control segment is marked as
// served. Used by HostStore. It holds descriptors, no mapping.
#pragma once

#include <string>
#include <vector>

#include "shm/chunk_store.h"
#include "shm/segment.h"

namespace optlease {

class NameWatch {
 public:
  // Busy where another store serves these segments.
  static Result<NameWatch> over(const SegmentNames& names);
  // The paths that were lost since the last call; each is told once.
  std::vector<std::string> lost_now();

 private:
  std::vector<Segment> segments_;
};

}  // namespace optlease
