// How much the leases cost: one optimizer step of a shard streamed through leases, shadow slots,
// checksums and commits, against plain loops over the same memory with the same copies and the same
// update function, in one run, in turns. Prints one JSON object.
//
//   stream_bench [MI_ELEMENTS] [CHUNK_MIB] [ROUNDS]      defaults: 256 32 5
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "actors/runtime/clock.h"
#include "kernels/adam_math.h"
#include "tests/support/in_process_job.h"

namespace optlease {
namespace {

AdamFactors factors_of(Step step) {
  const GroupParams params{1e-3, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
  return make_adam_factors(params, step, 1.0f);
}

double seconds_since(int64_t start_us) { return static_cast<double>(now_us() - start_us) * 1e-6; }

AdamChunk chunk_at(char* base, const ElementRange& range, const float* grads, char* params) {
  const uint64_t stride = array_stride_bytes(range.size());
  AdamChunk chunk;
  chunk.main = reinterpret_cast<float*>(base);
  chunk.exp_avg = reinterpret_cast<float*>(base + stride);
  chunk.exp_avg_sq = reinterpret_cast<float*>(base + 2 * stride);
  chunk.grad = grads + range.begin;
  chunk.param = params + range.begin * 4;
  chunk.elements = range.size();
  return chunk;
}

// The same three streams and staging buffers; chunks go back to where they came from and nobody
// asks.
double pipelined_loop(Device& device, const ArenaSpec& arena, std::vector<char*>& slots,
                      const float* grads, char* params, Step step, uint32_t buffers) {
  const AdamFactors factors = factors_of(step);
  std::vector<ChunkSums> sums(arena.chunks.size());
  std::vector<Ticket> free_at(buffers);
  const int64_t start = now_us();
  Ticket last;
  for (size_t c = 0; c < arena.chunks.size(); ++c) {
    const auto buffer = static_cast<uint32_t>(c % buffers);
    char* base = device.staging(buffer);
    const uint64_t bytes = chunk_bytes(arena.chunks[c].range.size());
    if (c >= buffers) device.wait(StreamKind::kCopyIn, free_at[buffer]);
    device.copy(StreamKind::kCopyIn, base, slots[c], bytes);
    device.wait(StreamKind::kCompute, device.signal(StreamKind::kCopyIn));
    device.update(chunk_at(base, arena.chunks[c].range, grads, params), factors, &sums[c]);
    device.wait(StreamKind::kCopyOut, device.signal(StreamKind::kCompute));
    device.copy(StreamKind::kCopyOut, slots[c], base, bytes);
    last = free_at[buffer] = device.signal(StreamKind::kCopyOut);
  }
  while (!device.reached(last)) {
    pollfd waiting{device.completion_fd(), POLLIN, 0};
    poll(&waiting, 1, 5);
    device.drain_completions();
  }
  return seconds_since(start);
}

double serial_loop(const ArenaSpec& arena, std::vector<char*>& slots, char* staging,
                   const float* grads, char* params, Step step) {
  const AdamFactors factors = factors_of(step);
  const int64_t start = now_us();
  for (size_t c = 0; c < arena.chunks.size(); ++c) {
    const uint64_t bytes = chunk_bytes(arena.chunks[c].range.size());
    std::memcpy(staging, slots[c], bytes);
    (void)adam_update(chunk_at(staging, arena.chunks[c].range, grads, params), factors);
    std::memcpy(slots[c], staging, bytes);
  }
  return seconds_since(start);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run(uint64_t elements, uint64_t chunk_mib, int rounds) {
  InProcessShape shape{elements, chunk_mib << 20, 1, 2, 3, DType::kF32};
  InProcessJob job(shape);
  std::vector<float> grads(elements);
  for (uint64_t i = 0; i < elements; ++i) grads[i] = static_cast<float>(i % 257) * 1e-3f - 0.1f;
  std::vector<char> params(elements * 4);
  const auto fill = [](uint32_t, ElementRange range, float* main) {
    std::fill(main, main + range.size(), 0.02f);
    return Status::ok();
  };
  const Status initialised = job.run(RunKind::kInitialise, 0, {}, nullptr, fill);
  if (!initialised.is_ok()) {
    std::fprintf(stderr, "%s\n", initialised.text().c_str());
    return 1;
  }
  // The plain loops own the same amount of memory, laid out alike.
  std::vector<std::vector<char>> memory;
  std::vector<char*> slots;
  for (const ChunkSpec& chunk : job.arena().chunks) {
    memory.emplace_back(chunk_bytes(chunk.range.size()));
    slots.push_back(memory.back().data());
  }
  std::vector<char> staging(job.arena().slot_bytes);
  job.grad_sums = job.sums_of(grads.data());  // an actor has them from the pass for the norm
  std::vector<double> leased, pipelined, serial, to_pipelined, to_serial;
  for (int round = 0; round <= rounds; ++round) {
    const Step step = round + 1;
    const int64_t start = now_us();
    const Status stepped = job.run(RunKind::kUpdate, step, factors_of(step), grads.data());
    const double lease_seconds = seconds_since(start);
    if (!stepped.is_ok()) {
      std::fprintf(stderr, "%s\n", stepped.text().c_str());
      return 1;
    }
    const double pipelined_seconds = pipelined_loop(job.device(), job.arena(), slots, grads.data(),
                                                    params.data(), step, shape.staging_buffers);
    const double serial_seconds =
        serial_loop(job.arena(), slots, staging.data(), grads.data(), params.data(), step);
    if (round == 0) continue;  // warm-up: page faults
    leased.push_back(lease_seconds);
    pipelined.push_back(pipelined_seconds);
    serial.push_back(serial_seconds);
    to_pipelined.push_back(pipelined_seconds / lease_seconds);
    to_serial.push_back(serial_seconds / lease_seconds);
  }
  std::printf(
      "{\"elements\": %llu, \"chunk_mib\": %llu, \"chunks\": %zu, \"rounds\": %d, "
      "\"leased_seconds\": %.4f, \"pipelined_seconds\": %.4f, \"serial_seconds\": %.4f, "
      "\"throughput_to_pipelined\": %.3f, \"throughput_to_serial\": %.3f, \"leased_ns_per_param\": "
      "%.3f}\n",
      static_cast<unsigned long long>(elements), static_cast<unsigned long long>(chunk_mib),
      job.arena().chunks.size(), rounds, median(leased), median(pipelined), median(serial),
      median(to_pipelined), median(to_serial),
      median(leased) * 1e9 / static_cast<double>(elements));
  return 0;
}

}  // namespace
}  // namespace optlease

int main(int argc, char** argv) {
  const auto number = [&](int index, unsigned long long fallback) {
    return argc > index ? std::strtoull(argv[index], nullptr, 10) : fallback;
  };
  return optlease::run(number(1, 256) << 20, number(2, 32), static_cast<int>(number(3, 5)));
}
