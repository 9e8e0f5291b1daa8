// How many commits a second the host store's decisions and shared-memory writes allow: one window
// at a time, lease -> permission -> commit words -> slots free again, with and without the frames
// around it. The sockets are not in it.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <vector>

#include "actors/host_store/store_service.h"

namespace optlease {
namespace {

constexpr uint32_t kChunkCount = 1024;
constexpr Rank kRank{0};
constexpr Incarnation kLife{1};

SegmentPlan plan_of(uint32_t window_chunks) {
  SegmentPlan plan;
  plan.job_name = "commit-bench";
  plan.world_size = 1;
  plan.window_chunks = window_chunks;
  SpaceSpec space;
  space.name = "dense";
  space.members = {kRank};
  TensorSpec tensor;
  tensor.name = "weight";
  tensor.shape = {uint64_t{kChunkCount} * kShardAlignElements};
  space.tensors = {tensor};
  plan.spaces = {space};
  const Status laid_out = lay_out(&plan, chunk_bytes(kShardAlignElements));
  OPTLEASE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
  return plan;
}

// A segment under this process's name, gone with it.
class BenchSegments {
 public:
  explicit BenchSegments(uint32_t window_chunks) : plan(plan_of(window_chunks)) {
    const std::string base = format("/optlease-bench.%d", static_cast<int>(::getpid()));
    names = {base + ".ctl", {base + ".r0"}};
    Result<ChunkStore> made = ChunkStore::create(plan, names);
    OPTLEASE_CHECK(made.is_ok(), "%s", made.status().text().c_str());
    store.emplace(std::move(made).value());
  }
  ~BenchSegments() { ChunkStore::unlink(names); }

  SegmentPlan plan;
  SegmentNames names;
  std::optional<ChunkStore> store;
};

void commit_in_process(benchmark::State& state) {
  const auto window = static_cast<uint32_t>(state.range(0));
  BenchSegments segments(window);
  ChunkStore& store = *segments.store;
  LeaseTable leases({.lease_ms = 5000, .quarantine_grace_ms = 100, .window_chunks = window});
  leases.add_rank(kRank, std::vector<uint32_t>(kChunkCount, 1), store.unreferenced_slots(kRank),
                  {});
  OPTLEASE_CHECK(leases.hello(kRank, kLife, 0).is_ok(), "hello");
  Step step = 0;
  uint32_t first = 0;
  std::vector<SlotEntry> shadow;
  std::vector<SlotIndex> freed;
  for (auto _ : state) {
    const Lease lease = leases.grant(kRank, kLife, step, first, window, 0).value();
    shadow.clear();
    freed.clear();
    for (const SlotIndex slot : lease.shadow) shadow.push_back({slot.value, 0, slot.value});
    const Status allowed =
        leases.may_commit(kRank, kLife, lease.id, step, first, window, shadow, 0);
    OPTLEASE_CHECK(allowed.is_ok(), "%s", allowed.text().c_str());
    for (uint32_t i = 0; i < window; ++i) {
      const ChunkIndex chunk{first + i};
      if (step > 0) freed.push_back(SlotIndex{store.view().entries(kRank, chunk)[0].slot});
      store.commit(kRank, chunk, step, {&shadow[i], 1});
    }
    leases.committed(lease.id, window, freed);
    first += window;
    if (first == kChunkCount) {
      first = 0;
      ++step;
    }
  }
  state.SetItemsProcessed(state.iterations() * window);
}
BENCHMARK(commit_in_process)->Arg(1)->Arg(4)->Arg(16);

StepRecord record_of(Step step) {
  StepRecord record{};
  record.step = record.update_count = step;
  record.group_count = 1;
  record.groups[0] = {1e-3, 0.9, 0.999, 1e-8, 0.01, static_cast<uint32_t>(Rule::kAdamW), 0};
  record.grad_coefficient = 1;
  record.checksum = checksum_of(record);
  return record;
}

// The same with all the messages of whole steps around it: decoded, validated, answered.
void commit_through_service(benchmark::State& state) {
  BenchSegments segments(1);
  StoreService service = StoreService::start(std::move(*segments.store), {}, 0).value();
  const std::string peer = actor_peer_name(kRank, kLife);
  const Speaker speaker{0, kLife.value, service.store().epoch().value};
  const auto say = [&](MessageKind kind, const auto& body, std::string_view payload = {}) {
    service.handle(peer, encode(speaker, kind, 1, body, payload), 0);
  };
  HelloBody hello{};
  hello.layout_hash = service.store().view().header().layout_hash;
  std::memcpy(hello.job_id, service.store().view().header().job_id, sizeof hello.job_id);
  hello.step_published = kNoStep;
  say(MessageKind::kHello, hello);
  uint32_t chunk = 0;
  Step step = 0;
  for (auto _ : state) {
    service.settle(0);
    service.outgoing()->clear();
    if (chunk == kChunkCount) {
      say(MessageKind::kPublished, PublishedBody{step, 0});
      chunk = 0;
      ++step;
      say(MessageKind::kStepReady, StepReadyBody{step, 0, 0});
      service.settle(0);
      say(MessageKind::kStepRecord, StepRecordBody{service.coordinator().group_epoch(),
                                                   record_of(step), make_sums_digest(step, 0)});
      service.settle(0);
    }
    say(MessageKind::kLeaseRequest, LeaseRequestBody{step, chunk, 1});
    const Decoded grant = decode(service.outgoing()->back().frame).value();
    OPTLEASE_CHECK(grant.kind == MessageKind::kLeaseGrant, "%s", name_of(grant.kind));
    const SlotEntry shadow{grant.entries<GrantEntry>()[0].shadow_slot, 0, 7};
    say(MessageKind::kCommitRequest,
        CommitRequestBody{grant.as<LeaseGrantBody>().lease_id, step, chunk, 1, 1, 0},
        {reinterpret_cast<const char*>(&shadow), sizeof shadow});
    ++chunk;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(commit_through_service);

}  // namespace
}  // namespace optlease
