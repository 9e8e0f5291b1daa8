// One rank's state behind the real chunk store, lease table, window pipeline and device, all in
// this process: what pipeline tests and the streaming benchmarks drive. Messages are calls; replies
// are delivered between two turns of the pipeline, as the actor's loop would.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "actors/gpu_actor/device.h"
#include "actors/gpu_actor/pin_plan.h"
#include "actors/gpu_actor/window_pipeline.h"
#include "actors/runtime/clock.h"
#include "shm/chunk_store.h"
#include "shm/chunk_window.h"
#include "shm/contract/remainder.h"
#include "shm/lease_table.h"

namespace optlease {

struct InProcessShape {
  uint64_t elements = 0;
  uint64_t chunk_size_bytes = 0;
  uint32_t window_chunks = 1;
  uint32_t prefetch_windows = 2;
  uint32_t staging_buffers = 3;
  DType param_dtype = DType::kF32;
  const char* device = "cpu";
  char* device_params = nullptr;  // where the device is not the CPU: its parameter buffer
  bool adopt_arena = true;        // false: the device is not told of the arena
  StateSplit split;
  char* device_resident = nullptr;  // where the device is not the CPU: its resident slots, and
  std::function<std::vector<char>()> take_resident;  // their bytes in host memory
};

// Names of tests: without it they hold addresses, another one each time.
inline void PrintTo(const InProcessShape& shape, std::ostream* out) {
  *out << shape.elements << " elements, chunks of " << shape.chunk_size_bytes << " B, windows of "
       << shape.window_chunks << ", " << shape.staging_buffers << " buffers, main "
       << name_of(shape.split.main) << ", resident " << shape.split.resident_millionths;
}

class InProcessJob final : public PipelinePort {
 public:
  explicit InProcessJob(const InProcessShape& shape) : shape_(shape), plan_(plan_of(shape)) {
    static std::atomic<int> serial{0};
    const std::string base = format("/optlease-test.%d.%d", static_cast<int>(getpid()), serial++);
    names_ = {base + ".ctl", {base + ".r0"}};
    Result<ChunkStore> store = ChunkStore::create(plan_, names_);
    OPTLEASE_CHECK(store.is_ok(), "%s", store.status().text().c_str());
    store_ = std::make_unique<ChunkStore>(std::move(store).value());
    Result<ChunkWindow> window = ChunkWindow::open(names_.control, names_.arenas[0], kRank);
    OPTLEASE_CHECK(window.is_ok(), "%s", window.status().text().c_str());
    window_ = std::make_unique<ChunkWindow>(std::move(window).value());
    arena_ = arena_of(plan_, kRank);
    if (shape.device_params == nullptr) {
      params_.resize(shape.elements * bytes_of(shape.param_dtype));
    }
    resident_.resize(arena_.resident_slot_bytes * arena_.slot_count);
    restart_actor();
  }
  ~InProcessJob() override {
    device_.reset();
    ChunkStore::unlink(names_);
  }
  InProcessJob(const InProcessJob&) = delete;
  InProcessJob& operator=(const InProcessJob&) = delete;

  // A new life of the actor: new device, pipeline and incarnation; the store's state stays.
  void restart_actor() {
    device_.reset();  // what was enqueued has run: the old life is "reaped"
    pipeline_.reset();
    replies_.clear();
    Result<std::unique_ptr<Device>> device = make_device(shape_.device, kRank);
    OPTLEASE_CHECK(device.is_ok(), "%s", device.status().text().c_str());
    device_ = std::move(device).value();
    const Status staged =
        device_->allocate_staging(shape_.staging_buffers, arena_.slot_bytes * shape_.window_chunks);
    OPTLEASE_CHECK(staged.is_ok(), "%s", staged.text().c_str());
    if (shape_.adopt_arena) {
      const uint32_t ahead = shape_.window_chunks * (shape_.prefetch_windows + 1);
      const Status adopted =
          device_->adopt_host_memory(arena_memory(*window_, kRank, arena_, ahead));
      OPTLEASE_CHECK(adopted.is_ok(), "%s", adopted.text().c_str());
    }
    PipelineLimits limits{shape_.window_chunks, shape_.staging_buffers,
                          shape_.prefetch_windows + 1};
    pipeline_ = std::make_unique<WindowPipeline>(*device_, *window_, kRank, arena_,
                                                 resident_slots(), limits, *this);
    // The lease table is the store's memory; here it is rebuilt with the actor, as after a store's
    // death.
    leases_ = std::make_unique<LeaseTable>(LeaseTableOptions{60'000, 0, shape_.window_chunks});
    leases_->add_rank(kRank, std::vector<uint32_t>(arena_.chunks.size(), 1),
                      store_->unreferenced_slots(kRank), Incarnation(0));
    ++incarnation_.value;
    const Status hello = leases_->hello(kRank, incarnation_, now());
    OPTLEASE_CHECK(hello.is_ok(), "%s", hello.text().c_str());
  }

  // Runs until the pipeline is idle, `stop` says so, or it fails.
  Status run(RunKind kind, Step step, const AdamFactors& factors, const float* grads,
             FillInitial fill = {}, const std::function<bool()>& stop = {}) {
    std::vector<uint32_t> chunks;
    for (uint32_t c = 0; c < arena_.chunks.size(); ++c) {
      const bool behind = store_->view().version(kRank, ChunkIndex(c)) < step;
      if (kind == RunKind::kRepublish || behind) chunks.push_back(c);
    }
    SpaceBuffers space;
    space.params = shape_.device_params != nullptr ? shape_.device_params : params_.data();
    space.grad_shard = grads;
    space.grad_first_word = kGradFirstWord;
    space.shard = {0, shape_.elements};
    space.param_dtype = shape_.param_dtype;
    space.factors = factors;
    GradCheck check;
    if (kind == RunKind::kUpdate) {
      check = {grad_sums.empty() ? sums_of(grads) : grad_sums, "memory of the test"};
    }
    pipeline_->start(kind, step, chunks, {space}, std::move(check), std::move(fill));
    while (!pipeline_->idle()) {
      pipeline_->advance(static_cast<uint64_t>(now_us()));
      if (!pipeline_->failure().is_ok()) {
        finish_enqueued();
        return pipeline_->failure();
      }
      if (stop && stop()) return {StatusCode::kCancelled, "stopped by the test"};
      deliver();
    }
    return Status::ok();
  }

  // What the rank that reduced `grads` keeps of them.
  // Windows in flight go on reading the gradients, which may be gone once run() has returned.
  void finish_enqueued() {
    for (const StreamKind kind :
         {StreamKind::kCopyIn, StreamKind::kCompute, StreamKind::kCopyOut}) {
      const Ticket last = device_->signal(kind);
      while (device_->failure().is_ok() && !device_->reached(last)) {
        pollfd waiting{device_->completion_fd(), POLLIN, 0};
        poll(&waiting, 1, 5);
        device_->drain_completions();
      }
    }
  }

  std::vector<uint64_t> sums_of(const float* grads) {
    std::vector<ChunkSums> sums(arena_.chunks.size());
    for (size_t c = 0; c < sums.size(); ++c) {
      const ElementRange range = arena_.chunks[c].range;
      device_->sum_gradient(grads + range.begin, range.size(), kGradFirstWord + range.begin,
                            &sums[c]);
    }
    const Ticket done = device_->signal(StreamKind::kCompute);
    while (!device_->reached(done)) {
      OPTLEASE_CHECK(device_->failure().is_ok(), "%s", device_->failure().text().c_str());
      pollfd waiting{device_->completion_fd(), POLLIN, 0};
      poll(&waiting, 1, 5);
      device_->drain_completions();
    }
    std::vector<uint64_t> of_chunk;
    for (const ChunkSums& chunk : sums) of_chunk.push_back(chunk.grad);
    return of_chunk;
  }

  // As an actor whose trainer prepares `step`: turns until as many windows are in staging as can
  // be, or for `turns`.
  void prefetch(Step step, int turns) {
    std::vector<uint32_t> chunks;
    for (uint32_t c = 0; c < arena_.chunks.size(); ++c) chunks.push_back(c);
    pipeline_->prefetch(step, chunks);
    for (int turn = 0; turn < turns; ++turn) {
      pipeline_->advance(static_cast<uint64_t>(now_us()));
      deliver();
    }
  }
  // The first grant once more, as one whose request was repeated while it was on its way.
  void repeat_first_grant() {
    pipeline_->on_grant(grants.at(0).first, grants.at(0).second, static_cast<uint64_t>(now_us()));
  }
  // What the store has to say after the pipeline ended its prefetch.
  void settle() {
    while (!replies_.empty()) deliver();
  }

  void request_lease(Step step, uint32_t first, uint32_t count) override {
    replies_.push_back([=, this] {
      const Result<Lease> lease = leases_->grant(kRank, incarnation_, step, first, count, now());
      if (!lease.is_ok()) {
        OPTLEASE_CHECK(lease.status().code() == StatusCode::kBusy, "%s",
                       lease.status().text().c_str());
        return pipeline_->on_lease_busy(static_cast<uint64_t>(now_us()));
      }
      LeaseGrantBody body{lease.value().id.value, step, first, count, count, 0};
      std::vector<GrantEntry> entries;
      for (uint32_t i = 0; i < count; ++i) {
        const ChunkIndex chunk(first + i);
        const SlotIndex shadow = lease.value().shadow[i];
        const SlotEntry source = store_->view().entries(kRank, chunk).front();
        const bool written = store_->view().version(kRank, chunk) != kNoStep;
        entries.push_back(
            {chunk.value, written ? source.slot : shadow.value, shadow.value, 0, source.checksum});
      }
      grants.push_back({body, entries});
      pipeline_->on_grant(body, entries, static_cast<uint64_t>(now_us()));
    });
  }
  void request_commit(const CommitRequestBody& body,
                      const std::vector<SlotEntry>& shadow) override {
    replies_.push_back([=, this] {
      const Status may = leases_->may_commit(kRank, incarnation_, LeaseId(body.lease_id), body.step,
                                             body.first_chunk, body.chunk_count, shadow, now());
      OPTLEASE_CHECK(may.is_ok(), "%s", may.text().c_str());
      std::vector<SlotIndex> freed;
      for (uint32_t i = 0; i < body.chunk_count; ++i) {
        const ChunkIndex chunk(body.first_chunk + i);
        if (store_->view().version(kRank, chunk) != kNoStep) {
          freed.push_back(SlotIndex(store_->view().entries(kRank, chunk).front().slot));
        }
        store_->commit(kRank, chunk, body.step, {&shadow[i], 1});
      }
      leases_->committed(LeaseId(body.lease_id), body.chunk_count, freed);
      pipeline_->on_commit_reply({body.lease_id, body.step, body.first_chunk, body.chunk_count});
    });
  }
  void return_lease(uint64_t lease_id) override {
    replies_.push_back([=, this] {
      const Status returned = leases_->give_back(kRank, incarnation_, LeaseId(lease_id), now());
      OPTLEASE_CHECK(returned.is_ok(), "%s", returned.text().c_str());
    });
  }
  void at_phase(RehearsePhase phase, Step step) override { phases.push_back({phase, step}); }
  bool keeps_last_commit(Step) override { return keep_last_commit; }
  void corrupt_chunk(const CorruptChunkBody& body) override { corrupt.push_back(body); }

  // The committed state, arrays gathered from the slots.
  std::vector<float> array(uint32_t index) const {
    std::vector<float> values(shape_.elements);
    const std::vector<char> resident = resident_bytes();
    for (uint32_t c = 0; c < arena_.chunks.size(); ++c) {
      const ElementRange range = arena_.chunks[c].range;
      const ChunkLayout layout = layout_of(shape_.split, range.size());
      const char* device = resident.data() + committed_slot_index(c) * arena_.resident_slot_bytes;
      for (uint64_t i = 0; i < range.size(); ++i) {
        const ArrayPlace place = place_of(layout, index, i);
        const char* at = (place.on_device ? device : committed_slot(c)) + place.offset;
        float* value = &values[range.begin + i];
        if (layout.arrays[index].element_bytes == sizeof *value) {
          std::memcpy(value, at, sizeof *value);
          continue;
        }
        uint16_t rounded = 0, remainder = 0;
        std::memcpy(&rounded, device + layout.rounded.offset + i * sizeof rounded, sizeof rounded);
        std::memcpy(&remainder, at, sizeof remainder);
        const uint32_t bits = joined_bits(rounded, remainder);
        std::memcpy(value, &bits, sizeof bits);
      }
    }
    return values;
  }
  uint32_t committed_slot_index(uint32_t chunk) const {
    return store_->view().entries(kRank, ChunkIndex(chunk)).front().slot;
  }
  // The resident slot of a chunk's committed version. On the CPU device only.
  char* committed_resident_slot(uint32_t chunk) {
    return resident_.data() + committed_slot_index(chunk) * arena_.resident_slot_bytes;
  }
  char* committed_slot(uint32_t chunk) const {
    return window_->slot(SlotIndex(committed_slot_index(chunk)));
  }
  const std::vector<char>& params() const { return params_; }
  const ArenaSpec& arena() const { return arena_; }
  Device& device() { return *device_; }
  WindowPipeline& pipeline() { return *pipeline_; }
  ChunkStore& store() { return *store_; }
  const ChunkWindow& window() const { return *window_; }
  LeaseTable& leases() { return *leases_; }
  const InProcessShape& shape() const { return shape_; }

  static constexpr Rank kRank{0};
  static constexpr uint64_t kGradFirstWord = 320;  // as if another space's shard came before
  std::vector<uint64_t> grad_sums;                 // of the gradients to come; empty: run() asks
  bool keep_last_commit = false;
  std::vector<std::pair<RehearsePhase, Step>> phases;
  std::vector<CorruptChunkBody> corrupt;
  std::vector<std::pair<LeaseGrantBody, std::vector<GrantEntry>>> grants;  // all there were

 private:
  static uint64_t now() { return static_cast<uint64_t>(now_ms()); }
  static SegmentPlan plan_of(const InProcessShape& shape) {
    SegmentPlan plan;
    plan.job_name = "in-process";
    plan.world_size = 1;
    plan.window_chunks = shape.window_chunks;
    plan.prefetch_windows = shape.prefetch_windows;
    plan.split = shape.split;
    SpaceSpec space;
    space.name = "dense";
    space.members = {kRank};
    space.param_dtype = shape.param_dtype;
    TensorSpec tensor;
    tensor.name = "weight";
    tensor.shape = {shape.elements};
    space.tensors = {tensor};
    plan.spaces = {space};
    const Status laid_out = lay_out(&plan, shape.chunk_size_bytes);
    OPTLEASE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
    return plan;
  }
  ResidentSlots resident_slots() {
    if (resident_.empty()) return {};
    char* device = shape_.device_resident != nullptr ? shape_.device_resident : resident_.data();
    return {device, resident_.data(), arena_.resident_slot_bytes};
  }
  std::vector<char> resident_bytes() const {
    return shape_.take_resident ? shape_.take_resident() : resident_;
  }
  void deliver() {
    if (replies_.empty()) {
      pollfd waiting{device_->completion_fd(), POLLIN, 0};
      poll(&waiting, 1, 5);
      device_->drain_completions();
      return;
    }
    for (size_t left = replies_.size(); left > 0; --left) {
      const auto reply = std::move(replies_.front());
      replies_.pop_front();
      reply();
    }
  }

  InProcessShape shape_;
  SegmentPlan plan_;
  SegmentNames names_;
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<ChunkWindow> window_;
  ArenaSpec arena_;
  std::vector<char> params_;
  std::vector<char> resident_;  // the slots, or the image of another device's
  std::unique_ptr<Device> device_;
  std::unique_ptr<WindowPipeline> pipeline_;
  std::unique_ptr<LeaseTable> leases_;
  Incarnation incarnation_{0};
  std::deque<std::function<void()>> replies_;
};

}  // namespace optlease
