#include "tests/simulation/sim_device.h"

#include <cstring>
#include <utility>

#include "kernels/checksum.h"

namespace optlease {

SimDevice::SimDevice(SimContext& context, Writes writes, std::function<void()> completed,
                     std::function<void()> wrote)
    : context_(context),
      writes_(std::move(writes)),
      completed_(std::move(completed)),
      wrote_(std::move(wrote)) {}

Status SimDevice::allocate_staging(uint32_t count, uint64_t bytes_each) {
  for (uint32_t i = 0; i < count; ++i) staging_.emplace_back(bytes_each);
  staging_bytes_ = count * bytes_each;
  return Status::ok();
}

void SimDevice::die(uint64_t rest_us, uint64_t copies_us) {
  if (!frozen_) tear();
  thaw();  // SIGKILL wakes whoever is stopped, and what was under way with it
  const uint64_t now_us = context_.clock.now_us();
  at(StreamKind::kCopyIn).ends_us = at(StreamKind::kCompute).ends_us = now_us + rest_us;
  at(StreamKind::kCopyOut).ends_us = now_us + copies_us;
}

void SimDevice::freeze() {
  if (frozen_) return;
  tear();
  frozen_ = true;
}

void SimDevice::thaw() {
  if (!frozen_) return;
  frozen_ = false;
  for (uint32_t s = 0; s < kStreamCount; ++s) {
    if (std::exchange(streams_[s].owed, false)) step(static_cast<StreamKind>(s));
  }
}

// A part of the copy out that is under way is written already.
void SimDevice::tear() {
  const Stream& out = at(StreamKind::kCopyOut);
  if (!out.busy || out.work.front().kind != Work::Kind::kCopy) return;
  const Work& work = out.work.front();
  const uint64_t bytes = context_.dice.below(work.bytes + 1);
  writes_(work.destination, bytes);
  std::memcpy(work.destination, work.source, bytes);
}

void SimDevice::enqueue(StreamKind kind, Work work) {
  at(kind).work.push_back(std::move(work));
  (void)pump(kind);
}

void SimDevice::run(StreamKind kind, std::function<void()> work) {
  enqueue(kind, {.kind = Work::Kind::kRun, .run = std::move(work)});
}

void SimDevice::copy(StreamKind stream, void* destination, const void* source, uint64_t bytes) {
  enqueue(
      stream,
      {.kind = Work::Kind::kCopy, .destination = destination, .source = source, .bytes = bytes});
}

void SimDevice::copy_within(void* destination, const void* source, uint64_t bytes) {
  run(StreamKind::kCompute, [=] { std::memcpy(destination, source, bytes); });
}

void SimDevice::update(const AdamChunk& chunk, const AdamFactors& factors, ChunkSums* sums) {
  run(StreamKind::kCompute, [=] {
    const ChunkSums added = adam_update(chunk, factors);
    sums->read += added.read;
    sums->written += added.written;
    sums->grad += added.grad;
  });
}

void SimDevice::republish(const AdamChunk& chunk, ChunkSums* sums) {
  run(StreamKind::kCompute, [=] {
    const uint64_t read = optlease::republish(chunk);
    sums->read += read;
    sums->written += read;
  });
}

void SimDevice::sum_gradient(const float* grad, uint64_t elements, uint64_t first_word,
                             ChunkSums* sums) {
  run(StreamKind::kCompute, [=] { sums->grad += checksum_words(grad, elements, first_word); });
}

void SimDevice::run_on_host(StreamKind stream, std::function<void()> work) {
  run(stream, [this, work = std::move(work)] {
    work();
    wrote_();
  });
}

Ticket SimDevice::signal(StreamKind stream) {
  const Ticket ticket{stream, ++at(stream).issued};
  enqueue(stream, {.kind = Work::Kind::kSignal, .ticket = ticket});
  return ticket;
}

void SimDevice::wait(StreamKind waiter, Ticket ticket) {
  enqueue(waiter, {.kind = Work::Kind::kWait, .ticket = ticket});
}

void SimDevice::pump_all() {
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t s = 0; s < kStreamCount; ++s) moved |= pump(static_cast<StreamKind>(s));
  }
}

// Tickets take no time; true where one was reached or waited for.
bool SimDevice::pump(StreamKind kind) {
  Stream& stream = at(kind);
  bool moved = false;
  while (!stream.busy && !stream.work.empty()) {
    const Work& first = stream.work.front();
    if (first.kind == Work::Kind::kSignal) {
      stream.done = first.ticket.value;
      completed_();
    } else if (first.kind == Work::Kind::kWait) {
      if (!reached(first.ticket)) return moved;
    } else {
      stream.busy = true;
      const bool slow = context_.dice.one_in(100);
      const uint64_t delay_us =
          slow ? context_.dice.spread(1'000, 100'000) : context_.dice.within(1, 60);
      context_.clock.after(delay_us, [this, kind] { step(kind); });
      return moved;
    }
    stream.work.pop_front();
    moved = true;
  }
  return moved;
}

void SimDevice::step(StreamKind kind) {
  Stream& stream = at(kind);
  if (frozen_) {
    stream.owed = true;
    return;
  }
  if (context_.clock.now_us() >= stream.ends_us) {
    stream.work.clear();  // and stays busy: nothing runs here any more
    return;
  }
  const Work work = std::move(stream.work.front());
  stream.work.pop_front();
  execute(kind, work);
  stream.busy = false;
  pump_all();
}

void SimDevice::execute(StreamKind kind, const Work& work) {
  if (work.kind == Work::Kind::kRun) return work.run();
  if (kind == StreamKind::kCopyOut) writes_(work.destination, work.bytes);
  std::memcpy(work.destination, work.source, work.bytes);
}

}  // namespace optlease
