// What an actor needs around it to live in a test's process: a run directory of its own with the
// job's plan, and the launcher's vault, served by a thread. Gone with the object, and every segment
// of the job with it.
#pragma once

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "actors/runtime/clock.h"
#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "shm/chunk_store.h"
#include "shm/segment.h"
#include "shm/vault.h"
#include "tests/support/temp_directory.h"

namespace optlease {

// One rank, one space of `elements`, one chunk.
inline JobPlan one_rank_plan(const std::string& job, uint64_t elements) {
  JobPlan plan;
  plan.segment.job_name = job;
  plan.segment.world_size = 1;
  SpaceSpec space;
  space.name = "dense";
  space.members = {Rank(0)};
  TensorSpec tensor;
  tensor.name = "weight";
  tensor.shape = {elements};
  space.tensors = {tensor};
  plan.segment.spaces = {space};
  const Status laid_out = lay_out(&plan.segment, 0);
  OPTLEASE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
  plan.steps = 10;
  plan.optimizer.groups = {{1e-3, 0.9, 0.999, 1e-8, 0.01, static_cast<uint32_t>(Rule::kAdamW), 0}};
  plan.model.init = {{TensorInit{}}};
  return plan;
}

class ActorHome {
 public:
  explicit ActorHome(uint64_t elements) : directory_(make_directory()) {
    plan_ = one_rank_plan(directory_.job_name(), elements);
    vault_.emplace(Vault::listen(directory_.vault_socket()).value());
    server_ = std::thread([this] { serve(); });
  }
  ~ActorHome() {
    over_ = true;
    server_.join();
    ChunkStore::unlink(names());
    Segment::unlink(directory_.gradient_segment(Rank(0)));
  }
  ActorHome(const ActorHome&) = delete;
  ActorHome& operator=(const ActorHome&) = delete;

  const JobPlan& plan() const { return plan_; }
  const RunDirectory& directory() const { return directory_; }
  SegmentNames names() const {
    return {directory_.control_segment(), {directory_.arena_segment(Rank(0))}};
  }

 private:
  RunDirectory make_directory() {
    ::setenv("XDG_RUNTIME_DIR", root_.path().c_str(), 1);
    static std::atomic<int> serial{0};
    const std::string job = format("actor-test-%d-%d", static_cast<int>(::getpid()), serial++);
    Result<RunDirectory> directory = RunDirectory::of(job);
    OPTLEASE_CHECK(directory.is_ok(), "%s", directory.status().text().c_str());
    const Status made = directory.value().create();
    OPTLEASE_CHECK(made.is_ok(), "%s", made.text().c_str());
    return directory.value();
  }
  void serve() {
    while (!over_) {
      pollfd waiting{vault_->fd(), POLLIN, 0};
      ::poll(&waiting, 1, 5);
      vault_->serve(static_cast<uint64_t>(now_ms()));
    }
  }

  testing_support::TempDirectory root_;
  RunDirectory directory_;
  JobPlan plan_;
  std::optional<Vault> vault_;
  std::atomic<bool> over_{false};
  std::thread server_;
};

}  // namespace optlease
