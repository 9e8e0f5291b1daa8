// What a window enqueues on the device's streams, once it is leased.
#include "actors/gpu_actor/initial_chunk.h"
#include "actors/gpu_actor/window_pipeline.h"
#include "shm/kill_point.h"

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

ChunkLayout WindowPipeline::layout_of_chunk(uint32_t chunk) const {
  return layout_of(arena_.split, arena_.chunks[chunk].range.size());
}

std::vector<AdamChunk> WindowPipeline::staged_parts(uint32_t chunk, char* staged,
                                                    char* resident) const {
  const ChunkSpec& spec = arena_.chunks[chunk];
  const SpaceBuffers& space = spaces_[spec.space];
  const ChunkLayout layout = layout_of_chunk(chunk);
  std::vector<AdamChunk> parts;
  for (const ElementRange& range : parts_of(layout)) {
    if (range.size() == 0) continue;
    const auto address = [&](uint32_t array) {
      const ArrayPlace place = place_of(layout, array, range.begin);
      return (place.on_device ? resident : staged) + place.offset;
    };
    AdamChunk part;
    if (arena_.split.main == MainForm::kBf16Remainder) {
      char* rounded = resident + layout.rounded.offset + range.begin * sizeof(uint16_t);
      part.main_rounded = reinterpret_cast<uint16_t*>(rounded);
      part.main_remainder = reinterpret_cast<uint16_t*>(address(kMainArray));
    } else {
      part.main = reinterpret_cast<float*>(address(kMainArray));
    }
    part.exp_avg = reinterpret_cast<float*>(address(1));
    part.exp_avg_sq = reinterpret_cast<float*>(address(2));
    const uint64_t first = spec.range.begin + range.begin;  // in the space
    const uint64_t in_shard = first - space.shard.begin;
    part.grad = space.grad_shard == nullptr ? nullptr : space.grad_shard + in_shard;
    part.grad_dtype = DType::kF32;
    part.grad_first_word = space.grad_first_word + in_shard;
    part.param = space.params + first * bytes_of(space.param_dtype);
    part.param_dtype = space.param_dtype;
    part.elements = range.size();
    part.first = range.begin;
    part.chunk_elements = layout.elements;
    parts.push_back(part);
  }
  return parts;
}

// All copies in first, then all updates, then all copies out: each stream gets its work in one go
// and the tickets order them.
void WindowPipeline::copy_in(Window& window) {
  window.buffer = take_buffer(window);
  char* base = device_.staging(window.buffer);
  const uint64_t slot_bytes = window_.slot_bytes();
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    const char* source = window_.slot(SlotIndex(window.entries[i].source_slot));
    device_.copy(StreamKind::kCopyIn, base + i * slot_bytes, source,
                 layout_of_chunk(window.first_chunk + i).host_bytes);
  }
  window.copied_in = device_.signal(StreamKind::kCopyIn);
  KILL_POINT("copy.in_begun");
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
    char* shadow = resident_.device_slot(window.entries[i].shadow_slot);
    if (shadow != nullptr) {
      device_.copy_within(shadow, resident_.device_slot(window.entries[i].source_slot),
                          layout_of_chunk(chunk).resident_bytes);
    }
    for (const AdamChunk& part : staged_parts(chunk, base + i * slot_bytes, shadow)) {
      device_.update(part, spaces_[arena_.chunks[chunk].space].factors, &window.sums[i]);
    }
  }
  window.computed = device_.signal(StreamKind::kCompute);

  device_.wait(StreamKind::kCopyOut, window.computed);
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    char* shadow = window_.slot(SlotIndex(window.entries[i].shadow_slot));
    device_.copy(StreamKind::kCopyOut, shadow, base + i * slot_bytes,
                 layout_of_chunk(window.first_chunk + i).host_bytes);
  }
  window.copied_out = buffer_free_[window.buffer] = device_.signal(StreamKind::kCopyOut);
  KILL_POINT("shadow.begun");
}

void WindowPipeline::start_initialise(Window& window) {
  const uint32_t buffer = take_buffer(window);
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    const ChunkSpec spec = arena_.chunks[window.first_chunk + i];
    const ChunkLayout layout = layout_of_chunk(window.first_chunk + i);
    const uint32_t slot = window.entries[i].shadow_slot;
    char* shadow = window_.slot(SlotIndex(slot));
    char* image = resident_.image_slot(slot);
    Status* filled = &window.fills[i];
    device_.run_on_host(StreamKind::kCopyIn, [this, spec, layout, shadow, image, filled] {
      const auto fill = [&](ElementRange range, float* main) {
        return fill_(spec.space, range, main);
      };
      *filled = write_initial_chunk(arena_.split, layout, spec.range, fill, {shadow, image});
      KILL_POINT("initial.written");
    });
    device_.copy(StreamKind::kCopyIn, device_.staging(buffer) + i * window_.slot_bytes(), shadow,
                 layout.host_bytes);
    if (image != resident_.device_slot(slot)) {
      device_.copy(StreamKind::kCopyIn, resident_.device_slot(slot), image, layout.resident_bytes);
    }
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
                 window_.slot(SlotIndex(entry.slot)), layout_of_chunk(chunk).host_bytes);
  }
  publish_staged(window, buffer);
}

// Parameters and checksums of what the copies in have brought, and of what was on the device;
// nothing is copied out.
void WindowPipeline::publish_staged(Window& window, uint32_t buffer) {
  char* base = device_.staging(buffer);
  window.copied_in = device_.signal(StreamKind::kCopyIn);
  device_.wait(StreamKind::kCompute, window.copied_in);
  for (uint32_t i = 0; i < window.chunk_count; ++i) {
    char* resident = resident_.device_slot(window.entries[i].shadow_slot);
    for (const AdamChunk& part :
         staged_parts(window.first_chunk + i, base + i * window_.slot_bytes(), resident)) {
      device_.republish(part, &window.sums[i]);
    }
  }
  window.computed = device_.signal(StreamKind::kCompute);
  window.copied_out = buffer_free_[buffer] = window.computed;
  window.state = State::kCopyIn;
}

}  // namespace optlease
