#include "actors/gpu_actor/nccl_collectives.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "actors/gpu_actor/cuda_status.h"
#include "actors/gpu_actor/exchange_plan.h"
#include "actors/gpu_actor/leave_process.h"
#include "actors/gpu_actor/nccl_group.h"
#include "actors/gpu_actor/nccl_teardown.h"
#include "kernels/reduce_cuda.h"

namespace optlease {
namespace {

constexpr uint32_t kHalves = 2;    // of the scratch: one is filled while the other is summed
constexpr uint32_t kRunAhead = 4;  // rounds in the streams at most; what an abort has to drain
static_assert(kRunAhead >= kHalves, "a half's last sum has an event of its own");
// A round of the least still takes NVLink as long as its call takes the host.
constexpr uint64_t kGatherPieceBytesMin = 4u << 20;
constexpr uint64_t kGatherPieceBytesMax = 32u << 20;
constexpr uint64_t kSlotAlignBytes = 256;
// How long a failed call waits for its communicator to end, so that nothing of it is under way
// when it returns. The next connect() waits for the rest.
constexpr uint64_t kTeardownWaitMs = 2000;
static_assert(kTeardownWaitMs < NcclTeardown::kLongestMs);
constexpr uint64_t kTeardownLookMs = 10;

class NcclCollectives final : public Collectives {
 public:
  explicit NcclCollectives(NcclOptions options)
      : options_(std::move(options)), teardown_(options_.device) {}
  ~NcclCollectives() override;
  Status open();

  Status connect(uint64_t group_epoch, Rank rank, uint32_t world, uint64_t timeout_ms) override;
  Status reduce_scatter(const ReduceScatterCall& call) override;
  Status all_gather(const AllGatherCall& call) override;
  Status all_gather_fixed(CallTag tag, const void* mine, uint32_t bytes, void* out) override;
  void abort(uint64_t group_epoch) override;

 private:
  using Transfers = std::vector<NcclTransfer>;

  bool is_aborted() const { return aborted_epoch_.load() >= group_epoch_; }
  Status check_connected() const;
  Status join_epoch(uint64_t timeout_ms);
  Status await_teardown();
  Status make_room(uint32_t world);
  Status end_call(Status status);
  void end_epoch();

  uint64_t slot_bytes(uint32_t members) const;
  std::byte* slot(const ExchangePlan& plan, uint32_t member, uint64_t index) const;
  Status exchange_reduce(const ReduceScatterCall& call, const ExchangePlan& plan);
  Status exchange_gather(const AllGatherCall& call, const ExchangePlan& plan);
  Status exchange_fixed(CallTag tag, const void* mine, uint32_t bytes, std::byte* out);
  Transfers reduce_transfers(const ReduceScatterCall& call, const ExchangePlan& plan,
                             uint64_t index) const;
  Transfers gather_transfers(const AllGatherCall& call, const ExchangePlan& plan,
                             uint64_t index) const;
  Status sum_piece(const ReduceScatterCall& call, const ExchangePlan& plan, uint64_t index);

  // Constant after open().
  const NcclOptions options_;
  GpuUuid gpu_{};
  cudaStream_t transfer_stream_ = nullptr;
  cudaStream_t sum_stream_ = nullptr;
  std::array<cudaEvent_t, kHalves> received_{};  // by half
  std::array<cudaEvent_t, kRunAhead> done_{};    // by round

  std::atomic<uint64_t> aborted_epoch_{0};
  NcclTeardown teardown_;
  uint64_t group_epoch_ = 0;
  Rank rank_;
  uint32_t world_ = 0;  // 0: never connected
  uint64_t timeout_ms_ = 0;
  std::unique_ptr<NcclGroup> group_;
  Status broken_;  // why the epoch is unusable

  // Made when the first world of several ranks is joined.
  std::byte* scratch_ = nullptr;  // device: halves x peers x piece
  std::byte* d_fixed_ = nullptr;  // world x kFixedBytesMax
  std::byte* h_fixed_ = nullptr;  // pinned, the same
  uint32_t fixed_world_ = 0;
};

NcclCollectives::~NcclCollectives() {
  end_epoch();
  // Memory and streams that a communicator may still use are the process's to its end; and every
  // call that frees memory of the device, anybody's, would wait for it.
  Status ended = teardown_.wait(kTeardownLookMs);
  while (!ended.is_ok() && !teardown_.is_stuck()) ended = teardown_.wait(kTeardownLookMs);
  if (!ended.is_ok()) leave_process(Status(StatusCode::kInternal, ended.message()));
  (void)cudaSetDevice(options_.device);
  for (const cudaEvent_t event : received_)
    if (event != nullptr) (void)cudaEventDestroy(event);
  for (const cudaEvent_t event : done_)
    if (event != nullptr) (void)cudaEventDestroy(event);
  if (transfer_stream_ != nullptr) (void)cudaStreamDestroy(transfer_stream_);
  if (sum_stream_ != nullptr) (void)cudaStreamDestroy(sum_stream_);
  if (scratch_ != nullptr) (void)cudaFree(scratch_);
  if (d_fixed_ != nullptr) (void)cudaFree(d_fixed_);
  if (h_fixed_ != nullptr) (void)cudaFreeHost(h_fixed_);
}

Status NcclCollectives::open() {
  OPTLEASE_CUDA_TRY(cudaSetDevice(options_.device));
  OPTLEASE_CUDA_TRY(preload_reduce_cuda());
  cudaDeviceProp properties;
  OPTLEASE_CUDA_TRY(cudaGetDeviceProperties(&properties, options_.device));
  std::memcpy(gpu_.data(), &properties.uuid, gpu_.size());
  int least = 0, greatest = 0;
  OPTLEASE_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OPTLEASE_CUDA_TRY(
      cudaStreamCreateWithPriority(&transfer_stream_, cudaStreamNonBlocking, greatest));
  OPTLEASE_CUDA_TRY(cudaStreamCreateWithPriority(&sum_stream_, cudaStreamNonBlocking, greatest));
  for (cudaEvent_t& event : received_)
    OPTLEASE_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (cudaEvent_t& event : done_)
    OPTLEASE_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Status::ok();
}

Status NcclCollectives::connect(uint64_t group_epoch, Rank rank, uint32_t world,
                                uint64_t timeout_ms) {
  OPTLEASE_CHECK(world >= 1 && rank.value < world, "rank %u of %u", rank.value, world);
  end_epoch();
  group_epoch_ = group_epoch;
  rank_ = rank;
  world_ = world;
  timeout_ms_ = timeout_ms;
  broken_ = Status::ok();
  return end_call(join_epoch(timeout_ms));
}

Status NcclCollectives::join_epoch(uint64_t timeout_ms) {
  OPTLEASE_CUDA_TRY(cudaSetDevice(options_.device));
  OPTLEASE_TRY(await_teardown());
  if (world_ > 1) OPTLEASE_TRY(make_room(world_));
  const GroupPlace place{options_.group_directory, group_epoch_, rank_.value, world_};
  group_ = std::make_unique<NcclGroup>(place, timeout_ms, &aborted_epoch_);
  return group_->connect(gpu_);
}

// Nothing of an earlier epoch may touch memory once a later one uses it. Whether this rank can go
// on is found out whatever becomes of the epoch meanwhile: its peers only wait for it.
Status NcclCollectives::await_teardown() {
  while (true) {
    const Status ended = teardown_.wait(kTeardownLookMs);
    if (teardown_.is_stuck()) return Status(StatusCode::kInternal, ended.message());
    OPTLEASE_TRY(check_connected());
    if (!ended.is_ok()) continue;
    const Status outcome = teardown_.outcome();
    return outcome.code() == StatusCode::kInternal ? outcome : Status::ok();
  }
}

Status NcclCollectives::make_room(uint32_t world) {
  void* memory = nullptr;
  if (scratch_ == nullptr) {
    OPTLEASE_CUDA_TRY(cudaMalloc(&memory, options_.scratch_bytes_max));
    scratch_ = static_cast<std::byte*>(memory);
  }
  if (fixed_world_ >= world) return Status::ok();
  OPTLEASE_CHECK(fixed_world_ == 0, "a world of %u after one of %u", world, fixed_world_);
  const uint64_t bytes = uint64_t{world} * kFixedBytesMax;
  if (d_fixed_ == nullptr) {
    OPTLEASE_CUDA_TRY(cudaMalloc(&memory, bytes));
    d_fixed_ = static_cast<std::byte*>(memory);
  }
  OPTLEASE_CUDA_TRY(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  h_fixed_ = static_cast<std::byte*>(memory);
  fixed_world_ = world;
  return Status::ok();
}

void NcclCollectives::abort(uint64_t group_epoch) {
  uint64_t before = aborted_epoch_.load();
  while (before < group_epoch && !aborted_epoch_.compare_exchange_weak(before, group_epoch)) {
  }
}

Status NcclCollectives::check_connected() const {
  OPTLEASE_CHECK(world_ != 0, "connect() was never called");
  if (!broken_.is_ok()) return broken_;
  if (is_aborted())
    return Status(StatusCode::kCancelled, format("group epoch %llu was aborted",
                                                 static_cast<unsigned long long>(group_epoch_)));
  return Status::ok();
}

void NcclCollectives::end_epoch() {
  if (!group_) return;
  // There is a group only after what came before it has ended, so a teardown can start.
  teardown_.start(group_->release(), {transfer_stream_, sum_stream_});
  group_.reset();
}

// A failed call leaves work in the streams and its peers' bytes in unknown places: the epoch ends
// with it, and leaving it tells the other ranks.
Status NcclCollectives::end_call(Status status) {
  if (status.is_ok()) return status;
  broken_ = status;
  end_epoch();
  if (!teardown_.is_stuck()) (void)teardown_.wait(kTeardownWaitMs);
  return status;
}

uint64_t NcclCollectives::slot_bytes(uint32_t members) const {
  const uint64_t slots = kHalves * (std::max(members, 2u) - 1);
  return options_.scratch_bytes_max / slots / kSlotAlignBytes * kSlotAlignBytes;
}

std::byte* NcclCollectives::slot(const ExchangePlan& plan, uint32_t member, uint64_t index) const {
  const uint64_t peer = member < plan.me ? member : member - 1;
  const uint64_t place = (index % kHalves) * (plan.member_count() - 1) + peer;
  return scratch_ + place * slot_bytes(plan.member_count());
}

Status NcclCollectives::reduce_scatter(const ReduceScatterCall& call) {
  OPTLEASE_TRY(check_connected());
  if (member_index_in(*call.map, rank_) < 0) return Status::ok();
  const auto members = static_cast<uint32_t>(call.map->members.size());
  return end_call(exchange_reduce(call, plan_exchange(*call.map, call.needs, rank_, call.grad_dtype,
                                                      slot_bytes(members), ShardsMoved::kNeeded)));
}

Status NcclCollectives::exchange_reduce(const ReduceScatterCall& call, const ExchangePlan& plan) {
  const std::string what = format("reduce-scatter of space %u, step %lld", call.tag.space,
                                  static_cast<long long>(call.tag.step));
  OPTLEASE_CUDA_TRY(cudaSetDevice(options_.device));
  for (uint64_t index = 0; index < plan.piece_count; ++index) {
    if (index >= kRunAhead) OPTLEASE_TRY(group_->wait(done_[index % kRunAhead], what));
    if (index >= kHalves)  // its half of the scratch has been summed
      OPTLEASE_CUDA_TRY(
          cudaStreamWaitEvent(transfer_stream_, done_[(index - kHalves) % kRunAhead], 0));
    OPTLEASE_TRY(group_->exchange(reduce_transfers(call, plan, index), transfer_stream_));
    OPTLEASE_CUDA_TRY(cudaEventRecord(received_[index % kHalves], transfer_stream_));
    OPTLEASE_CUDA_TRY(cudaStreamWaitEvent(sum_stream_, received_[index % kHalves], 0));
    OPTLEASE_TRY(sum_piece(call, plan, index));
    OPTLEASE_CUDA_TRY(cudaEventRecord(done_[index % kRunAhead], sum_stream_));
  }
  if (plan.piece_count == 0) return Status::ok();
  return group_->wait(done_[(plan.piece_count - 1) % kRunAhead], what);
}

NcclCollectives::Transfers NcclCollectives::reduce_transfers(const ReduceScatterCall& call,
                                                             const ExchangePlan& plan,
                                                             uint64_t index) const {
  Transfers transfers;
  const ElementRange mine = plan.piece(plan.me, index);
  // NCCL's transfers take one pointer type for both directions; a send only reads.
  auto* grads = static_cast<std::byte*>(const_cast<void*>(call.grads));
  for (uint32_t member = 0; member < plan.member_count(); ++member) {
    if (member == plan.me) continue;
    const uint32_t peer = plan.map->members[member].value;
    if (plan.i_need() && mine.size() > 0)
      transfers.push_back(
          {peer, slot(plan, member, index), mine.size() * plan.element_bytes, true});
    const ElementRange theirs = plan.piece(member, index);
    if (plan.needs[member] && theirs.size() > 0)
      transfers.push_back({peer, grads + theirs.begin * plan.element_bytes,
                           theirs.size() * plan.element_bytes, false});
  }
  return transfers;
}

Status NcclCollectives::sum_piece(const ReduceScatterCall& call, const ExchangePlan& plan,
                                  uint64_t index) {
  const ElementRange piece = plan.piece(plan.me, index);
  if (!plan.i_need() || piece.size() == 0) return Status::ok();
  OPTLEASE_CHECK(call.shard_out != nullptr, "rank %u needs its shard of space %u", rank_.value,
                 call.tag.space);
  std::vector<const void*> inputs(plan.member_count());
  for (uint32_t member = 0; member < plan.member_count(); ++member)
    inputs[member] = member == plan.me ? static_cast<const std::byte*>(call.grads) +
                                             piece.begin * plan.element_bytes
                                       : slot(plan, member, index);
  OPTLEASE_CUDA_TRY(sum_shards_cuda(
      call.shard_out + (piece.begin - plan.map->ranges[plan.me].begin), inputs.data(),
      plan.member_count(), call.grad_dtype, piece.size(), sum_stream_));
  return Status::ok();
}

Status NcclCollectives::all_gather(const AllGatherCall& call) {
  OPTLEASE_TRY(check_connected());
  if (member_index_in(*call.map, rank_) < 0 || call.map->members.size() == 1) return Status::ok();
  const uint64_t piece =
      gather_piece_bytes(*call.map, call.param_dtype, kGatherPieceBytesMin, kGatherPieceBytesMax);
  return end_call(exchange_gather(call, plan_exchange(*call.map, call.needs, rank_,
                                                      call.param_dtype, piece, ShardsMoved::kAll)));
}

Status NcclCollectives::exchange_gather(const AllGatherCall& call, const ExchangePlan& plan) {
  const std::string what = format("all-gather of space %u, step %lld", call.tag.space,
                                  static_cast<long long>(call.tag.step));
  OPTLEASE_CUDA_TRY(cudaSetDevice(options_.device));
  // A round is enqueued once its own piece is final, never before: what is in the stream waits for
  // peers alone, and a rank that is behind all others has no round that is not met.
  for (uint64_t index = 0; index < plan.piece_count; ++index) {
    if (index >= kRunAhead) OPTLEASE_TRY(group_->wait(done_[index % kRunAhead], what, call.feed));
    OPTLEASE_TRY(await_piece(call, plan, index, timeout_ms_, [this] { return check_connected(); }));
    OPTLEASE_TRY(
        group_->exchange(gather_transfers(call, plan, index), transfer_stream_, call.feed));
    OPTLEASE_CUDA_TRY(cudaEventRecord(done_[index % kRunAhead], transfer_stream_));
  }
  if (plan.piece_count == 0) return Status::ok();
  return group_->wait(done_[(plan.piece_count - 1) % kRunAhead], what, call.feed);
}

NcclCollectives::Transfers NcclCollectives::gather_transfers(const AllGatherCall& call,
                                                             const ExchangePlan& plan,
                                                             uint64_t index) const {
  Transfers transfers;
  auto* params = static_cast<std::byte*>(call.params);
  const auto add = [&](uint32_t peer, ElementRange range, bool is_receive) {
    if (range.size() > 0)
      transfers.push_back({peer, params + range.begin * plan.element_bytes,
                           range.size() * plan.element_bytes, is_receive});
  };
  for (uint32_t member = 0; member < plan.member_count(); ++member) {
    if (member == plan.me) continue;
    const uint32_t peer = plan.map->members[member].value;
    if (plan.i_need()) add(peer, plan.piece(member, index), /*is_receive=*/true);
    if (plan.needs[member]) add(peer, plan.piece(plan.me, index), /*is_receive=*/false);
  }
  return transfers;
}

Status NcclCollectives::all_gather_fixed(CallTag tag, const void* mine, uint32_t bytes, void* out) {
  OPTLEASE_CHECK(bytes >= 1 && bytes <= kFixedBytesMax, "%u bytes", bytes);
  OPTLEASE_TRY(check_connected());
  if (world_ > 1) return end_call(exchange_fixed(tag, mine, bytes, static_cast<std::byte*>(out)));
  std::memcpy(out, mine, bytes);
  return Status::ok();
}

Status NcclCollectives::exchange_fixed(CallTag tag, const void* mine, uint32_t bytes,
                                       std::byte* out) {
  const uint64_t my_offset = uint64_t{rank_.value} * bytes;
  OPTLEASE_CUDA_TRY(cudaSetDevice(options_.device));
  std::memcpy(h_fixed_ + my_offset, mine, bytes);
  OPTLEASE_CUDA_TRY(cudaMemcpyAsync(d_fixed_ + my_offset, h_fixed_ + my_offset, bytes,
                                    cudaMemcpyHostToDevice, transfer_stream_));
  Transfers transfers;
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (rank == rank_.value) continue;
    transfers.push_back({rank, d_fixed_ + uint64_t{rank} * bytes, bytes, true});
    transfers.push_back({rank, d_fixed_ + my_offset, bytes, false});
  }
  OPTLEASE_TRY(group_->exchange(transfers, transfer_stream_));
  OPTLEASE_CUDA_TRY(cudaMemcpyAsync(h_fixed_, d_fixed_, uint64_t{world_} * bytes,
                                    cudaMemcpyDeviceToHost, transfer_stream_));
  OPTLEASE_CUDA_TRY(cudaEventRecord(done_[0], transfer_stream_));
  OPTLEASE_TRY(group_->wait(done_[0], format("the exchange of small facts of step %lld",
                                             static_cast<long long>(tag.step))));
  std::memcpy(out, h_fixed_, uint64_t{world_} * bytes);
  return Status::ok();
}

}  // namespace

void set_nccl_defaults() {
  // The ranks are of one node: NCCL's own sockets have no business on a network.
  ::setenv("NCCL_SOCKET_IFNAME", "=lo", /*overwrite=*/0);
  // Only point-to-point transfers are used; multicast would be set up for nothing.
  ::setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
}

Result<std::unique_ptr<Collectives>> make_nccl_collectives(NcclOptions options) {
  auto collectives = std::make_unique<NcclCollectives>(std::move(options));
  OPTLEASE_TRY(collectives->open());
  return std::unique_ptr<Collectives>(std::move(collectives));
}

}  // namespace optlease
