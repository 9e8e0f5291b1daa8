// One rank's arena and a window pipeline over it, on a device that checks every address that it is
// given, for actor_fuzz.cc.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/gpu_actor/window_pipeline.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/segment_image.h"

namespace optlease::fuzz {

// Rank 1 of sample_plan(1), at step 1: its segments are made once and only read after that, but for
// its slots, whose bytes mean nothing here.
class Rank1 {
 public:
  static Rank1& one();
  const ChunkWindow& window() const { return *window_; }
  const ArenaSpec& arena() const { return arena_; }
  const SegmentPlan& plan() const { return sample_plan(1); }

 private:
  Rank1();
  ArenaSpec arena_;
  std::optional<ChunkWindow> window_;
};

// Does everything at once, and says so when it is told to.
class CheckingDevice final : public Device {
 public:
  // The next `count` tickets of the stream are reached.
  void progress(uint32_t stream, uint64_t count);

  const char* name() const override { return "fuzz"; }
  Status allocate_staging(uint32_t count, uint64_t bytes_each) override;
  char* staging(uint32_t buffer) override { return staging_.at(buffer).data(); }
  uint64_t staging_bytes() const override { return 0; }
  Status adopt_host_memory(const HostMemory&) override { return Status::ok(); }
  void copy(StreamKind stream, void* destination, const void* source, uint64_t bytes) override;
  void copy_within(void*, const void*, uint64_t) override { OPTLEASE_CHECK(false, "no such part"); }
  void update(const AdamChunk& chunk, const AdamFactors& factors, ChunkSums* sums) override;
  void republish(const AdamChunk& chunk, ChunkSums* sums) override;
  void sum_gradient(const float*, uint64_t, uint64_t, ChunkSums*) override {}
  void run_on_host(StreamKind, std::function<void()> work) override { work(); }
  Ticket signal(StreamKind stream) override { return {stream, ++issued_[index(stream)]}; }
  void wait(StreamKind, Ticket) override {}
  bool reached(Ticket ticket) override { return ticket.value <= done_[index(ticket.stream)]; }
  int completion_fd() const override { return -1; }
  void drain_completions() override {}
  DeviceCounters counters() const override { return {}; }
  DeviceMemoryUse memory_use() const override { return {}; }
  Status failure() const override { return Status::ok(); }

 private:
  static uint32_t index(StreamKind stream) { return static_cast<uint32_t>(stream); }
  struct Pending {
    uint64_t ticket = 0;  // of the compute stream
    ChunkSums* sums = nullptr;
  };
  bool is_staging(const void* at, uint64_t bytes) const;
  void touch(const AdamChunk& chunk, ChunkSums* sums);

  std::vector<std::vector<char>> staging_;
  std::vector<Pending> pending_;
  uint64_t issued_[kStreamCount] = {};
  uint64_t done_[kStreamCount] = {};
};

class PipelineWorld final : public PipelinePort {
 public:
  explicit PipelineWorld(uint8_t limits);
  void step(Input* input);
  // Whatever has become of it, it can be abandoned and drained.
  void finish();

  void request_lease(Step step, uint32_t first_chunk, uint32_t chunk_count) override;
  void request_commit(const CommitRequestBody& body, const std::vector<SlotEntry>& shadow) override;
  void return_lease(uint64_t lease_id) override { given_back_.insert(lease_id); }
  void at_phase(RehearsePhase, Step) override {}
  bool keeps_last_commit(Step) override { return false; }
  void corrupt_chunk(const CorruptChunkBody& body) override;

 private:
  void start(Input* input);
  void prefetch(Input* input);
  void grant(Input* input);
  void reply(Input* input);
  void progress(Input* input);
  void abandon();

  CheckingDevice device_;
  PipelineLimits limits_;
  std::optional<WindowPipeline> pipeline_;
  std::vector<std::vector<char>> params_;
  std::vector<float> grads_;
  Step step_ = 1;
  uint64_t now_us_ = 1;
  uint64_t next_lease_ = 1;
  bool running_ = false;
  std::map<uint32_t, uint32_t> asked_;                  // chunks by first chunk
  std::map<uint64_t, std::vector<GrantEntry>> grants_;  // by lease
  std::map<uint32_t, CommitRequestBody> commits_;       // by first chunk
  std::set<uint64_t> given_back_;
};

// Runs of each kind, whole and abandoned, with honest grants and replies.
std::vector<std::string> pipeline_seeds();

}  // namespace optlease::fuzz
