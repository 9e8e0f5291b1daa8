// The actor's half of the lease protocol, as gpu_actor_messages.cc and gpu_actor_buffers.cc have
// it, and its buffers.
#include "tests/simulation/sim_actor.h"

namespace optlease {

void SimActor::on_store_message(const Decoded& frame) {
  if (frame.kind == MessageKind::kWelcome) return on_welcome(frame);
  if (frame.kind == MessageKind::kRefused) return on_refused(frame);
  if (!machine_->attached() || frame.header.store_epoch != store_epoch_) return;
  const MessageKind kind = frame.kind;
  if (kind == MessageKind::kGroupFormed) return on_group_formed(frame.as<GroupBody>());
  if (kind == MessageKind::kGroupBroken) return on_group_broken(frame.as<GroupBody>());
  if (kind == MessageKind::kGoReduce || kind == MessageKind::kGoGather) return on_go(frame);
  if (kind == MessageKind::kStepOpen) return machine_->on_step_open(frame.as<StepBody>().step);
  if (kind == MessageKind::kLeaseGrant) {
    return pipeline_->on_grant(frame.as<LeaseGrantBody>(), frame.entries<GrantEntry>(),
                               context_.clock.now_us());
  }
  if (kind == MessageKind::kCommitReply) {
    return pipeline_->on_commit_reply(frame.as<CommitReplyBody>());
  }
  if (kind == MessageKind::kStepCommitted) return on_step_committed(frame.as<StepBody>());
  if (kind == MessageKind::kStopActor) return end(ExitCode::kOk, "the host store said stop");
  context_.fail(format("an actor was sent %s", name_of(kind)));
}

void SimActor::on_welcome(const Decoded& frame) {
  if (machine_->attached()) return;
  if (first_hello_ == 0 || frame.header.sequence < first_hello_) return;
  const auto body = frame.as<WelcomeBody>();
  if (body.step_committed < machine_->committed()) {
    return end(ExitCode::kCorruptState, "the committed step went back");
  }
  store_epoch_ = frame.header.store_epoch;
  machine_->on_welcome(body.step_committed, body.step_open);
}

void SimActor::on_group_formed(const GroupBody& body) {
  worker_->abort(body.group_epoch - 1);
  machine_->on_group_formed(body.group_epoch);
  worker_->connect(body.group_epoch);
}

void SimActor::on_group_broken(const GroupBody& body) {
  worker_->abort(body.group_epoch);
  machine_->on_group_broken(body.group_epoch);
}

void SimActor::on_go(const Decoded& frame) {
  const auto body = frame.as<GoBody>();
  GoOrder order{.gather = frame.kind == MessageKind::kGoGather,
                .group_epoch = body.group_epoch,
                .step = body.step,
                .needs = {frame.payload.begin(), frame.payload.end()}};
  machine_->on_order(std::move(order));
}

void SimActor::on_step_committed(const StepBody& body) {
  machine_->on_step_committed(body.step);
  computed_.reset();
  const auto record = view().step_record(rank_, body.step);
  if (!record || record->skipped == 0) return;
  for (uint32_t c = 0; c < context_.arenas[rank_.value].chunks.size(); ++c) {
    if (pipeline_->published(c) == body.step - 1) pipeline_->set_published(c, body.step);
  }
}

void SimActor::on_refused(const Decoded& frame) {
  const auto body = frame.as<RefusedBody>();
  const auto kind = static_cast<MessageKind>(body.kind);
  const auto code = static_cast<StatusCode>(body.status);
  const std::string text(frame.payload);
  if (code == StatusCode::kBusy && kind == MessageKind::kLeaseRequest) {
    return pipeline_->on_lease_busy(context_.clock.now_us());
  }
  if (code == StatusCode::kStaleLease && kind == MessageKind::kLeaseReturn) return;
  SIM_TRACE(context_, "%s: %s refused: %s", peer_.c_str(), name_of(kind), text.c_str());
  if (code == StatusCode::kStaleIncarnation) return end(ExitCode::kReplaced, text);
  if (code == StatusCode::kCorrupt) return end(ExitCode::kCorruptState, text);
  const bool hello = kind == MessageKind::kHello;
  if (hello && (code == StatusCode::kWrongVersion || code == StatusCode::kInvalidArgument)) {
    return end(ExitCode::kBadConfiguration, text);
  }
  const bool of_this_life =
      frame.header.store_epoch == 0 || frame.header.store_epoch == store_epoch_;
  if (code == StatusCode::kStaleEpoch || (code == StatusCode::kStaleLease && of_this_life)) {
    reattach(text.c_str());
  }
}

void SimActor::reattach(const char* why) {
  if (!machine_->attached()) return;
  SIM_TRACE(context_, "%s drains and attaches again: %s", peer_.c_str(), why);
  worker_->abort(machine_->group_epoch());
  machine_->on_group_broken(machine_->group_epoch());
  machine_->on_detached();
  pipeline_->abandon();
  detached_since_ms_ = context_.clock.now_ms();
  hello_at_ms_ = 0;
  first_hello_ = 0;
}

void SimActor::request_lease(Step step, uint32_t first_chunk, uint32_t chunk_count) {
  send(MessageKind::kLeaseRequest, LeaseRequestBody{step, first_chunk, chunk_count});
}

void SimActor::return_lease(uint64_t lease_id) {
  send(MessageKind::kLeaseReturn, LeaseReturnBody{lease_id});
}

void SimActor::request_commit(const CommitRequestBody& body, const std::vector<SlotEntry>& shadow) {
  const std::string_view payload(reinterpret_cast<const char*>(shadow.data()),
                                 shadow.size() * sizeof(SlotEntry));
  send(MessageKind::kCommitRequest, body, payload);
}

void SimActor::corrupt_chunk(const CorruptChunkBody& body) {
  send(MessageKind::kCorruptChunk, body);
}

void SimActor::send_ready(Step step) {
  StepReadyBody body{};
  body.step = step;
  std::string_view blob;
  const auto& request = desk_->in_hand();
  if (request && request->body.keep_blob == 0) {
    blob = request->blob;
  } else {
    body.keep_blob = 1;
  }
  body.blob_bytes = static_cast<uint32_t>(blob.size());
  send(MessageKind::kStepReady, body, blob);
}

void SimActor::send_record(Step step) {
  if (!computed_ || computed_->step != step || !sums_ || sums_->step != step) return;
  StepRecordBody body{};
  body.group_epoch = machine_->group_epoch();
  body.record = *computed_;
  body.sums = sums_->digest();
  send(MessageKind::kStepRecord, body);
}

std::vector<GradRange> SimActor::chunk_gradients() {
  std::vector<GradRange> ranges;
  uint64_t first_word = 0;
  uint32_t space = 0;
  for (const ChunkSpec& chunk : context_.arenas[rank_.value].chunks) {
    for (; space != chunk.space; ++space) {
      first_word += shard_of(context_.plan, space, rank_).size();
    }
    const uint64_t in_shard = chunk.range.begin - shard_of(context_.plan, space, rank_).begin;
    ranges.push_back({place_.node.ranks[rank_.value].shards[space].data() + in_shard,
                      chunk.range.size(), first_word + in_shard});
  }
  return ranges;
}

SumsDigest SimActor::recorded_sums(Step step) {
  const auto recorded = view().sums_digest(rank_, step);
  return recorded.value_or(SumsDigest{.step = kNoStep});
}

bool SimActor::sums_are_sound(Step step) {
  return sums_ && sums_->step == step && sums_->digest().digest == recorded_sums(step).digest;
}

void SimActor::begin_sums_check(Step step) {
  const SumsDigest recorded = recorded_sums(step);
  if (recorded.step != step) return end(ExitCode::kCorruptState, "the recorded sums are gone");
  sums_check_.emplace(*device_, rank_, recorded, chunk_gradients(), "the simulated segment");
}

void SimActor::check_sums_some() {
  if (!sums_check_) return;
  const Result<bool> over = sums_check_->advance();
  if (!over.is_ok()) return end(exit_code_for(over.status()), over.status().text());
  if (!over.value()) return;
  sums_ = sums_check_->sums();
  sums_check_.reset();
}

void SimActor::start_run(const NextAction& action) {
  SimRankMemory& memory = place_.node.ranks[rank_.value];
  std::vector<SpaceBuffers> spaces(context_.plan.spaces.size());
  const auto record = view().step_record(rank_, action.step);
  if (action.run == RunKind::kUpdate && !record) {
    return end(ExitCode::kCorruptState, "the record of the open step is not readable");
  }
  uint64_t first_word = 0;
  for (uint32_t s = 0; s < spaces.size(); ++s) {
    spaces[s].shard = shard_of(context_.plan, s, rank_);
    spaces[s].params = reinterpret_cast<char*>(memory.params[s].data());
    spaces[s].grad_shard = memory.shards[s].data();
    spaces[s].grad_first_word = first_word;
    spaces[s].param_dtype = context_.plan.spaces[s].param_dtype;
    first_word += spaces[s].shard.size();
    if (action.run == RunKind::kUpdate) {
      spaces[s].factors = place_.model.factors_of(*record, s);
    }
  }
  GradCheck grads;
  if (action.run == RunKind::kUpdate) grads = {sums_->of_chunk, "the simulated segment"};
  FillInitial fill;
  if (action.run == RunKind::kInitialise) {
    fill = [this](uint32_t space, ElementRange range, float* main) {
      for (uint64_t i = 0; i < range.size(); ++i) {
        main[i] = place_.model.initial(space, range.begin + i);
      }
      return Status::ok();
    };
  }
  pipeline_->start(action.run, action.step, action.chunks, std::move(spaces), std::move(grads),
                   std::move(fill));
  pipeline_->advance(context_.clock.now_us());
}

}  // namespace optlease
