// gradients.durable: the worker saves the summed shards before anybody can know the step's record,
// over the cpu kind of device memory as the cuda device keeps its shards.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "actors/gpu_actor/collective_worker.h"
#include "actors/gpu_actor/saved_shards.h"
#include "kernels/checksum.h"
#include "shm/vault.h"
#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

// A group whose sums are the step's number in every element.
class StepSums final : public Collectives {
 public:
  explicit StepSums(uint64_t elements) : elements_(elements) {}
  Status connect(uint64_t, Rank, uint32_t, uint64_t) override { return Status::ok(); }
  Status reduce_scatter(const ReduceScatterCall& call) override {
    for (uint64_t i = 0; i < elements_; ++i) {
      call.shard_out[i] = static_cast<float>(call.tag.step);
    }
    return Status::ok();
  }
  Status all_gather(const AllGatherCall&) override { return Status::ok(); }
  Status all_gather_fixed(CallTag, const void* mine, uint32_t bytes, void* out) override {
    std::memcpy(out, mine, bytes);
    return Status::ok();
  }
  void abort(uint64_t) override {}

 private:
  uint64_t elements_;
};

class DurableShards : public testing::Test {
 protected:
  static constexpr uint64_t kElements = 640;

  DurableShards() {
    plan_.segment.job_name = "durable";
    plan_.segment.world_size = 1;
    SpaceSpec space;
    space.name = "dense";
    space.members = {Rank(0)};
    TensorSpec tensor;
    tensor.name = "w";
    tensor.shape = {kElements};
    space.tensors.push_back(tensor);
    plan_.segment.spaces.push_back(space);
    OPTLEASE_CHECK(lay_out(&plan_.segment, 4096).is_ok(), "lay_out");
    plan_.optimizer.groups.push_back(
        GroupParams{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .rule = 1});
    Result<Vault> vault = Vault::listen(setup_.vault_socket = directory_.path() + "/vault.sock");
    OPTLEASE_CHECK(vault.is_ok(), "%s", vault.status().text().c_str());
    vault_ = std::make_unique<Vault>(std::move(vault).value());
    thread_ = std::thread([this] {
      while (!stop_) {
        pollfd poll_fd{vault_->fd(), POLLIN, 0};
        ::poll(&poll_fd, 1, 2);
        vault_->serve(0);
      }
    });
    setup_.gradient_segment = format("/optlease-test-durable.%d", static_cast<int>(getpid()));
    setup_.timeout_ms = 20000;
    setup_.home = ShardHome::kVault;
  }
  ~DurableShards() override {
    stop_ = true;
    thread_.join();
    ::close(event_);
    Segment::unlink(setup_.gradient_segment);
  }
  // Reduces step 7; the step whose shards are then in the segment.
  Step saved_after_reducing(bool durable) {
    plan_.gradients.durable = durable;
    Result<DeviceMemory> memory = DeviceMemory::open({});
    Result<RankBuffers> opened = RankBuffers::open(plan_, setup_, std::move(memory).value());
    OPTLEASE_CHECK(opened.is_ok(), "%s", opened.status().text().c_str());
    RankBuffers buffers = std::move(opened).value();
    {
      CollectiveWorker worker(plan_, Rank(0), buffers, std::make_unique<StepSums>(kElements),
                              make_cpu_gradient_math(), event_);
      worker.reduce({.gather = false, .group_epoch = 1, .step = 7, .needs = {1}}, {}, 6);
      uint64_t count = 0;
      EXPECT_EQ(::read(event_, &count, sizeof count), 8);  // blocks until the outcome is there
      const std::vector<WorkOutcome> outcomes = worker.take_outcomes();
      EXPECT_EQ(outcomes.size(), 1u);
      EXPECT_TRUE(outcomes.at(0).status.is_ok()) << outcomes.at(0).status.text();
      EXPECT_EQ(outcomes.at(0).record.step, 7);
      EXPECT_EQ(outcomes.at(0).sums.step, 7);
      const std::vector<float> sums(kElements, 7.0f);
      EXPECT_EQ(outcomes.at(0).sums.digest().digest, checksum_words(sums.data(), kElements, 0));
    }
    SavedShards::Owner owner;
    Result<SavedShards> saved =
        SavedShards::open(setup_.gradient_segment, owner, {kElements * sizeof(float)}, false);
    OPTLEASE_CHECK(saved.is_ok(), "%s", saved.status().text().c_str());
    if (saved.value().step() != kNoStep) {
      std::vector<float> shard(kElements);
      EXPECT_TRUE(saved.value().restore(0, shard.data(), buffers.memory()).is_ok());
      EXPECT_EQ(shard, std::vector<float>(kElements, 7.0f));
    }
    return saved.value().step();
  }

  testing_support::TempDirectory directory_;
  JobPlan plan_;
  RankBuffersSetup setup_;
  std::unique_ptr<Vault> vault_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  int event_ = ::eventfd(0, EFD_CLOEXEC);
};

TEST_F(DurableShards, AreSavedByTheTimeTheRecordIsThere) {
  EXPECT_EQ(saved_after_reducing(true), 7);
}

TEST_F(DurableShards, AreNotSavedAtEveryStepUnlessTheJobSaysSo) {
  EXPECT_EQ(saved_after_reducing(false), kNoStep);
}

}  // namespace
}  // namespace optlease
