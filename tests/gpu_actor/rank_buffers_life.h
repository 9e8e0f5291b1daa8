// One launcher's life after another around RankBuffers: what tests of its parts share.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "actors/gpu_actor/rank_buffers.h"
#include "shm/vault.h"
#include "tests/support/temp_directory.h"

namespace optlease {

inline constexpr uint64_t kElements = 1000;
inline constexpr uint64_t kTimeoutMs = 20000;

// Two spaces over two ranks; the second is too small for rank 1 to have a shard of it.
inline JobPlan two_space_plan() {
  JobPlan plan;
  plan.segment.job_name = "shards";
  plan.segment.world_size = 2;
  for (const uint64_t elements : {kElements, uint64_t{3}}) {
    SpaceSpec space;
    space.name = elements == kElements ? "dense" : "tiny";
    space.members = {Rank(0), Rank(1)};
    TensorSpec tensor;
    tensor.name = "w";
    tensor.shape = {elements};
    space.tensors.push_back(tensor);
    plan.segment.spaces.push_back(space);
  }
  const Status laid_out = lay_out(&plan.segment, 4096);
  OPTLEASE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
  return plan;
}

// One launcher's life after another: each has a new vault, the segments stay.
class RankBuffersTest : public testing::Test {
 protected:
  RankBuffersTest() {
    setup_.rank = Rank(0);
    setup_.vault_socket = directory_.path() + "/vault.sock";
    setup_.gradient_segment = format("/optlease-test-shards.%d", static_cast<int>(getpid()));
    std::memset(setup_.job_id, 0x11, sizeof setup_.job_id);
    setup_.timeout_ms = kTimeoutMs;
    setup_.home = ShardHome::kVault;
    start_launcher();
  }
  ~RankBuffersTest() override {
    end_launcher();
    Segment::unlink(setup_.gradient_segment);
    Segment::unlink(setup_.resident_segment);
  }
  // From here on the state has a resident part, of which `has_state` chunks are committed.
  void make_resident(bool has_state) {
    setup_.resident_segment = format("/optlease-test-resident.%d", static_cast<int>(getpid()));
    ResidentSegment::Shape shape;
    std::memcpy(shape.job_id, setup_.job_id, sizeof shape.job_id);
    shape.rank = setup_.rank;
    shape.slot_bytes = 4096;
    shape.slot_count = 5;
    setup_.resident = shape;
    setup_.has_state = has_state;
  }
  static char* resident_of(RankBuffers& buffers) { return buffers.resident()->slots().device; }
  static void save(RankBuffers& buffers, Step step) {
    Result<bool> saved = false;
    while (saved.is_ok() && !saved.value()) {
      saved = buffers.resident()->save_some(step, buffers.memory());
    }
    ASSERT_TRUE(saved.is_ok()) << saved.status().text();
  }
  void start_launcher() {
    Result<Vault> vault = Vault::listen(setup_.vault_socket);
    OPTLEASE_CHECK(vault.is_ok(), "%s", vault.status().text().c_str());
    vault_ = std::make_unique<Vault>(std::move(vault).value());
    stop_ = false;
    thread_ = std::thread([this] {
      while (!stop_) {
        pollfd poll_fd{vault_->fd(), POLLIN, 0};
        ::poll(&poll_fd, 1, 2);
        vault_->serve(0);
      }
    });
  }
  void end_launcher() {
    stop_ = true;
    thread_.join();
    vault_.reset();
  }
  void next_launcher() {
    end_launcher();
    start_launcher();
  }
  // What the launcher holds, seen while it stands still.
  std::vector<std::string> keys() {
    stop_ = true;
    thread_.join();
    std::vector<std::string> keys;
    for (const VaultHolding& holding : vault_->holdings()) keys.push_back(holding.key);
    vault_.reset();
    start_launcher();
    return keys;
  }
  // Opened by an actor's life; the object's end is the life's.
  Result<RankBuffers> open(Step open_step) {
    RankBuffersSetup setup = setup_;
    setup.open_step = open_step;
    Result<DeviceMemory> memory = DeviceMemory::open({});
    return RankBuffers::open(plan_, setup, std::move(memory).value());
  }
  RankBuffers opened(Step open_step) {
    Result<RankBuffers> buffers = open(open_step);
    OPTLEASE_CHECK(buffers.is_ok(), "%s", buffers.status().text().c_str());
    return std::move(buffers).value();
  }
  static void fill(RankBuffers& buffers, float first) {
    for (RankSpace& mine : buffers.spaces()) {
      for (uint64_t i = 0; i < mine.shard.size(); ++i) {
        mine.grad_shard[i] =
            first + static_cast<float>(i) + 1000.0f * static_cast<float>(mine.space);
      }
    }
  }
  static bool holds(RankBuffers& buffers, float first) {
    for (RankSpace& mine : buffers.spaces()) {
      for (uint64_t i = 0; i < mine.shard.size(); ++i) {
        const float wanted =
            first + static_cast<float>(i) + 1000.0f * static_cast<float>(mine.space);
        if (mine.grad_shard[i] != wanted) return false;
      }
    }
    return true;
  }

  testing_support::TempDirectory directory_;
  JobPlan plan_ = two_space_plan();
  RankBuffersSetup setup_;
  std::unique_ptr<Vault> vault_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace optlease
