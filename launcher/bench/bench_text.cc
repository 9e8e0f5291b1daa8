// bench_text and bench_json of bench.h.
#include <nlohmann/json.hpp>

#include "launcher/bench/bench.h"
#include "launcher/memory_contract.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;

double gb(double bytes) { return bytes * 1e-9; }
double ms(double seconds) { return seconds * 1e3; }

std::string floor_text(const char* when, size_t rank, const RankFloor& floor) {
  std::string text = format(
      "rank %zu: floor %s: %.2f GB/s each way at once; alone %.2f in, %.2f out; pinned in %.2f s\n",
      rank, when, gb(floor.both), gb(floor.in_alone), gb(floor.out_alone), floor.pin_seconds);
  if (floor.bounced_bytes > 0) {
    text += format("rank %zu: %s of the floor's copies went through bounce buffers: no floor\n",
                   rank, bytes_text(floor.bounced_bytes).c_str());
  }
  return text;
}

std::string rank_text(size_t r, const RankBench& rank) {
  if (rank.stream_seconds <= 0) return format("rank %zu: no state\n", r);
  std::string text =
      format("rank %zu: step %.3f ms (best %.3f), %.2f GB/s in, %.2f GB/s out, %.4f of the floor\n",
             r, ms(rank.stream_seconds), ms(rank.best_stream_seconds), gb(rank.in_bytes_per_second),
             gb(rank.out_bytes_per_second), rank.of_floor);
  text += format(
      "rank %zu: exposed stall %.3f ms, of it waiting for leases %.3f; first window %.3f ms; busy "
      "after it: in %.4f, out %.4f; kernels %.3f ms; gather after the last window %.3f ms; CPU "
      "%.3f ms\n",
      r, ms(rank.exposed_seconds()), ms(rank.lease_wait_seconds), ms(rank.first_window_seconds),
      rank.in_busy, rank.out_busy, ms(rank.kernel_seconds), ms(rank.gather_exposed_seconds),
      ms(rank.cpu_seconds));
  text += format(
      "rank %zu: staging %s; device memory before %s, peak %s, after %s; beyond staging and the "
      "job's own buffers (%s): %.2f MiB\n",
      r, bytes_text(rank.staging_bytes).c_str(), bytes_text(rank.device_bytes_before).c_str(),
      bytes_text(rank.device_bytes_peak).c_str(), bytes_text(rank.device_bytes_after).c_str(),
      bytes_text(rank.device_buffer_bytes).c_str(),
      static_cast<double>(rank.device_bytes_beyond) / (1024.0 * 1024.0));
  if (rank.bounced_bytes > 0) {
    text += format(
        "rank %zu: %s of the measured copies went through bounce buffers: give more --warm-up, or "
        "see the actor's log\n",
        r, bytes_text(rank.bounced_bytes).c_str());
  }
  return text;
}

Json floor_json(const RankFloor& floor) {
  return {{"both_bytes_per_second", floor.both},
          {"in_bytes_per_second", floor.in_alone},
          {"out_bytes_per_second", floor.out_alone},
          {"bounced_bytes", floor.bounced_bytes},
          {"pin_seconds", floor.pin_seconds}};
}

Json rank_json(const BenchResult& result, size_t r) {
  const RankBench& rank = result.figures.ranks[r];
  return {
      {"rank", r},
      {"bytes_in", rank.bytes_in},
      {"bytes_out", rank.bytes_out},
      {"read_ahead_bytes", rank.read_ahead_bytes},
      {"stream_seconds", rank.stream_seconds},
      {"best_stream_seconds", rank.best_stream_seconds},
      {"in_bytes_per_second", rank.in_bytes_per_second},
      {"out_bytes_per_second", rank.out_bytes_per_second},
      {"floor_bytes_per_second", rank.floor_bytes_per_second},
      {"of_floor", rank.of_floor},
      {"first_window_seconds", rank.first_window_seconds},
      {"in_busy", rank.in_busy},
      {"out_busy", rank.out_busy},
      {"slower_direction_busy", rank.slower_direction_busy()},
      {"exposed_stall_seconds", rank.exposed_seconds()},
      {"lease_wait_seconds", rank.lease_wait_seconds},
      {"kernel_seconds", rank.kernel_seconds},
      {"gather_exposed_seconds", rank.gather_exposed_seconds},
      {"cpu_seconds", rank.cpu_seconds},
      {"bounced_bytes", rank.bounced_bytes},
      {"staging_bytes", rank.staging_bytes},
      {"staging_budget_bytes", result.plan.staging_budget_bytes(Rank(static_cast<uint32_t>(r)))},
      {"device_bytes_before", rank.device_bytes_before},
      {"device_bytes_peak", rank.device_bytes_peak},
      {"device_bytes_after", rank.device_bytes_after},
      {"device_buffer_bytes", rank.device_buffer_bytes},
      {"device_bytes_beyond", rank.device_bytes_beyond},
      {"floor_before", floor_json(result.before[r])},
      {"floor_after", floor_json(result.after[r])}};
}

}  // namespace

std::string bench_text(const BenchResult& result) {
  const BenchFigures& f = result.figures;
  const JobPlan& plan = result.plan;
  const ArenaSpec arena = arena_of(plan.segment, Rank(0));
  std::string text = format(
      "%llu parameters on %s, %u ranks; slots of %s, %zu chunks on rank 0, %u staging buffers; "
      "median of %llu steps, %llu left out\n",
      static_cast<unsigned long long>(result.parameters), plan.device.c_str(),
      plan.segment.world_size, bytes_text(arena.slot_bytes).c_str(), arena.chunks.size(),
      plan.staging_buffers, static_cast<unsigned long long>(f.steps_measured),
      static_cast<unsigned long long>(f.steps_left_out));
  for (size_t r = 0; r < f.ranks.size(); ++r) {
    text += floor_text("before", r, result.before[r]);
    text += rank_text(r, f.ranks[r]);
    text += floor_text("after", r, result.after[r]);
  }
  text += format(
      "all: %.4f ns/param streamed in %.3f ms, %.4f with the reduction (step %.3f ms), %.4f of the "
      "floors; ranks finish within %.2f %%; CPU of the whole job %.2f s\n",
      f.ns_per_parameter, ms(f.stream_seconds), f.step_ns_per_parameter, ms(f.step_seconds),
      f.of_floors, f.finish_spread * 100, result.job_cpu_seconds);
  return text;
}

std::string bench_json(const BenchResult& result) {
  const BenchFigures& f = result.figures;
  const JobPlan& plan = result.plan;
  const ArenaSpec arena = arena_of(plan.segment, Rank(0));
  Json out;
  out["schema"] = kSchema;
  out["job"] = plan.segment.job_name;
  out["device"] = plan.device;
  out["world_size"] = plan.segment.world_size;
  out["parameters"] = result.parameters;
  out["slot_bytes"] = arena.slot_bytes;
  out["chunks"] = arena.chunks.size();
  out["window_chunks"] = plan.segment.window_chunks;
  out["prefetch_windows"] = plan.segment.prefetch_windows;
  out["staging_buffers"] = plan.staging_buffers;
  out["steps_measured"] = f.steps_measured;
  out["steps_left_out"] = f.steps_left_out;
  out["ns_per_parameter"] = f.ns_per_parameter;
  out["step_ns_per_parameter"] = f.step_ns_per_parameter;
  out["stream_seconds"] = f.stream_seconds;
  out["step_seconds"] = f.step_seconds;
  out["of_floors"] = f.of_floors;
  out["finish_spread"] = f.finish_spread;
  out["job_cpu_seconds"] = result.job_cpu_seconds;
  out["state_digest"] = result.state_digest;
  out["ranks"] = Json::array();
  for (size_t r = 0; r < f.ranks.size(); ++r) out["ranks"].push_back(rank_json(result, r));
  return out.dump(2);
}

}  // namespace optlease
