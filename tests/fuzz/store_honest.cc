// What an honest actor, launcher or tool says to the store of store_world.h now, and the seeds:
// whole steps of such words.
#include "tests/fuzz/frames.h"
#include "tests/fuzz/store_world.h"

namespace optlease::fuzz {

std::string StoreWorld::honest(const Talker& from, MessageKind kind, Input* input) {
  if (from.peer == "launcher") return honest_launcher(from, kind, input);
  if (from.peer == "tool.1") return honest_tool(from, kind, input);
  return honest_actor(from, kind, input);
}

std::string StoreWorld::honest_actor(const Talker& from, MessageKind kind, Input* input) {
  const StepCoordinator& steps = service_->coordinator();
  const Step next = steps.step_committed() + 1;
  const Step known = steps.step_open() == kNoStep ? steps.step_committed() : next;
  if (kind == MessageKind::kHello) {
    HelloBody body{};
    std::memcpy(body.job_id, kJobId, sizeof body.job_id);
    body.layout_hash = layout_hash(plan_);
    body.pid = 7;
    body.step_published = (input->byte() & 1) != 0 ? known : kNoStep;
    return say(from, kind, body);
  }
  if (kind == MessageKind::kStepReady) {
    StepReadyBody body{};
    body.step = std::max<Step>(next, 1);
    const std::string_view blob = input->take_bytes(input->byte() % 32);
    body.blob_bytes = static_cast<uint32_t>(blob.size());
    body.keep_blob = blob.empty() ? 1 : 0;
    return say(from, kind, body, blob);
  }
  if (kind == MessageKind::kStepRecord) {
    StepRecordBody body{};
    body.group_epoch = steps.group_epoch();
    body.record = valid_record(std::max<Step>(next, 0));
    body.record.skipped = input->byte() & 1;
    body.record.checksum = checksum_of(body.record);
    body.sums = make_sums_digest(body.record.step, from.rank.value);
    return say(from, kind, body);
  }
  if (kind == MessageKind::kPublished) {
    return say(from, kind, PublishedBody{known, steps.group_epoch()});
  }
  if (kind == MessageKind::kHeartbeat) {
    return say(from, kind, HeartbeatBody{next, input->byte() % 10u, 0});
  }
  if (kind == MessageKind::kCorruptChunk) {
    return say(from, kind, CorruptChunkBody{input->byte() % 8u, 0, 1, 2});
  }
  if (kind == MessageKind::kResidentSaved) {
    return say(from, kind, StepBody{steps.step_committed()});
  }
  return honest_commit(from, kind, input);
}

// Leases, and whatever else is none of the above: asked for, committed as a whole or in part, given
// back.
std::string StoreWorld::honest_commit(const Talker& from, MessageKind kind, Input* input) {
  const Grant& grant = grants_[from.rank.value];
  if (kind == MessageKind::kCommitRequest) {
    CommitRequestBody body{};
    body.lease_id = grant.body.lease_id;
    body.step = grant.body.step;
    body.first_chunk = grant.body.first_chunk;
    const bool part = (input->byte() & 1) != 0;
    const size_t all = std::max<size_t>(grant.entries.size(), 1);
    body.chunk_count = part ? 1 : static_cast<uint32_t>(all);
    std::vector<SlotEntry> slots;
    for (const GrantEntry& entry : grant.entries) slots.push_back({entry.shadow_slot, 0, 1});
    slots.resize(std::min<size_t>(slots.size(), body.chunk_count));
    body.entry_count = static_cast<uint32_t>(slots.size());
    return say(from, kind, body,
               {reinterpret_cast<const char*>(slots.data()), slots.size() * sizeof(SlotEntry)});
  }
  if (kind == MessageKind::kLeaseReturn) {
    return say(from, kind, LeaseReturnBody{grant.body.lease_id});
  }
  LeaseRequestBody body{};
  body.step = service_->coordinator().step_committed() + 1;
  body.first_chunk = input->byte() % 8;
  body.chunk_count = 1 + input->byte() % 2;
  return say(from, MessageKind::kLeaseRequest, body);
}

std::string StoreWorld::honest_launcher(const Talker& from, MessageKind kind, Input* input) {
  const uint8_t which = input->byte();
  IncarnationBody body{};
  body.rank = which & 1;
  if (kind == MessageKind::kIncarnationStarted) ++lives_[body.rank];
  body.incarnation = lives_[body.rank] - (kind == MessageKind::kIncarnationReaped ? which >> 7 : 0);
  if (kind == MessageKind::kIncarnationLost || kind == MessageKind::kIncarnationReaped) {
    return say(from, kind, body);
  }
  return say(from, MessageKind::kIncarnationStarted, body);
}

std::string StoreWorld::honest_tool(const Talker& from, MessageKind kind, Input* input) {
  HoldBody body{};
  body.step = kNoStep;
  const uint8_t which = input->byte();
  body.hold_id = (which & 1) != 0 ? hold_id_ : 0;
  body.ttl_ms = which;
  if (kind == MessageKind::kHoldRequest || kind == MessageKind::kHoldRelease ||
      kind == MessageKind::kStopStore) {
    return say(from, kind, body);
  }
  return encode_empty(Speaker{}, MessageKind::kStatusQuery, ++sequence_);
}

// Both ranks start and say hello; then, over and over: ready, record, every window leased and
// committed, published. What the store does not want yet it refuses. A tool asks, holds and stops.
std::vector<std::string> store_seeds() {
  constexpr uint32_t kLauncher = 2, kTool = 3, kTime = 6, kKill = 7;
  const auto steps_of = [&](Output* output, int steps) {
    for (int i = 0; i < steps; ++i) {
      for (const uint32_t kind : {1u, 2u}) {
        for (const uint32_t rank : {0u, 1u}) output->byte(rank).byte(kind).byte(0);
      }
      for (uint32_t chunk = 0; chunk < 6; chunk += 2) {
        for (const uint32_t rank : {0u, 1u}) {
          output->byte(rank).byte(3).byte(chunk).byte(1);
          output->byte(rank).byte(4).byte(0);
        }
      }
      output->byte(0).byte(6).byte(1).byte(6);
    }
  };
  std::vector<std::string> seeds;
  for (const uint32_t start : {0u, 1u, 2u}) {
    Output output;
    output.byte(start);
    for (const uint32_t rank : {0u, 1u}) output.byte(kLauncher).byte(0).byte(rank);
    for (const uint32_t rank : {0u, 1u}) output.byte(rank).byte(0).byte(0);
    steps_of(&output, 2);
    seeds.push_back(output.text());
    Output more = output;
    more.byte(kTool).byte(0).byte(0).byte(kTool).byte(1).byte(100).byte(kTime).byte(10);
    more.byte(kTool).byte(2).byte(1).byte(kKill).byte(0).byte(0).byte(0).byte(1).byte(0).byte(0);
    more.byte(kTool).byte(3).byte(50).byte(kTime).byte(50);
    seeds.push_back(more.text());
  }
  return seeds;
}

}  // namespace optlease::fuzz
