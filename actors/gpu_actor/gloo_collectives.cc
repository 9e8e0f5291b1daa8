#include "actors/gpu_actor/gloo_collectives.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "actors/gpu_actor/exchange_plan.h"
#include "actors/gpu_actor/gloo_mesh.h"
#include "kernels/reduce_cpu.h"
#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr uint32_t kPiecesInFlight = 2;  // one travels while the one before it is summed

enum class CallKind : uint64_t { kReduceScatter = 0, kAllGather = 1, kFixed = 2 };

constexpr uint32_t kSlotStepBits = 22;  // steps that far apart are never in flight together
constexpr uint32_t kSlotSpaceBits = 11;
constexpr uint32_t kSlotPieceBits = 28;
static_assert(2 + kSlotStepBits + kSlotSpaceBits + kSlotPieceBits == 63,
              "slots stay below kReservedSlotsFrom");
static_assert(kSpaceCountMax <= 1u << kSlotSpaceBits, "every space has slots of its own");

uint64_t slot_of(CallKind kind, const CallTag& tag, uint64_t piece) {
  OPTLEASE_CHECK(tag.space < 1u << kSlotSpaceBits && piece < 1u << kSlotPieceBits,
                 "space %u, piece %llu", tag.space, static_cast<unsigned long long>(piece));
  const uint64_t step = static_cast<uint64_t>(tag.step) & ((1u << kSlotStepBits) - 1);
  return ((static_cast<uint64_t>(kind) << kSlotStepBits | step) << kSlotSpaceBits | tag.space)
             << kSlotPieceBits |
         piece;
}

// One call's pieces, and their names on the wire.
struct Exchange : ExchangePlan {
  CallKind kind;
  CallTag tag;

  Transfer transfer(uint32_t member, uint64_t index, void* data, uint64_t elements,
                    bool is_receive) const {
    return {map->members[member].value,
            slot_of(kind, tag, index),
            data,
            elements * element_bytes,
            is_receive,
            nullptr};
  }
};

class GlooCollectives final : public Collectives {
 public:
  explicit GlooCollectives(std::string directory) : directory_(std::move(directory)) {}
  ~GlooCollectives() override { mesh_.reset(); }

  Status connect(uint64_t group_epoch, Rank rank, uint32_t world, uint64_t timeout_ms) override;
  Status reduce_scatter(const ReduceScatterCall& call) override;
  Status all_gather(const AllGatherCall& call) override;
  Status all_gather_fixed(CallTag tag, const void* mine, uint32_t bytes, void* out) override;
  void abort(uint64_t group_epoch) override;

 private:
  using Flight = std::vector<Transfer>;

  Exchange plan(CallKind kind, CallTag tag, const ShardMap& map, std::span<const uint8_t> needs,
                DType dtype) const;
  Status check_connected() const;
  Status end_call(Status status);
  Status fly(std::span<Transfer> transfers);
  Status land(Flight* flight, const GatherFeed* feed = nullptr);
  Status exchange_reduce(const ReduceScatterCall& call, const Exchange& exchange);
  Status exchange_gather(const AllGatherCall& call, const Exchange& exchange);
  Status exchange_fixed(CallTag tag, void* mine, uint32_t bytes, std::byte* out);
  Flight reduce_flight(const ReduceScatterCall& call, const Exchange& exchange, uint64_t index);
  void add_gather(const AllGatherCall& call, const Exchange& exchange, uint64_t index,
                  bool receives, Flight* flight) const;
  void sum_piece(const ReduceScatterCall& call, const Exchange& exchange, uint64_t index);
  std::byte* staging_of(const Exchange& exchange, uint32_t member, uint64_t index);

  const std::string directory_;
  std::atomic<uint64_t> aborted_epoch_{0};
  WaitWatch watch_;
  std::shared_ptr<gloo::transport::Device> device_;
  uint64_t group_epoch_ = 0;
  Rank rank_;
  uint32_t world_ = 0;  // 0: never connected
  uint64_t timeout_ms_ = 0;
  std::unique_ptr<GlooMesh> mesh_;
  Status broken_;                   // why the epoch is unusable
  std::vector<std::byte> staging_;  // pieces in flight x peers x piece
};

Status GlooCollectives::connect(uint64_t group_epoch, Rank rank, uint32_t world,
                                uint64_t timeout_ms) {
  OPTLEASE_CHECK(world >= 1 && rank.value < world, "rank %u of %u", rank.value, world);
  mesh_.reset();
  group_epoch_ = group_epoch;
  rank_ = rank;
  world_ = world;
  timeout_ms_ = timeout_ms;
  broken_ = Status::ok();
  if (aborted_epoch_.load() >= group_epoch)
    return end_call(Status(StatusCode::kCancelled,
                           format("group epoch %llu was aborted before it was connected",
                                  static_cast<unsigned long long>(group_epoch))));
  if (world == 1) return Status::ok();
  if (!device_) {
    Result<std::shared_ptr<gloo::transport::Device>> device = open_loopback_device();
    if (!device) return end_call(device.status());
    device_ = device.value();
  }
  const GroupPlace place{directory_, group_epoch, rank.value, world};
  Result<std::unique_ptr<GlooMesh>> mesh =
      GlooMesh::connect(device_, place, timeout_ms, &aborted_epoch_, &watch_);
  if (!mesh) return end_call(mesh.status());
  mesh_ = std::move(mesh).value();
  if (rank.value == 0) remove_earlier_epochs(place);
  return Status::ok();
}

void GlooCollectives::abort(uint64_t group_epoch) {
  uint64_t before = aborted_epoch_.load();
  while (before < group_epoch && !aborted_epoch_.compare_exchange_weak(before, group_epoch)) {
  }
  watch_.look_now();
}

Status GlooCollectives::check_connected() const {
  OPTLEASE_CHECK(world_ != 0, "connect() was never called");
  if (!broken_.is_ok()) return broken_;
  if (aborted_epoch_.load() >= group_epoch_)
    return Status(StatusCode::kCancelled, format("group epoch %llu was aborted",
                                                 static_cast<unsigned long long>(group_epoch_)));
  return Status::ok();
}

// A failed call leaves its peers' bytes in unknown places: the epoch ends with it, and closing the
// pairs tells the other ranks.
Status GlooCollectives::end_call(Status status) {
  if (!status.is_ok()) {
    broken_ = status;
    mesh_.reset();
  }
  return status;
}

Status GlooCollectives::fly(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) OPTLEASE_TRY(mesh_->post(&transfer));
  return Status::ok();
}

Status GlooCollectives::land(Flight* flight, const GatherFeed* feed) {
  for (Transfer& transfer : *flight) OPTLEASE_TRY(mesh_->wait(&transfer, feed));
  flight->clear();
  return Status::ok();
}

Exchange GlooCollectives::plan(CallKind kind, CallTag tag, const ShardMap& map,
                               std::span<const uint8_t> needs, DType dtype) const {
  const uint64_t peers = std::max<size_t>(map.members.size(), 2) - 1;
  const uint64_t share = kGlooStagingBytesMax / (kPiecesInFlight * peers);
  uint64_t piece = std::min(share, kGlooPieceBytesMax);
  if (kind == CallKind::kAllGather)
    piece = gather_piece_bytes(map, dtype, std::min(piece, kGlooGatherPieceBytesMin), piece);
  const ShardsMoved moved = kind == CallKind::kAllGather ? ShardsMoved::kAll : ShardsMoved::kNeeded;
  return {plan_exchange(map, needs, rank_, dtype, piece, moved), kind, tag};
}

Status GlooCollectives::reduce_scatter(const ReduceScatterCall& call) {
  OPTLEASE_TRY(check_connected());
  if (member_index_in(*call.map, rank_) < 0) return Status::ok();
  const Exchange exchange =
      plan(CallKind::kReduceScatter, call.tag, *call.map, call.needs, call.grad_dtype);
  if (exchange.member_count() > 1) return end_call(exchange_reduce(call, exchange));
  for (uint64_t index = 0; index < exchange.piece_count; ++index) sum_piece(call, exchange, index);
  return Status::ok();
}

Status GlooCollectives::exchange_reduce(const ReduceScatterCall& call, const Exchange& exchange) {
  if (exchange.i_need()) {
    const uint64_t mine =
        std::min(exchange.piece_elements, exchange.map->ranges[exchange.me].size());
    const uint64_t bytes =
        kPiecesInFlight * (exchange.member_count() - 1) * mine * exchange.element_bytes;
    if (staging_.size() < bytes) staging_.resize(bytes);
  }
  Flight flights[kPiecesInFlight];  // destroyed before anything that their transfers name
  for (uint64_t index = 0; index < exchange.piece_count + 1; ++index) {
    if (index < exchange.piece_count) {
      Flight& next = flights[index % kPiecesInFlight];
      next = reduce_flight(call, exchange, index);
      OPTLEASE_TRY(fly(next));
    }
    if (index == 0) continue;
    OPTLEASE_TRY(land(&flights[(index - 1) % kPiecesInFlight]));
    if (exchange.i_need()) sum_piece(call, exchange, index - 1);
  }
  return Status::ok();
}

std::byte* GlooCollectives::staging_of(const Exchange& exchange, uint32_t member, uint64_t index) {
  const uint64_t peer = member < exchange.me ? member : member - 1;
  const uint64_t place = (index % kPiecesInFlight) * (exchange.member_count() - 1) + peer;
  const uint64_t piece =
      std::min(exchange.piece_elements, exchange.map->ranges[exchange.me].size());
  return staging_.data() + place * piece * exchange.element_bytes;
}

GlooCollectives::Flight GlooCollectives::reduce_flight(const ReduceScatterCall& call,
                                                       const Exchange& exchange, uint64_t index) {
  Flight flight;
  const ElementRange mine = exchange.piece(exchange.me, index);
  for (uint32_t member = 0; member < exchange.member_count(); ++member) {
    if (member == exchange.me) continue;
    if (exchange.i_need() && mine.size() > 0)
      flight.push_back(exchange.transfer(member, index, staging_of(exchange, member, index),
                                         mine.size(), /*is_receive=*/true));
    const ElementRange theirs = exchange.piece(member, index);
    if (exchange.needs[member] && theirs.size() > 0) {
      // Gloo takes one pointer type for both directions; a send only reads.
      auto* grads = static_cast<std::byte*>(const_cast<void*>(call.grads));
      flight.push_back(exchange.transfer(member, index,
                                         grads + theirs.begin * exchange.element_bytes,
                                         theirs.size(), /*is_receive=*/false));
    }
  }
  return flight;
}

void GlooCollectives::sum_piece(const ReduceScatterCall& call, const Exchange& exchange,
                                uint64_t index) {
  const ElementRange piece = exchange.piece(exchange.me, index);
  if (piece.size() == 0) return;
  OPTLEASE_CHECK(call.shard_out != nullptr, "rank %u needs its shard of space %u", rank_.value,
                 call.tag.space);
  std::vector<const void*> inputs(exchange.member_count());
  for (uint32_t member = 0; member < exchange.member_count(); ++member)
    inputs[member] = member == exchange.me ? static_cast<const std::byte*>(call.grads) +
                                                 piece.begin * exchange.element_bytes
                                           : staging_of(exchange, member, index);
  sum_shards(call.shard_out + (piece.begin - exchange.map->ranges[exchange.me].begin),
             inputs.data(), exchange.member_count(), call.grad_dtype, piece.size());
}

Status GlooCollectives::all_gather(const AllGatherCall& call) {
  OPTLEASE_TRY(check_connected());
  if (member_index_in(*call.map, rank_) < 0 || call.map->members.size() == 1) return Status::ok();
  return end_call(exchange_gather(
      call, plan(CallKind::kAllGather, call.tag, *call.map, call.needs, call.param_dtype)));
}

Status GlooCollectives::exchange_gather(const AllGatherCall& call, const Exchange& exchange) {
  Flight flights[kPiecesInFlight];
  for (uint64_t index = 0; index < exchange.piece_count + 1; ++index) {
    if (index < exchange.piece_count) {
      Flight& next = flights[index % kPiecesInFlight];
      add_gather(call, exchange, index, /*receives=*/true, &next);
      OPTLEASE_TRY(fly(next));  // a peer that is ahead need not wait for this rank's windows
      const size_t receives = next.size();
      OPTLEASE_TRY(
          await_piece(call, exchange, index, timeout_ms_, [this] { return check_connected(); }));
      add_gather(call, exchange, index, /*receives=*/false, &next);
      OPTLEASE_TRY(fly(std::span(next).subspan(receives)));
    }
    if (index > 0) OPTLEASE_TRY(land(&flights[(index - 1) % kPiecesInFlight], call.feed));
  }
  return Status::ok();
}

void GlooCollectives::add_gather(const AllGatherCall& call, const Exchange& exchange,
                                 uint64_t index, bool receives, Flight* flight) const {
  auto* params = static_cast<std::byte*>(call.params);
  const ElementRange mine = exchange.piece(exchange.me, index);
  for (uint32_t member = 0; member < exchange.member_count(); ++member) {
    if (member == exchange.me) continue;
    const ElementRange range = receives ? exchange.piece(member, index) : mine;
    const bool wanted = receives ? exchange.i_need() : exchange.needs[member] != 0;
    if (!wanted || range.size() == 0) continue;
    flight->push_back(exchange.transfer(
        member, index, params + range.begin * exchange.element_bytes, range.size(), receives));
  }
}

Status GlooCollectives::all_gather_fixed(CallTag tag, const void* mine, uint32_t bytes, void* out) {
  OPTLEASE_CHECK(bytes >= 1 && bytes <= kFixedBytesMax, "%u bytes", bytes);
  OPTLEASE_TRY(check_connected());
  auto* to = static_cast<std::byte*>(out);
  std::memcpy(to + uint64_t{rank_.value} * bytes, mine, bytes);
  if (world_ == 1) return Status::ok();
  return end_call(exchange_fixed(tag, to + uint64_t{rank_.value} * bytes, bytes, to));
}

Status GlooCollectives::exchange_fixed(CallTag tag, void* mine, uint32_t bytes, std::byte* out) {
  Flight flight;
  const uint64_t slot = slot_of(CallKind::kFixed, tag, 0);
  for (uint32_t rank = 0; rank < world_; ++rank) {
    if (rank == rank_.value) continue;
    flight.push_back({rank, slot, out + uint64_t{rank} * bytes, bytes, true, nullptr});
    flight.push_back({rank, slot, mine, bytes, false, nullptr});
  }
  OPTLEASE_TRY(fly(flight));
  return land(&flight);
}

}  // namespace

std::unique_ptr<Collectives> make_gloo_collectives(std::string group_directory) {
  return std::make_unique<GlooCollectives>(std::move(group_directory));
}

}  // namespace optlease
