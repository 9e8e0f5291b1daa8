// The buffers a rank's actor shares: parameters and gradients with its trainer (memfds whose
// duplicates the launcher's vault keeps), and the summed gradient shards, a named segment: a step
// whose records are durable can be finished from it even after every process of the node is gone.
// The first incarnation makes them, later ones find them as they were left.
#pragma once

#include <string>
#include <vector>

#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "shm/segment.h"
#include "shm/shared_buffer.h"

namespace optlease {

// One space in which the rank is a member.
struct RankSpace {
  uint32_t space = 0;   // index into the plan
  uint32_t member = 0;  // this rank's
  ElementRange shard;
  MappedBuffer params;          // whole space in param_dtype
  MappedBuffer grads;           // whole space in grad_dtype
  float* grad_shard = nullptr;  // within the gradient segment; null for an empty shard
};

class RankBuffers {
 public:
  // `step_is_open`: the gradient segment's bytes are needed; one that is missing or torn is
  // Corrupt.
  static Result<RankBuffers> open(const JobPlan& plan, Rank rank, const RunDirectory& directory,
                                  bool step_is_open, uint64_t timeout_ms);
  std::vector<RankSpace>& spaces() { return spaces_; }

 private:
  std::vector<RankSpace> spaces_;
  std::vector<Segment> segment_;  // one or none
};

}  // namespace optlease
