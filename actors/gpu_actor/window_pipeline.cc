#include "actors/gpu_actor/window_pipeline.h"

#include <algorithm>

#include "shm/kill_point.h"

namespace optlease {
namespace {

constexpr uint64_t kAskAgainUs =
    500'000;  // a lease request or commit without an answer is repeated
constexpr uint64_t kBusyRetryUs = 5'000;

}  // namespace

WindowPipeline::WindowPipeline(Device& device, const ChunkWindow& window, Rank rank,
                               const ArenaSpec& arena, const ResidentSlots& resident,
                               PipelineLimits limits, PipelinePort& port)
    : device_(device),
      window_(window),
      rank_(rank),
      arena_(arena),
      resident_(resident),
      limits_(limits),
      port_(port),
      buffer_free_(limits.staging_buffers),
      published_(arena.chunks.size(), kNoStep) {}

void WindowPipeline::start(RunKind kind, Step step, const std::vector<uint32_t>& chunks,
                           std::vector<SpaceBuffers> spaces, GradCheck grads, FillInitial fill) {
  OPTLEASE_CHECK(idle() && !draining_, "a run of %zu windows is not over", windows_.size());
  OPTLEASE_CHECK(kind != RunKind::kUpdate || grads.of_chunk.size() == arena_.chunks.size(),
                 "%zu sums of the gradients of %zu chunks", grads.of_chunk.size(),
                 arena_.chunks.size());
  const bool prefetched =
      kind == RunKind::kUpdate && prefetching() == step && chunks == prefetch_chunks_;
  if (!prefetched) {
    release_prefetch();
    begin(kind, step, chunks);
  }
  spaces_ = std::move(spaces);
  grads_ = std::move(grads);
  fill_ = std::move(fill);
  for (const uint32_t chunk : chunks) published_[chunk] = kNoStep;
  last_advance_us_ = 0;
  last_progress_us_ = 0;
  times_ = {};
  copying_in_ = copying_out_ = false;
  if (prefetched) return open_prefetched();
  if (kind == RunKind::kUpdate) port_.at_phase(RehearsePhase::kPrepared, step);
}

void WindowPipeline::begin(RunKind kind, Step step, const std::vector<uint32_t>& chunks) {
  kind_ = kind;
  step_ = step;
  finished_ = computed_ = first_open_ = first_untouched_ = 0;
  retry_leases_at_us_ = 0;
  build_windows(chunks);
}

void WindowPipeline::build_windows(const std::vector<uint32_t>& chunks) {
  for (uint32_t chunk : chunks) {
    const bool extends = !windows_.empty() &&
                         windows_.back().first_chunk + windows_.back().chunk_count == chunk &&
                         windows_.back().chunk_count < limits_.window_chunks;
    if (extends) {
      ++windows_.back().chunk_count;
    } else {
      windows_.push_back(Window{.first_chunk = chunk, .chunk_count = 1});
    }
  }
  // Sized now: enqueued work keeps pointers into these.
  for (Window& window : windows_) {
    window.sums.resize(window.chunk_count);
    window.fills.resize(window.chunk_count);
    if (kind_ == RunKind::kRepublish) window.state = State::kGranted;
  }
}

void WindowPipeline::clear_if_over() {
  if (prefetching_ || finished_ != windows_.size()) return;
  windows_.clear();
  finished_ = computed_ = first_open_ = first_untouched_ = 0;
}

// A run has thousands of windows, of which a few are on their way.
std::span<WindowPipeline::Window> WindowPipeline::open_windows() {
  while (first_open_ < first_untouched_ && windows_[first_open_].state == State::kDone) {
    ++first_open_;
  }
  return std::span(windows_).subspan(first_open_, first_untouched_ - first_open_);
}

void WindowPipeline::on_grant(const LeaseGrantBody& body, const std::vector<GrantEntry>& entries,
                              uint64_t now_us) {
  if (body.step == returned_of_ && returned_.contains(body.lease_id)) return;
  if (body.step != step_ || windows_.empty() || kind_ == RunKind::kRepublish) {
    // It was asked for a prefetch that is over: the window would stay leased for nothing.
    return give_back(body.step, body.lease_id);
  }
  for (Window& window : open_windows()) {
    if (window.state != State::kRequested || window.first_chunk != body.first_chunk) continue;
    if (!fits(window, body.chunk_count, entries)) continue;
    window.lease_id = body.lease_id;
    window.entries = entries;
    window.state = State::kGranted;
    KILL_POINT("lease.received");
    if (body.deferred == 0) return;
    ++counters_.deferred;
    counters_.credit_wait_seconds += static_cast<double>(now_us - window.first_asked_us) * 1e-6;
    return;
  }
}

// A request that is repeated may be answered twice, and the second grant may be read after its
// lease was returned: the slots that it names are free, or another lease's. Steps only rise, so
// that those of the newest step are all that can be asked for again.
void WindowPipeline::give_back(Step step, uint64_t lease_id) {
  if (step > returned_of_) {
    returned_of_ = step;
    returned_.clear();
  }
  if (step == returned_of_) returned_.insert(lease_id);
  port_.return_lease(lease_id);
}

// A grant is another process's word: nothing of it becomes an address unchecked. One that does not
// fit is left alone, and the request is repeated.
bool WindowPipeline::fits(const Window& window, uint32_t chunk_count,
                          const std::vector<GrantEntry>& entries) const {
  if (window.chunk_count != chunk_count || entries.size() != chunk_count) return false;
  for (uint32_t i = 0; i < chunk_count; ++i) {
    if (entries[i].chunk != window.first_chunk + i) return false;
    if (entries[i].source_slot >= window_.slot_count()) return false;
    if (entries[i].shadow_slot >= window_.slot_count()) return false;
    if (kind_ == RunKind::kUpdate && entries[i].source_slot == entries[i].shadow_slot) return false;
  }
  return true;
}

void WindowPipeline::on_commit_reply(const CommitReplyBody& body) {
  if (body.step != step_) return;
  for (Window& window : open_windows()) {
    if (window.state != State::kCommitting || window.first_chunk != body.first_chunk) continue;
    if (window.lease_id != body.lease_id || window.chunk_count != body.chunk_count) continue;
    window.state = State::kDone;
    KILL_POINT("commit.answered");
    ++finished_;
    last_progress_us_ = last_advance_us_;
    counters_.commits += window.chunk_count;
    note_published(window);
    if (rehearsed(window)) port_.at_phase(RehearsePhase::kAfterCommit, step_);
    break;
  }
  clear_if_over();
}

void WindowPipeline::on_lease_busy(uint64_t now_us) {
  for (Window& window : open_windows()) {
    if (window.state == State::kRequested) window.state = State::kWanted;
  }
  retry_leases_at_us_ = now_us + kBusyRetryUs;
}

void WindowPipeline::advance(uint64_t now_us) {
  if (last_progress_us_ == 0) last_progress_us_ = now_us;
  if (times_.begun_us == 0) times_.begun_us = now_us;
  account_time(now_us);
  for (Window& window : open_windows()) poll_window(window, now_us);
  if (failure_.is_ok()) failure_ = device_.failure();
  clear_if_over();
  // The last reply is taken in right before the turn that gets here.
  if (idle() && times_.ended_us == 0) times_.ended_us = now_us;
  request_leases(now_us);
  if (prefetching_) return stage_granted();
  start_granted(now_us);
  note_directions();
}

// Which directions the link is used in until the next look: a copy in that is enqueued may still
// wait for its buffer.
void WindowPipeline::note_directions() {
  copying_in_ = copying_out_ = false;
  for (const Window& window : open_windows()) {
    copying_in_ |= window.state == State::kCopyIn && device_.reached(window.buffer_free);
    copying_out_ |= window.state == State::kCopyOut;
    if (copying_in_ && copying_out_) return;
  }
}

void WindowPipeline::request_leases(uint64_t now_us) {
  if (kind_ == RunKind::kRepublish || now_us < retry_leases_at_us_) return;
  uint32_t ahead = 0;
  const uint32_t most =
      prefetching_ ? std::min(limits_.leases_ahead, limits_.staging_buffers) : limits_.leases_ahead;
  for (size_t w = first_open_; w < windows_.size(); ++w) {
    Window& window = windows_[w];
    if (window.state == State::kDone) continue;
    if (ahead++ >= most) return;
    const bool unanswered =
        window.state == State::kRequested && now_us >= window.asked_us + kAskAgainUs;
    if (window.state != State::kWanted && !unanswered) continue;
    if (window.state == State::kWanted && rehearsed(window)) {
      port_.at_phase(RehearsePhase::kBeforeLease, step_);
    }
    port_.request_lease(step_, window.first_chunk, window.chunk_count);
    KILL_POINT("lease.asked");
    window.state = State::kRequested;
    window.asked_us = now_us;
    if (window.first_asked_us == 0) window.first_asked_us = now_us;
    first_untouched_ = std::max(first_untouched_, w + 1);
  }
}

void WindowPipeline::poll_window(Window& window, uint64_t now_us) {
  if (!failure_.is_ok()) return;  // nothing is committed any more: the actor ends
  if (window.state == State::kCopyIn && device_.reached(window.copied_in)) {
    window.state = State::kCompute;
    KILL_POINT("copy.in_over");
    if (rehearsed(window)) port_.at_phase(RehearsePhase::kUpdate, step_);
  }
  if (window.state == State::kCompute && device_.reached(window.computed)) {
    window.state = State::kCopyOut;
    if (times_.first_window_us == 0) {
      times_.first_window_us = now_us;
      times_.in_busy_seconds_before = times_.in_busy_seconds;
    }
    if (kind_ == RunKind::kUpdate && !take_computed(window)) return;
    if (computed_ == windows_.size()) times_.computed_us = now_us;
    if (rehearsed(window)) port_.at_phase(RehearsePhase::kCopyOut, step_);
  }
  if (window.state == State::kCopyOut && device_.reached(window.copied_out)) {
    const bool last = kind_ == RunKind::kUpdate && &window == &windows_.back();
    if (last && port_.keeps_last_commit(step_)) return;
    KILL_POINT("copy.out_over");
    finish_compute(window, now_us);
  } else if (window.state == State::kCommitting && now_us >= window.asked_us + kAskAgainUs) {
    send_commit(window, now_us);
  }
}

void WindowPipeline::finish_compute(Window& window, uint64_t now_us) {
  last_progress_us_ = now_us;
  if (kind_ == RunKind::kInitialise) {
    for (const Status& filled : window.fills) {
      if (!filled.is_ok() && failure_.is_ok()) failure_ = filled;
    }
    if (!failure_.is_ok()) return;
  } else if (kind_ == RunKind::kRepublish) {
    if (!sums_hold(window)) return;
    KILL_POINT("republish.over");
    window.state = State::kDone;
    ++finished_;
    return note_published(window);
  }
  if (rehearsed(window)) port_.at_phase(RehearsePhase::kBeforeCommit, step_);
  send_commit(window, now_us);
}

// Its parameters are in the buffer, and they are final where the bytes that they stem from are
// those that were committed, and those that this rank summed.
bool WindowPipeline::take_computed(Window& window) {
  if (!sums_hold(window)) return false;
  KILL_POINT("checksum.held");
  ++computed_;
  note_published(window);
  return true;
}

void WindowPipeline::note_published(const Window& window) {
  for (uint32_t i = 0; i < window.chunk_count; ++i) published_[window.first_chunk + i] = step_;
}

bool WindowPipeline::sums_hold(const Window& window) {
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    if (!state_sums_hold(window.entries[i], window.sums[i])) return false;
    if (!grad_sum_holds(window.first_chunk + i, window.sums[i])) return false;
  }
  return true;
}

bool WindowPipeline::state_sums_hold(const GrantEntry& entry, const ChunkSums& sums) {
  if (sums.read == entry.source_checksum) return true;
  const CorruptChunkBody body{entry.chunk, entry.source_slot, entry.source_checksum, sums.read};
  const ChunkSpec& spec = arena_.chunks[entry.chunk];
  failure_ = {
      StatusCode::kCorrupt,
      format("chunk %u (space %u, elements %llu to %llu), slot %u: the committed bytes sum to "
             "%016llx, not %016llx: memory was altered; start again with --fresh (model.source "
             "takes exported weights)",
             entry.chunk, spec.space, static_cast<unsigned long long>(spec.range.begin),
             static_cast<unsigned long long>(spec.range.end), entry.source_slot,
             static_cast<unsigned long long>(body.found),
             static_cast<unsigned long long>(body.expected))};
  port_.corrupt_chunk(body);
  return false;
}

bool WindowPipeline::grad_sum_holds(uint32_t chunk, const ChunkSums& sums) {
  if (kind_ != RunKind::kUpdate || sums.grad == grads_.of_chunk[chunk]) return true;
  const ChunkSpec& spec = arena_.chunks[chunk];
  failure_ = {
      StatusCode::kCorrupt,
      format("rank %u, chunk %u (space %u, elements %llu to %llu): the summed gradients of step "
             "%lld that its update read in %s sum to %016llx, not %016llx as this rank reduced "
             "them: bits of them changed since. Nothing of this chunk was committed; start again "
             "with --fresh (model.source takes exported weights), and have this machine's memory "
             "tested",
             rank_.value, chunk, spec.space, static_cast<unsigned long long>(spec.range.begin),
             static_cast<unsigned long long>(spec.range.end), static_cast<long long>(step_),
             grads_.place.c_str(), static_cast<unsigned long long>(sums.grad),
             static_cast<unsigned long long>(grads_.of_chunk[chunk]))};
  return false;
}

void WindowPipeline::send_commit(Window& window, uint64_t now_us) {
  CommitRequestBody body{};
  body.lease_id = window.lease_id;
  body.step = step_;
  body.first_chunk = window.first_chunk;
  body.chunk_count = window.chunk_count;
  body.entry_count = window.chunk_count;
  std::vector<SlotEntry> shadow;
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    shadow.push_back({window.entries[i].shadow_slot, 0, window.sums[i].written});
  }
  window.state = State::kCommitting;
  window.asked_us = now_us;
  port_.request_commit(body, shadow);
  KILL_POINT("commit.asked");
}

void WindowPipeline::abandon() {
  abandoned_.insert(abandoned_.end(), std::make_move_iterator(windows_.begin()),
                    std::make_move_iterator(windows_.end()));
  windows_.clear();
  finished_ = computed_ = first_open_ = first_untouched_ = 0;
  prefetching_ = false;
  // No grant of before the next hello is read, and another life of the store counts from 1 again.
  returned_.clear();
  if (draining_) return;
  draining_ = true;
  for (uint32_t s = 0; s < kStreamCount; ++s) {
    last_tickets_[s] = device_.signal(static_cast<StreamKind>(s));
  }
}

bool WindowPipeline::drained() {
  if (!draining_) return windows_.empty();
  for (const Ticket& ticket : last_tickets_) {
    if (!device_.reached(ticket)) return false;
  }
  draining_ = false;
  KILL_POINT("actor.drained");
  abandoned_.clear();
  return true;
}

void WindowPipeline::account_time(uint64_t now_us) {
  const double elapsed =
      last_advance_us_ == 0 ? 0 : static_cast<double>(now_us - last_advance_us_) * 1e-6;
  last_advance_us_ = now_us;
  if (prefetching_) return;  // nobody waits for these windows yet
  if (copying_in_) times_.in_busy_seconds += elapsed;
  if (copying_out_) times_.out_busy_seconds += elapsed;
  bool copying_in = false, in_flight = false, left = first_untouched_ < windows_.size();
  for (const Window& window : open_windows()) {
    copying_in |= window.state == State::kCopyIn;
    in_flight |= window.state >= State::kCopyIn && window.state <= State::kCopyOut;
    left |= window.state < State::kCopyIn;
  }
  if (copying_in || !left) return;
  (in_flight ? counters_.stall_seconds : counters_.lease_wait_seconds) += elapsed;
}

bool WindowPipeline::rehearsed(const Window& window) const {
  return kind_ == RunKind::kUpdate && !prefetching_ && &window == &windows_[windows_.size() / 2];
}

std::string WindowPipeline::describe() const {
  static constexpr const char* kNames[] = {"wanted",   "requested",  "granted",
                                           "staged",   "copy_in",    "compute",
                                           "copy_out", "committing", "done"};
  for (const Window& window : windows_) {
    if (window.state == State::kDone) continue;
    return format("step %lld, %zu of %zu windows done, window of chunk %u is %s",
                  static_cast<long long>(step_), finished_, windows_.size(), window.first_chunk,
                  kNames[static_cast<int>(window.state)]);
  }
  return "no window in hand";
}

}  // namespace optlease
