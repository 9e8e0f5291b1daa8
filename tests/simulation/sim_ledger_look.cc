// What the ledger finds in the segments after an event.
#include <algorithm>
#include <cstring>

#include "kernels/checksum.h"
#include "tests/simulation/sim_ledger.h"

namespace optlease {
namespace {

unsigned long long num(uint64_t value) { return value; }
long long num(Step step) { return static_cast<long long>(step); }

}  // namespace

void SimLedger::look() {
  if (!has_state() || !context_.failure.empty()) return;
  look_at_records();
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    for (uint32_t c = 0; c < ranks_[r].words.size(); ++c) {
      const uint64_t now = view().commit_word(Rank{r}, ChunkIndex{c});
      if (now != ranks_[r].words[c]) flipped(r, c, ranks_[r].words[c], now);
    }
  }
  const Step committed = view().step_committed();
  if (committed != committed_) step_moved(committed);
}

void SimLedger::look_at_records() {
  bool changed = false;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    const RankRecord& record = view().rank(Rank{r});
    for (uint32_t bank = 0; bank < 2; ++bank) {
      changed |= record.steps[bank].step != ranks_[r].record_steps[bank];
      ranks_[r].record_steps[bank] = record.steps[bank].step;
    }
  }
  if (!changed) return;
  const bool is_open = view().step_is_open();
  if (is_open && open_ == kNoStep) return opened(committed_ + 1);
  if (!is_open && open_ != kNoStep && view().step_committed() == committed_) {
    context_.fail(format("step %lld was open, and its records are gone", num(open_)));
  }
}

// From here on the step is what it is, whoever dies.
void SimLedger::opened(Step step) {
  open_ = step;
  ++steps_opened_;
  const Attempts& attempts = node_.ranks[0].summed_attempts;
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    if (node_.ranks[r].summed_attempts != attempts) {
      return context_.fail(
          format("step %lld opens with the sums of other gradients at rank %u", num(step), r));
    }
    const auto digest = view().sums_digest(Rank{r}, step);
    if (!digest || digest->digest != model_.sums_of(step, attempts, Rank{r}).digest().digest) {
      return context_.fail(format("step %lld opens with a wrong digest of rank %u", num(step), r));
    }
    for (uint32_t s = 0; s < context_.plan.spaces.size(); ++s) {
      const std::vector<float> summed = model_.summed(step, attempts, s, Rank{r});
      if (std::memcmp(summed.data(), node_.ranks[r].shards[s].data(), summed.size() * 4) != 0) {
        return context_.fail(format("step %lld opens with wrong sums of rank %u", num(step), r));
      }
    }
  }
  model_.open(step, attempts);
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    const auto record = view().step_record(Rank{r}, step);
    if (std::memcmp(&*record, &model_.record(step), sizeof *record) != 0) {
      return context_.fail(format("the record of step %lld at rank %u is wrong", num(step), r));
    }
  }
}

void SimLedger::flipped(uint32_t r, uint32_t c, uint64_t before, uint64_t now) {
  ++flips_;
  const Step step = version_of(now);
  RankLook& rank = ranks_[r];
  rank.words[c] = now;
  if (step != version_of(before) + 1 || step != committed_ + 1) {
    return context_.fail(
        format("chunk %u of rank %u goes from version %lld to %lld while step %lld "
               "is committed",
               c, r, num(version_of(before)), num(step), num(committed_)));
  }
  if (step > 0 && step != open_) {
    return context_.fail(format("chunk %u of rank %u is committed at step %lld, which is not open",
                                c, r, num(step)));
  }
  const bool skipped = step > 0 && model_.record(step).skipped != 0;
  if (skipped != (step > 0 && bank_of(now) == bank_of(before))) {
    return context_.fail(
        format("chunk %u of rank %u: a skipped step moves versions, not values", c, r));
  }
  if (!skipped) {
    check_commit(r, c, step);
    for (std::optional<uint32_t>& holder : rank.holder) {
      if (holder == c) holder.reset();
    }
    for (const SlotEntry& entry : view().entries(Rank{r}, ChunkIndex{c})) {
      rank.holder[entry.slot] = c;
    }
  }
  check_content(r, c);
}

// Only the live incarnation, under a lease that lives, with exactly the slots that it was granted.
void SimLedger::check_commit(uint32_t r, uint32_t c, Step step) {
  if (!frame_ || decode(*frame_).value().kind != MessageKind::kCommitRequest) {
    return context_.fail(format("chunk %u of rank %u is committed and nobody asked for it", c, r));
  }
  const Decoded frame = decode(*frame_).value();
  const auto body = frame.as<CommitRequestBody>();
  const Told& told = told_[r];
  const uint64_t incarnation = frame.header.incarnation;
  const bool live = told.attached == speaker_ && told.newest == incarnation &&
                    !told.lost.contains(incarnation) && frame.header.store_epoch == epoch_;
  if (!live || frame.header.rank != r) {
    return context_.fail(
        format("a commit of chunk %u of rank %u is accepted from process %llu, "
               "which is not the live one",
               c, r, num(speaker_)));
  }
  if (lease_ends_ms_[body.lease_id] <= context_.clock.now_ms()) {
    context_.fail(
        format("a commit under lease %llu is accepted, which is over", num(body.lease_id)));
  }
  for (const SlotEntry& entry : view().entries(Rank{r}, ChunkIndex{c})) {
    std::optional<Claim>& claim = ranks_[r].claims[entry.slot];
    const Claim wanted{speaker_, epoch_, body.lease_id, c, step};
    if (claim != wanted) {
      context_.fail(
          format("chunk %u of rank %u is committed in slot %u, which was not granted for "
                 "it under lease %llu",
                 c, r, entry.slot, num(body.lease_id)));
    }
    claim.reset();
  }
}

void SimLedger::check_content(uint32_t r, uint32_t c) {
  const SlotEntry& entry = view().entries(Rank{r}, ChunkIndex{c}).front();
  const char* slot = windows_[r].slot(SlotIndex{entry.slot});
  const Step step = version_of(ranks_[r].words[c]);
  if (!model_.chunk_is(slot, Rank{r}, c, step)) {
    return context_.fail(
        format("chunk %u of rank %u, slot %u: its committed bytes are not those of "
               "step %lld",
               c, r, entry.slot, num(step)));
  }
  const uint64_t sum = checksum_chunk(slot, context_.arenas[r].chunks[c].range.size());
  if (sum != entry.checksum) {
    context_.fail(format("chunk %u of rank %u: its checksum is wrong", c, r));
  }
}

void SimLedger::step_moved(Step step) {
  if (step != committed_ + 1 || (step > 0 && step != open_)) {
    return context_.fail(format("the committed step goes from %lld to %lld, open is %lld",
                                num(committed_), num(step), num(open_)));
  }
  committed_ = step;
  open_ = kNoStep;
  check_nobody_lags("a step is committed");
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    for (uint32_t c = 0; c < ranks_[r].words.size(); ++c) {
      if (version_of(ranks_[r].words[c]) != step) {
        return context_.fail(format("step %lld is committed, chunk %u of rank %u is at %lld",
                                    num(step), c, r, num(version_of(ranks_[r].words[c]))));
      }
      check_content(r, c);
    }
    if (step > 0 && !view().step_record(Rank{r}, step)) {
      context_.fail(format("step %lld is committed without a record of rank %u", num(step), r));
    }
    check_blob(Rank{r}, step, view().blob(Rank{r}, step));
  }
}

void SimLedger::check_blob(Rank rank, Step step, const std::optional<std::string>& blob) {
  if (blob == model_.blob_at(step, rank)) return;
  context_.fail(format("rank %u: the blob of step %lld is '%s', not '%s'", rank.value, num(step),
                       blob.value_or("none").c_str(),
                       model_.blob_at(step, rank).value_or("none").c_str()));
}

void SimLedger::check_params(Rank rank, Step step, const char* when) {
  if (step != open_ && step != committed_) {
    return context_.fail(format("rank %u: parameters of step %lld %s, committed is %lld, open %lld",
                                rank.value, num(step), when, num(committed_), num(open_)));
  }
  for (uint32_t s = 0; s < context_.plan.spaces.size(); ++s) {
    const std::vector<float>& params = node_.ranks[rank.value].params[s];
    if (params.empty() || model_.params_are(params, s, step)) continue;
    context_.fail(format("rank %u, space %u: the parameters %s are not those of step %lld",
                         rank.value, s, when, num(step)));
  }
}

void SimLedger::check_end() {
  if (committed_ != context_.options.steps) {
    context_.fail(
        format("the job ends at step %lld of %lld", num(committed_), num(context_.options.steps)));
  }
  for (uint32_t r = 0; r < ranks_.size(); ++r) wrote_somewhere(Rank{r});
}

}  // namespace optlease
