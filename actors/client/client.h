// What stands behind the C interface: one attachment of a trainer to its rank's actor. Used by
// optlease_abi.cc alone; programs use optlease.h. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/client/actor_link.h"
#include "actors/client/job_files.h"
#include "actors/client/space_buffers.h"
#include "shm/contract/messages.h"
#include "shm/contract/status.h"

namespace optlease {

// The numbers of one step, with NaN for "as configured" as the protocol has them.
struct StepAsk {
  double lr = 0;
  double grad_scale = 1;
  double max_norm = 0;
  std::optional<std::string_view> blob;  // nothing: the previous blob stays
};

class Client {
 public:
  // timeout_ms 0: the job's own attach timeout.
  static Result<std::unique_ptr<Client>> attach(const std::string& job, uint32_t rank,
                                                uint64_t timeout_ms);

  uint32_t rank() const { return rank_; }
  DevicePlace place() const { return place_; }  // where the buffers are
  const JobPlan& plan() const { return job_.plan; }
  Step last_step() const { return last_step_; }
  const std::string& blob() const { return blob_; }

  // Addresses of place(). Null for a space without elements. NotFound where the space does not
  // exist or is not this rank's.
  Result<void*> params(uint32_t space) const;
  Result<void*> grads(uint32_t space) const;

  // The step after last_step(). Unless it was committed or refused, the step stays in flight, and
  // the next call goes on waiting for it whatever it asks.
  Result<StepReplyBody> step(const StepAsk& ask, uint64_t timeout_ms);

  // Tells the actor that gradients of `step` are coming; a hint, which waits for nothing. Busy
  // while a step is in flight, StaleStep unless it is the step after last_step() and the job has
  // it.
  Status prepare(Step step);

  void say_detach() { link_.say_detach(); }

 private:
  Client(RunningJob job, uint32_t rank, DevicePlace place, std::vector<ClientSpaceBuffers> buffers,
         ActorLink link);
  Status say_attach(Deadline deadline);
  Result<const ClientSpaceBuffers*> buffers_of(uint32_t space) const;
  OpenRequest open_step(const StepAsk& ask);
  void take_committed(Step step);

  // Constant after construction.
  RunningJob job_;
  uint32_t rank_;
  DevicePlace place_;
  std::vector<ClientSpaceBuffers> buffers_;  // [space]

  ActorLink link_;
  Step last_step_ = 0;
  std::string blob_;                      // committed with last_step_
  std::optional<OpenRequest> in_flight_;  // for last_step_ + 1
};

}  // namespace optlease
