// Windows that are leased and copied in before their step is open (optlease_prepare): the part of
// an update run that needs no gradient. Their leases name the version to come; the store commits
// nothing under them until the step is open, and until then nothing is written to a shadow slot, so
// that they can be given back at any time without draining a stream.
#include "actors/gpu_actor/window_pipeline.h"

namespace optlease {

void WindowPipeline::prefetch(Step step, const std::vector<uint32_t>& chunks) {
  OPTLEASE_CHECK(windows_.empty() && !draining_, "a run of %zu windows is not over",
                 windows_.size());
  prefetch_chunks_ = chunks;
  begin(RunKind::kUpdate, step, chunks);
  prefetching_ = !windows_.empty();
  told_prepared_ = false;
}

// Copies into staging that still run are harmless: the next ones into the same buffer come after
// them in the same stream, and they read what is committed. A grant that is still on its way is
// returned when it comes, and the second copy of one that came is ignored.
void WindowPipeline::release_prefetch() {
  if (!prefetching_) return;
  for (const Window& window : open_windows()) {
    if (window.state == State::kGranted || window.state == State::kStaged) {
      give_back(step_, window.lease_id);
    }
  }
  windows_.clear();
  finished_ = computed_ = first_open_ = first_untouched_ = 0;
  prefetching_ = false;
}

// In window order, one a staging buffer: a buffer is free again only after its window's copy out,
// which nothing has enqueued yet.
void WindowPipeline::stage_granted() {
  uint32_t staged = 0;
  for (Window& window : open_windows()) {
    if (window.state == State::kStaged) {
      ++staged;
      continue;
    }
    if (window.state != State::kGranted || staged == limits_.staging_buffers) return;
    copy_in(window);
    ++staged;
    if (told_prepared_) continue;
    told_prepared_ = true;
    port_.at_phase(RehearsePhase::kPrepared, step_);
  }
}

// The step is open: what is in staging is updated, what is leased or asked for is next.
void WindowPipeline::open_prefetched() {
  prefetching_ = false;
  if (!told_prepared_) port_.at_phase(RehearsePhase::kPrepared, step_);
  for (Window& window : open_windows()) {
    const bool asked = window.state != State::kWanted;
    if (asked && rehearsed(window)) port_.at_phase(RehearsePhase::kBeforeLease, step_);
    if (window.state == State::kStaged) update_staged(window);
  }
}

}  // namespace optlease
