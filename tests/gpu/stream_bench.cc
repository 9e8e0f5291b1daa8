// How near the streamed optimizer step comes to what the link can do, on one GPU, in one run: first
// the two-way DMA floor (registered shared memory, one copy a slot, both directions at once), then
// steps of the window pipeline with leases, checksums and commits over the same segment, then the
// floor again. One line a configuration, or one JSON object each with --json.
//
//   gpu_stream_bench [--params MI] [--config CHUNK_MIBxSTAGING[,...]] [--steps N] [--json]
//   defaults: 512 Mi parameters, 12x4,16x4,12x3,8x6, 5 steps
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/gpu/gpu_support.h"
#include "tests/support/in_process_job.h"

namespace optlease {
namespace {

constexpr int kFloorRounds = 3;
constexpr double kMiB = 1024.0 * 1024.0;

struct Config {
  uint64_t chunk_mib = 12;
  uint32_t staging = 4;
};

struct Options {
  uint64_t params = 512ull << 20;
  std::vector<Config> configs = {{12, 4}, {16, 4}, {12, 3}, {8, 6}};
  int steps = 5;
  bool json = false;
};

struct Row {
  Config config;
  uint64_t slot_bytes = 0, bytes_each_way = 0, staging_bytes = 0, bounced_bytes = 0;
  size_t chunks = 0;
  double floor_seconds = 0, step_seconds = 0, best_floor = 0, best_step = 0;
  double kernel_seconds = 0, stall_seconds = 0, lease_seconds = 0, cpu_seconds = 0;
  double pin_seconds = 0;
  size_t free_before = 0, free_peak = 0, free_after = 0;
};

double seconds_since(int64_t start_us) { return static_cast<double>(now_us() - start_us) * 1e-6; }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  must(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

AdamFactors factors_of(Step step) {
  const GroupParams params{1e-3, 0.9, 0.95, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
  return make_adam_factors(params, step, 1.0f);
}

// Every chunk's bytes in and every chunk's bytes out, at once, with nothing in between: from each
// slot, into the slot after it. Destroys what the slots hold.
double dma_floor(const InProcessJob& job, char* staging_in, char* staging_out) {
  cudaStream_t in = nullptr, out = nullptr;
  must(cudaStreamCreateWithFlags(&in, cudaStreamNonBlocking), "cudaStreamCreate");
  must(cudaStreamCreateWithFlags(&out, cudaStreamNonBlocking), "cudaStreamCreate");
  const auto& chunks = job.arena().chunks;
  const uint32_t slots = job.window().slot_count();
  const int64_t start = now_us();
  for (uint32_t c = 0; c < chunks.size(); ++c) {
    const uint64_t bytes = chunk_bytes(chunks[c].range.size());
    must(cudaMemcpyAsync(staging_in, job.window().slot(SlotIndex(c)), bytes, cudaMemcpyHostToDevice,
                         in),
         "cudaMemcpyAsync");
    must(cudaMemcpyAsync(job.window().slot(SlotIndex((c + 4) % slots)), staging_out, bytes,
                         cudaMemcpyDeviceToHost, out),
         "cudaMemcpyAsync");
  }
  must(cudaStreamSynchronize(in), "cudaStreamSynchronize");
  must(cudaStreamSynchronize(out), "cudaStreamSynchronize");
  const double seconds = seconds_since(start);
  must(cudaStreamDestroy(in), "cudaStreamDestroy");
  must(cudaStreamDestroy(out), "cudaStreamDestroy");
  return seconds;
}

void run_steps(InProcessJob& job, const Options& options, const float* grads, Row* row) {
  size_t least_free = free_bytes();
  int64_t looked_at = 0;
  const auto look = [&] {
    if (now_us() - looked_at > 2000) {
      least_free = std::min(least_free, free_bytes());
      looked_at = now_us();
    }
    return false;
  };
  std::vector<double> steps, kernels, stalls, leases, cpu;
  for (int s = 0; s <= options.steps; ++s) {
    const Step step = s + 1;
    const PipelineCounters before = job.pipeline().counters();
    const double kernel_before = job.device().counters().kernel_seconds;
    const double cpu_before = cpu_seconds();
    const int64_t start = now_us();
    // The first step is the one that looks at memory, and is not timed.
    const Status status = job.run(RunKind::kUpdate, step, factors_of(step), grads, {},
                                  s == 0 ? std::function<bool()>(look) : std::function<bool()>());
    const double seconds = seconds_since(start);
    OPTLEASE_CHECK(status.is_ok(), "%s", status.text().c_str());
    if (s == 0) continue;
    steps.push_back(seconds);
    kernels.push_back(job.device().counters().kernel_seconds - kernel_before);
    stalls.push_back(job.pipeline().counters().stall_seconds - before.stall_seconds);
    leases.push_back(job.pipeline().counters().lease_wait_seconds - before.lease_wait_seconds);
    cpu.push_back(cpu_seconds() - cpu_before);
  }
  row->step_seconds = median(steps);
  row->best_step = least(steps);
  row->kernel_seconds = median(kernels);
  row->stall_seconds = median(stalls);
  row->lease_seconds = median(leases);
  row->cpu_seconds = median(cpu);
  row->free_peak = least_free;
}

Row measure(const Options& options, const Config& config, const GpuBytes& params,
            const GpuBytes& grads) {
  Row row;
  row.config = config;
  row.free_before = free_bytes();
  InProcessShape shape{options.params, config.chunk_mib << 20, 1,      config.staging + 1,
                       config.staging, DType::kBF16,           "cuda", params.data()};
  const int64_t start = now_us();
  InProcessJob job(shape);
  const auto& device = static_cast<const CudaDevice&>(job.device());
  while (device.pinning().waiting_bytes > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  row.pin_seconds = seconds_since(start);
  const PinProgress pinned = device.pinning();
  OPTLEASE_CHECK(pinned.refused_bytes == 0, "no floor without pinning: %s",
                 pinned.first_refusal.c_str());
  for (const ChunkSpec& chunk : job.arena().chunks) {
    row.bytes_each_way += chunk_bytes(chunk.range.size());
  }
  row.slot_bytes = job.arena().slot_bytes;
  row.chunks = job.arena().chunks.size();
  row.staging_bytes = job.device().staging_bytes();
  char* staging_in = job.device().staging(0);
  char* staging_out = job.device().staging(config.staging > 1 ? 1 : 0);
  std::vector<double> floors;
  for (int r = 0; r <= kFloorRounds; ++r) {
    const double seconds = dma_floor(job, staging_in, staging_out);
    if (r > 0) floors.push_back(seconds);
  }
  const auto fill = [](uint32_t, ElementRange range, float* main) {
    std::fill(main, main + range.size(), 0.02f);
    return Status::ok();
  };
  const Status initialised = job.run(RunKind::kInitialise, 0, {}, nullptr, fill);
  OPTLEASE_CHECK(initialised.is_ok(), "%s", initialised.text().c_str());
  run_steps(job, options, reinterpret_cast<const float*>(grads.data()), &row);
  row.bounced_bytes = job.device().counters().bounced_bytes;
  row.free_after = free_bytes();
  for (int r = 0; r < kFloorRounds; ++r) floors.push_back(dma_floor(job, staging_in, staging_out));
  row.floor_seconds = median(floors);
  row.best_floor = least(floors);
  return row;
}

void print_text(const Options& options, const Row& row) {
  const auto params = static_cast<double>(options.params);
  const auto gb = static_cast<double>(row.bytes_each_way) * 1e-9;
  std::printf(
      "%3llu MiB x %u (slot %.2f MiB, %zu chunks): %.4f ns/param, %.2f GB/s each way; floor %.4f "
      "ns/param, %.2f GB/s; of the floor %.4f (best of each %.4f)\n",
      static_cast<unsigned long long>(row.config.chunk_mib), row.config.staging,
      static_cast<double>(row.slot_bytes) / kMiB, row.chunks, row.step_seconds * 1e9 / params,
      gb / row.step_seconds, row.floor_seconds * 1e9 / params, gb / row.floor_seconds,
      row.floor_seconds / row.step_seconds, row.best_floor / row.best_step);
  std::printf(
      "      step %.2f ms, %.2f ms beyond the floor, kernels %.2f ms, stalled %.2f ms, "
      "waited for leases %.2f ms, CPU %.2f ms; "
      "staging %.1f MiB, HBM beyond it %.2f MiB at the peak, %.2f MiB after; pinned after %.2f s\n",
      row.step_seconds * 1e3, (row.step_seconds - row.floor_seconds) * 1e3,
      row.kernel_seconds * 1e3, row.stall_seconds * 1e3, row.lease_seconds * 1e3,
      row.cpu_seconds * 1e3, static_cast<double>(row.staging_bytes) / kMiB,
      (static_cast<double>(row.free_before) - static_cast<double>(row.free_peak) -
       static_cast<double>(row.staging_bytes)) /
          kMiB,
      (static_cast<double>(row.free_before) - static_cast<double>(row.free_after) -
       static_cast<double>(row.staging_bytes)) /
          kMiB,
      row.pin_seconds);
}

void print_json(const Options& options, const Row& row, const char* gpu) {
  const auto params = static_cast<double>(options.params);
  const auto gb = static_cast<double>(row.bytes_each_way) * 1e-9;
  std::printf(
      "{\"gpu\": \"%s\", \"params\": %llu, \"chunk_mib\": %llu, \"staging_buffers\": %u, "
      "\"slot_bytes\": %llu, \"chunks\": %zu, \"bytes_each_way\": %llu, \"step_seconds\": %.6f, "
      "\"floor_seconds\": %.6f, \"ns_per_param\": %.5f, \"gb_per_second_each_way\": %.3f, "
      "\"floor_gb_per_second_each_way\": %.3f, \"of_floor\": %.4f, \"of_floor_best\": %.4f, "
      "\"kernel_seconds\": %.6f, \"stall_seconds\": %.6f, \"lease_wait_seconds\": %.6f, "
      "\"cpu_seconds\": %.6f, \"staging_bytes\": %llu, \"bounced_bytes\": %llu, "
      "\"free_bytes_before\": %zu, \"free_bytes_peak\": %zu, \"free_bytes_after\": %zu, "
      "\"pin_seconds\": %.3f}\n",
      gpu, static_cast<unsigned long long>(options.params),
      static_cast<unsigned long long>(row.config.chunk_mib), row.config.staging,
      static_cast<unsigned long long>(row.slot_bytes), row.chunks,
      static_cast<unsigned long long>(row.bytes_each_way), row.step_seconds, row.floor_seconds,
      row.step_seconds * 1e9 / params, gb / row.step_seconds, gb / row.floor_seconds,
      row.floor_seconds / row.step_seconds, row.best_floor / row.best_step, row.kernel_seconds,
      row.stall_seconds, row.lease_seconds, row.cpu_seconds,
      static_cast<unsigned long long>(row.staging_bytes),
      static_cast<unsigned long long>(row.bounced_bytes), row.free_before, row.free_peak,
      row.free_after, row.pin_seconds);
}

// "12x4,16x4"; false where it is not of that form.
bool parse_configs(const char* text, std::vector<Config>* configs) {
  configs->clear();
  while (*text != '\0') {
    char* end = nullptr;
    Config config;
    config.chunk_mib = std::strtoull(text, &end, 10);
    if (end == text || *end != 'x') return false;
    text = end + 1;
    config.staging = static_cast<uint32_t>(std::strtoul(text, &end, 10));
    if (end == text || config.staging == 0 || (*end != ',' && *end != '\0')) return false;
    text = *end == ',' ? end + 1 : end;
    configs->push_back(config);
  }
  return !configs->empty();
}

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json") {
      options->json = true;
      continue;
    }
    if (++i == argc) return false;
    if (name == "--params") {
      options->params = std::strtoull(argv[i], nullptr, 10) << 20;
    } else if (name == "--steps") {
      options->steps = std::atoi(argv[i]);
    } else if (name != "--config" || !parse_configs(argv[i], &options->configs)) {
      return false;
    }
  }
  return options->params > 0 && options->steps > 0;
}

int run(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options)) {
    std::fputs(
        "gpu_stream_bench [--params MI] [--config CHUNK_MIBxSTAGING[,...]] [--steps N] "
        "[--json]\n",
        stderr);
    return 2;
  }
  must(cudaFree(nullptr), "cudaFree");  // the context
  cudaDeviceProp properties;
  must(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  GpuBytes params(options.params * 2), grads(options.params * 4, 0x3a);
  if (!options.json) {
    std::printf(
        "%s: %llu Mi parameters, FP32 state, FP32 gradients, BF16 parameters, median of %d\n",
        properties.name, static_cast<unsigned long long>(options.params >> 20), options.steps);
  }
  for (const Config& config : options.configs) {
    const Row row = measure(options, config, params, grads);
    options.json ? print_json(options, row, properties.name) : print_text(options, row);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace optlease

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // as the actor's main has it
  return optlease::run(argc, argv);
}
