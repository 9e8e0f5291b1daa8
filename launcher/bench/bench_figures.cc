#include "launcher/bench/bench_figures.h"

#include <algorithm>
#include <limits>
#include <map>

namespace optlease {
namespace {

// By rank; a rank without state has streamed nothing and is null.
using Row = std::vector<const StepFigures*>;

// Of a state that stays on the device nothing travels, and it streams all the same.
bool streamed(const StepFigures& figures) { return figures.stream_ended_us > 0; }

bool has_state(const std::vector<StepFigures>& steps) {
  return std::any_of(steps.begin(), steps.end(), streamed);
}

std::vector<Row> whole_steps(const BenchInput& input) {
  const size_t ranks = input.steps.size();
  const auto wanted = std::count_if(input.steps.begin(), input.steps.end(), has_state);
  std::map<Step, Row> rows;
  for (size_t r = 0; r < ranks; ++r) {
    for (const StepFigures& figures : input.steps[r]) {
      if (!streamed(figures)) continue;
      Row& row = rows[figures.step];
      row.resize(ranks, nullptr);
      row[r] = &figures;
    }
  }
  std::vector<Row> whole;
  for (auto& [step, row] : rows) {
    const auto there = std::count_if(row.begin(), row.end(), [](auto* f) { return f != nullptr; });
    if (there == wanted) whole.push_back(std::move(row));
  }
  return whole;
}

bool bounced(const Row& row) {
  return std::any_of(row.begin(), row.end(),
                     [](auto* f) { return f != nullptr && f->bounced_bytes > 0; });
}

size_t first_measured(const std::vector<Row>& rows, uint64_t warm_up) {
  const size_t begin = std::min<size_t>(warm_up, rows.size());
  size_t clear = begin;
  while (clear < rows.size() && bounced(rows[clear])) ++clear;
  return clear < rows.size() ? clear : begin;
}

template <class Value>
double median_over(const std::vector<const StepFigures*>& steps, Value value) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const StepFigures* figures : steps) values.push_back(value(*figures));
  return median_of(std::move(values));
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

double after_first(const StepFigures& f) { return f.stream_seconds - f.first_window_seconds; }

double floor_of(const BenchInput& input, size_t rank) {
  double sum = 0;
  int count = 0;
  for (const auto* floors : {&input.before, &input.after}) {
    if (rank >= floors->size() || (*floors)[rank].both <= 0) continue;
    sum += (*floors)[rank].both;
    ++count;
  }
  return count == 0 ? 0 : sum / count;
}

void add_memory(const std::vector<const StepFigures*>& steps, RankBench* out) {
  const StepFigures& last = *steps.back();
  out->staging_bytes = last.staging_bytes;
  out->device_bytes_before = last.device_bytes_before;
  out->device_bytes_peak = last.device_bytes_peak;
  out->device_bytes_after = last.device_bytes;
  out->device_buffer_bytes = last.device_buffer_bytes;
  out->device_bytes_beyond = static_cast<int64_t>(last.device_bytes_peak) -
                             static_cast<int64_t>(last.device_bytes_before) -
                             static_cast<int64_t>(last.device_buffer_bytes) -
                             static_cast<int64_t>(last.staging_bytes);
  for (const StepFigures* f : steps) out->bounced_bytes += f->bounced_bytes;
}

RankBench rank_bench(const std::vector<const StepFigures*>& steps, double floor) {
  using F = const StepFigures&;
  RankBench out;
  out.bytes_in = steps.back()->bytes_in;
  out.bytes_out = steps.back()->bytes_out;
  out.read_ahead_bytes = steps.back()->read_ahead_bytes;
  out.stream_seconds = median_over(steps, [](F f) { return f.stream_seconds; });
  out.best_stream_seconds = std::numeric_limits<double>::max();
  for (const StepFigures* f : steps) {
    out.best_stream_seconds = std::min(out.best_stream_seconds, f->stream_seconds);
  }
  const uint64_t in_meanwhile = out.bytes_in - std::min(out.bytes_in, out.read_ahead_bytes);
  out.in_bytes_per_second = ratio(static_cast<double>(in_meanwhile), out.stream_seconds);
  out.out_bytes_per_second = ratio(static_cast<double>(out.bytes_out), out.stream_seconds);
  out.floor_bytes_per_second = floor;
  // Of the direction that has more to carry: the other one hides behind it.
  out.of_floor = ratio(std::max(out.in_bytes_per_second, out.out_bytes_per_second), floor);
  out.first_window_seconds = median_over(steps, [](F f) { return f.first_window_seconds; });
  out.in_busy =
      median_over(steps, [](F f) { return ratio(f.in_busy_seconds_after_first, after_first(f)); });
  out.out_busy = median_over(steps, [](F f) { return ratio(f.out_busy_seconds, after_first(f)); });
  out.stall_seconds = median_over(steps, [](F f) { return f.stall_seconds; });
  out.lease_wait_seconds = median_over(steps, [](F f) { return f.lease_wait_seconds; });
  out.kernel_seconds = median_over(steps, [](F f) { return f.kernel_seconds; });
  out.gather_exposed_seconds = median_over(steps, [](F f) { return f.gather_exposed_seconds; });
  out.cpu_seconds = median_over(steps, [](F f) { return f.cpu_seconds; });
  add_memory(steps, &out);
  return out;
}

// When ranks began and ended one step, on the node's clock.
void add_together(const std::vector<Row>& rows, BenchFigures* out) {
  std::vector<double> streams, steps, spreads;
  for (const Row& row : rows) {
    uint64_t begun = UINT64_MAX, first_end = UINT64_MAX, last_end = 0;
    double step = 0;
    for (const StepFigures* f : row) {
      if (f == nullptr) continue;
      begun = std::min(begun, f->stream_begun_us);
      first_end = std::min(first_end, f->stream_ended_us);
      last_end = std::max(last_end, f->stream_ended_us);
      step = std::max(step, f->step_seconds);
    }
    const double stream = static_cast<double>(last_end - begun) * 1e-6;
    streams.push_back(stream);
    steps.push_back(step);
    spreads.push_back(ratio(static_cast<double>(last_end - first_end) * 1e-6, stream));
  }
  out->stream_seconds = median_of(std::move(streams));
  out->step_seconds = median_of(std::move(steps));
  out->finish_spread = median_of(std::move(spreads));
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Result<BenchFigures> bench_figures(const BenchInput& input) {
  std::vector<Row> rows = whole_steps(input);
  const size_t begin = first_measured(rows, input.warm_up);
  if (begin >= rows.size()) {
    return Status(StatusCode::kNotFound,
                  format("no step is left to measure: %zu were streamed by every rank, and the "
                         "first %llu are warm-up",
                         rows.size(), static_cast<unsigned long long>(input.warm_up)));
  }
  rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(begin));
  BenchFigures out;
  out.steps_left_out = begin;
  out.steps_measured = rows.size();
  add_together(rows, &out);
  const auto parameters = static_cast<double>(input.parameters);
  out.ns_per_parameter = ratio(out.stream_seconds * 1e9, parameters);
  out.step_ns_per_parameter = ratio(out.step_seconds * 1e9, parameters);
  double reached = 0, floors = 0;
  for (size_t r = 0; r < input.steps.size(); ++r) {
    std::vector<const StepFigures*> mine;
    for (const Row& row : rows) {
      if (row[r] != nullptr) mine.push_back(row[r]);
    }
    out.ranks.push_back(mine.empty() ? RankBench{} : rank_bench(mine, floor_of(input, r)));
    const RankBench& rank = out.ranks.back();
    reached += std::max(rank.in_bytes_per_second, rank.out_bytes_per_second);
    floors += rank.floor_bytes_per_second;
  }
  out.of_floors = ratio(reached, floors);
  return out;
}

}  // namespace optlease
