// The ledger's account of processes and frames; sim_ledger_look.cc reads the segments.
#include "tests/simulation/sim_ledger.h"

#include <algorithm>

namespace optlease {
namespace {

unsigned long long num(uint64_t value) { return value; }
long long num(Step step) { return static_cast<long long>(step); }

}  // namespace

SimLedger::SimLedger(SimContext& context, SimModel& model, SimNode& node)
    : context_(context),
      model_(model),
      node_(node),
      ranks_(context.options.ranks),
      told_(context.options.ranks) {
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].words.assign(context.arenas[r].chunks.size(), 0);
    ranks_[r].holder.resize(context.arenas[r].slot_count);
    ranks_[r].claims.resize(context.arenas[r].slot_count);
    ranks_[r].over.resize(context.arenas[r].slot_count);
  }
}

void SimLedger::state_is_there() {
  if (has_state()) return;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    Result<ChunkWindow> window =
        ChunkWindow::open(context_.names.control, context_.names.arenas[r], Rank{r});
    OPTLEASE_CHECK(window.is_ok(), "%s", window.status().text().c_str());
    windows_.push_back(std::move(window).value());
  }
}

void SimLedger::born(uint64_t body, Rank rank, uint64_t incarnation) {
  bodies_[body] = {rank, incarnation};
}

void SimLedger::died(uint64_t body) {
  const auto found = bodies_.find(body);
  if (found != bodies_.end()) found->second.dead = true;  // else it is no actor
}

void SimLedger::reaped(uint64_t body) {
  const auto found = bodies_.find(body);
  if (found == bodies_.end()) return;
  found->second.gone = true;
  context_.clock.after(context_.options.grace_us(), [this, body] { end_claims(body); });
}

void SimLedger::end_claims(uint64_t body) {
  bodies_.at(body).over = true;
  RankLook& look = ranks_[bodies_.at(body).rank.value];
  for (uint32_t slot = 0; slot < look.claims.size(); ++slot) {
    if (look.claims[slot] && look.claims[slot]->body == body) look.over[slot] = true;
  }
}

void SimLedger::drop_claims(uint64_t body, std::optional<uint64_t> lease) {
  for (std::optional<Claim>& claim : ranks_[bodies_.at(body).rank.value].claims) {
    const bool theirs = claim && claim->body == body;
    if (theirs && (!lease || (claim->lease == *lease && claim->epoch == epoch_))) claim.reset();
  }
}

void SimLedger::writes_slot(uint64_t body, Rank rank, uint32_t slot) {
  RankLook& look = ranks_[rank.value];
  if (look.holder[slot]) {
    context_.fail(
        format("process %llu writes slot %u of rank %u, which holds the committed version "
               "of chunk %u",
               num(body), slot, rank.value, *look.holder[slot]));
  } else if (!look.claims[slot] || look.claims[slot]->body != body || look.over[slot]) {
    context_.fail(format("process %llu writes slot %u of rank %u, which is granted to process %llu",
                         num(body), slot, rank.value,
                         num(look.claims[slot] ? look.claims[slot]->body : 0)));
  }
}

void SimLedger::wrote_somewhere(Rank rank) {
  for (uint32_t c = 0; c < ranks_[rank.value].words.size(); ++c) {
    if (version_of(ranks_[rank.value].words[c]) >= 0) check_content(rank.value, c);
  }
}

void SimLedger::store_serves(uint64_t epoch) {
  if (epoch <= epoch_) {
    context_.fail(format("store epoch %llu after %llu", num(epoch), num(epoch_)));
  }
  epoch_ = epoch;
  lease_ends_ms_.clear();
  for (uint32_t r = 0; r < told_.size(); ++r) {
    told_[r] = {.newest = view().rank(Rank{r}).incarnation.load(), .lost = {}, .attached = 0};
  }
  look();
}

void SimLedger::store_hears(uint64_t body, const std::string& frame) {
  frame_ = frame;
  speaker_ = body;
  const Decoded decoded = decode(*frame_).value();
  if (body == 0) return hears_launcher(decoded);
  hears_actor(body, decoded);
}

void SimLedger::store_heard() {
  look();
  frame_.reset();
}

void SimLedger::hears_launcher(const Decoded& frame) {
  const bool started = frame.kind == MessageKind::kIncarnationStarted;
  const bool lost =
      frame.kind == MessageKind::kIncarnationLost || frame.kind == MessageKind::kIncarnationReaped;
  if (!started && !lost) return;
  const auto about = frame.as<IncarnationBody>();
  Told& told = told_[about.rank];
  if (lost) told.lost.insert(about.incarnation);
  told.newest = std::max(told.newest, about.incarnation);
  const bool over =
      told.attached != 0 && (bodies_.at(told.attached).incarnation < told.newest ||
                             told.lost.contains(bodies_.at(told.attached).incarnation));
  if (over) told.attached = 0;
}

void SimLedger::hears_actor(uint64_t body, const Decoded& frame) {
  const Body& speaker = bodies_.at(body);
  const Told& told = told_[speaker.rank.value];
  if (frame.kind == MessageKind::kHello) {
    drop_claims(body, std::nullopt);
  }
  if (frame.header.store_epoch != epoch_) return;
  if (frame.kind == MessageKind::kLeaseReturn) {
    drop_claims(body, frame.as<LeaseReturnBody>().lease_id);
  }
  if (frame.kind != MessageKind::kHeartbeat || told.attached != body) return;
  const uint64_t now_ms = context_.clock.now_ms();
  for (const std::optional<Claim>& claim : ranks_[speaker.rank.value].claims) {
    if (!claim || claim->body != body || claim->epoch != epoch_) continue;
    uint64_t& ends_ms = lease_ends_ms_[claim->lease];
    if (ends_ms > now_ms) ends_ms = now_ms + context_.options.restart.lease_ms;
  }
}

void SimLedger::store_says(uint64_t body, const std::string& text) {
  const Decoded frame = decode(text).value();
  const uint32_t rank = frame.header.rank;
  if (frame.kind == MessageKind::kWelcome) {
    told_[rank].attached = body;
    told_[rank].newest = std::max(told_[rank].newest, bodies_.at(body).incarnation);
  } else if (frame.kind == MessageKind::kLeaseGrant) {
    says_grant(body, frame);
  } else if (frame.kind == MessageKind::kGoReduce || frame.kind == MessageKind::kGoGather) {
    bodies_.at(body).worked = true;
    if (frame.kind == MessageKind::kGoReduce) check_nobody_lags("a reduction is ordered");
  } else if (frame.kind == MessageKind::kStepOpen) {
    const Step step = frame.as<StepBody>().step;
    if (step != open_ && step > committed_) {
      context_.fail(format("step %lld is said to be open and is not", num(step)));
    }
  } else if (frame.kind == MessageKind::kStepCommitted) {
    const Step step = frame.as<StepBody>().step;
    if (step > committed_) {
      context_.fail(format("step %lld is said to be committed and is not", num(step)));
    }
  } else if (frame.kind == MessageKind::kCommitReply) {
    const auto reply = frame.as<CommitReplyBody>();
    for (uint32_t c = reply.first_chunk; c < reply.first_chunk + reply.chunk_count; ++c) {
      if (version_of(ranks_[rank].words[c]) >= reply.step) continue;
      context_.fail(format("chunk %u of rank %u is said to be at step %lld and is not", c, rank,
                           num(reply.step)));
    }
  }
}

void SimLedger::says_grant(uint64_t body, const Decoded& frame) {
  const auto grant = frame.as<LeaseGrantBody>();
  const uint32_t rank = frame.header.rank;
  if (view().rank(Rank{rank}).incarnation.load() != frame.header.incarnation) {
    context_.fail(format("rank %u is granted a lease and the segment does not name it", rank));
  }
  if (grant.step != committed_ + 1 && grant.step > committed_) {
    context_.fail(format("a lease of step %lld behind committed step %lld", num(grant.step),
                         num(committed_)));
  }
  bodies_.at(body).worked = true;
  lease_ends_ms_.emplace(grant.lease_id,
                         context_.clock.now_ms() + context_.options.restart.lease_ms);
  // What was committed since it was written down is no shadow slot any more.
  if (grant.step <= committed_) return;
  for (const GrantEntry& entry : frame.entries<GrantEntry>()) {
    if (version_of(ranks_[rank].words[entry.chunk]) >= grant.step) continue;
    check_grant_entry(body, {body, epoch_, grant.lease_id, entry.chunk, grant.step},
                      entry.shadow_slot);
  }
}

void SimLedger::check_grant_entry(uint64_t body, const Claim& claim, uint32_t slot) {
  const uint32_t rank = bodies_.at(body).rank.value;
  RankLook& look = ranks_[rank];
  if (slot >= look.claims.size()) {
    return context_.fail(format("slot %u of rank %u is granted and does not exist", slot, rank));
  }
  if (look.holder[slot]) {
    return context_.fail(
        format("slot %u of rank %u is granted and holds the committed version of "
               "chunk %u",
               slot, rank, *look.holder[slot]));
  }
  std::optional<Claim>& held = look.claims[slot];
  if (held && !(*held == claim) && !look.over[slot]) {
    return context_.fail(
        format("slot %u of rank %u is granted to process %llu (lease %llu of epoch %llu), and "
               "process %llu may still write it (lease %llu of epoch %llu)",
               slot, rank, num(body), num(claim.lease), num(claim.epoch), num(held->body),
               num(held->lease), num(held->epoch)));
  }
  held = claim;
  look.over[slot] = bodies_.at(body).over;  // the store need not know yet
}

// An older process of some rank that ever did anything may have a copy, a kernel or a system call
// under way. The newest one may be on its way to this life of the store, or may have died without
// anybody knowing yet.
void SimLedger::check_nobody_lags(const char* what) {
  for (const auto& [number, body] : bodies_) {
    if (body.gone || !body.worked) continue;
    const Told& told = told_[body.rank.value];
    const bool newest = !body.dead || body.incarnation == told.newest;
    if (newest && !told.lost.contains(body.incarnation)) continue;
    context_.fail(format("%s while process %llu of rank %u is dead and not reaped", what,
                         num(number), body.rank.value));
  }
}

}  // namespace optlease
