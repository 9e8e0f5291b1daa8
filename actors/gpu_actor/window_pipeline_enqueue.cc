// What a window enqueues on the device's streams, once it is leased.
#include <cstring>

#include "actors/gpu_actor/window_pipeline.h"

namespace optlease {

void WindowPipeline::start_granted(uint64_t now_us) {
  size_t in_flight = 0;
  for (size_t w = first_open_; w < windows_.size(); ++w) {
    Window& window = windows_[w];
    in_flight += window.state >= State::kCopyIn && window.state <= State::kCopyOut ? 1 : 0;
    if (in_flight >= 2 * buffer_free_.size() || window.state == State::kWanted) return;
    if (window.state != State::kGranted) continue;
    switch (kind_) {
      case RunKind::kUpdate:
        copy_in(window);
        update_staged(window);
        break;
      case RunKind::kInitialise:
        start_initialise(window);
        break;
      case RunKind::kRepublish:
        start_republish(window);
        break;
    }
    ++in_flight;
    first_untouched_ = std::max(first_untouched_, w + 1);
    last_progress_us_ = now_us;
  }
}

uint32_t WindowPipeline::take_buffer(Window& window) {
  const uint32_t buffer = next_buffer_;
  next_buffer_ = (next_buffer_ + 1) % limits_.staging_buffers;
  window.buffer_free = buffer_free_[buffer];
  device_.wait(StreamKind::kCopyIn, window.buffer_free);
  return buffer;
}

AdamChunk WindowPipeline::staged_chunk(uint32_t chunk, char* base) const {
  const ChunkSpec& spec = arena_.chunks[chunk];
  const SpaceBuffers& space = spaces_[spec.space];
  const uint64_t stride = array_stride_bytes(spec.range.size());
  AdamChunk staged{};
  staged.main = reinterpret_cast<float*>(base);
  staged.exp_avg = reinterpret_cast<float*>(base + stride);
  staged.exp_avg_sq = reinterpret_cast<float*>(base + 2 * stride);
  staged.grad = space.grad_shard == nullptr
                    ? nullptr
                    : space.grad_shard + (spec.range.begin - space.shard.begin);
  staged.grad_dtype = DType::kF32;
  staged.param = space.params + spec.range.begin * bytes_of(space.param_dtype);
  staged.param_dtype = space.param_dtype;
  staged.elements = spec.range.size();
  return staged;
}

// All copies in first, then all updates, then all copies out: each stream gets its work in one go
// and the tickets order them.
void WindowPipeline::copy_in(Window& window) {
  window.buffer = take_buffer(window);
  char* base = device_.staging(window.buffer);
  const uint64_t slot_bytes = window_.slot_bytes();
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    const uint64_t bytes = chunk_bytes(arena_.chunks[window.first_chunk + i].range.size());
    const char* source = window_.slot(SlotIndex(window.entries[i].source_slot));
    device_.copy(StreamKind::kCopyIn, base + i * slot_bytes, source, bytes);
  }
  window.copied_in = device_.signal(StreamKind::kCopyIn);
  window.state = State::kStaged;
}

void WindowPipeline::update_staged(Window& window) {
  char* base = device_.staging(window.buffer);
  const uint64_t slot_bytes = window_.slot_bytes();
  window.state = State::kCopyIn;
  if (rehearsed(window)) port_.at_phase(RehearsePhase::kCopyIn, step_);

  device_.wait(StreamKind::kCompute, window.copied_in);
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    const uint32_t chunk = window.first_chunk + i;
    device_.update(staged_chunk(chunk, base + i * slot_bytes),
                   spaces_[arena_.chunks[chunk].space].factors, &window.sums[i]);
  }
  window.computed = device_.signal(StreamKind::kCompute);

  device_.wait(StreamKind::kCopyOut, window.computed);
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    const uint64_t bytes = chunk_bytes(arena_.chunks[window.first_chunk + i].range.size());
    char* shadow = window_.slot(SlotIndex(window.entries[i].shadow_slot));
    device_.copy(StreamKind::kCopyOut, shadow, base + i * slot_bytes, bytes);
  }
  window.copied_out = buffer_free_[window.buffer] = device_.signal(StreamKind::kCopyOut);
}

void WindowPipeline::start_initialise(Window& window) {
  const uint32_t buffer = take_buffer(window);
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    const ChunkSpec spec = arena_.chunks[window.first_chunk + i];
    const uint64_t bytes = chunk_bytes(spec.range.size());
    char* shadow = window_.slot(SlotIndex(window.entries[i].shadow_slot));
    Status* filled = &window.fills[i];
    device_.run_on_host(StreamKind::kCopyIn, [this, spec, bytes, shadow, filled] {
      // The shadow slot may hold an older life's bytes: every word of the chunk is written.
      std::memset(shadow, 0, bytes);
      *filled = fill_(spec.space, spec.range, reinterpret_cast<float*>(shadow));
    });
    device_.copy(StreamKind::kCopyIn, device_.staging(buffer) + i * window_.slot_bytes(), shadow,
                 bytes);
  }
  publish_staged(window, buffer);
}

void WindowPipeline::start_republish(Window& window) {
  const uint32_t buffer = take_buffer(window);
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    const uint32_t chunk = window.first_chunk + i;
    const SlotEntry entry = window_.view().entries(rank_, ChunkIndex(chunk)).front();
    window.entries.push_back({chunk, entry.slot, entry.slot, 0, entry.checksum});
    device_.copy(StreamKind::kCopyIn, device_.staging(buffer) + i * window_.slot_bytes(),
                 window_.slot(SlotIndex(entry.slot)),
                 chunk_bytes(arena_.chunks[chunk].range.size()));
  }
  publish_staged(window, buffer);
}

// Parameters and checksums of what the copies in have brought; nothing is copied out.
void WindowPipeline::publish_staged(Window& window, uint32_t buffer) {
  char* base = device_.staging(buffer);
  window.copied_in = device_.signal(StreamKind::kCopyIn);
  device_.wait(StreamKind::kCompute, window.copied_in);
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    device_.republish(staged_chunk(window.first_chunk + i, base + i * window_.slot_bytes()),
                      &window.sums[i]);
  }
  window.computed = device_.signal(StreamKind::kCompute);
  window.copied_out = buffer_free_[buffer] = window.computed;
  window.state = State::kCopyIn;
}

}  // namespace optlease
