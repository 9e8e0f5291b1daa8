#include "actors/monitor/render.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace optlease {
namespace {

struct Column {
  const char* title;
  std::string (*cell)(const ActorTelemetry&, const RankView&);
};

std::string number_text(uint64_t number) {
  return format("%llu", static_cast<unsigned long long>(number));
}

std::string step_text(Step step) {
  return step == kNoStep ? "-" : format("%lld", static_cast<long long>(step));
}

// Links are sold in powers of ten.
std::string rate_text(double bytes_per_second) {
  return std::isfinite(bytes_per_second) ? format("%.2f", bytes_per_second / 1e9) : "-";
}

// "0.3 ms (1.20 s)": of the last step, and since the incarnation started.
std::string step_and_all(double step_seconds, double all_seconds) {
  return seconds_text(step_seconds) + " (" + seconds_text(all_seconds) + ")";
}

using T = const ActorTelemetry&;
using V = const RankView&;
const std::array kColumns{
    Column{"step", [](T t, V) { return step_text(t.step); }},
    Column{"committed", [](T t, V) { return step_text(t.step_committed); }},
    Column{"phase", [](T t, V) { return std::string(name_of(t.phase)); }},
    Column{"chunks", [](T t, V) { return format("%u/%u", t.chunks_done, t.chunks_total); }},
    Column{"in GB/s", [](T t, V) { return rate_text(t.step_h2d_bytes_per_second); }},
    Column{"out GB/s", [](T t, V) { return rate_text(t.step_d2h_bytes_per_second); }},
    Column{"step time", [](T t, V) { return seconds_text(t.step_seconds); }},
    Column{"p99", [](T t, V) { return seconds_text(t.step_seconds_history.p99); }},
    Column{
        "lease wait (all)",
        [](T t, V) { return step_and_all(t.step_lease_wait_seconds, t.lease_wait_seconds_total); }},
    Column{"stall (all)",
           [](T t, V) {
             return step_and_all(t.step_exposed_stall_seconds, t.exposed_stall_seconds_total);
           }},
    Column{"commits", [](T t, V) { return number_text(t.commits_total); }},
    Column{"refused", [](T t, V) { return number_text(t.refusals_total); }},
    Column{"skipped", [](T t, V) { return number_text(t.steps_skipped_total); }},
    Column{"restarts", [](T t, V) { return number_text(t.restarts_total); }},
    Column{"staging",
           [](T t, V) {
             return bytes_text(t.staging_bytes) + "/" + bytes_text(t.staging_budget_bytes);
           }},
    Column{"resident", [](T t, V) { return bytes_text(t.resident_bytes); }},
    Column{"host memory",
           [](T t, V) { return bytes_text(t.private_bytes) + "/" + bytes_text(t.rss_bytes); }},
    Column{"gaps", [](T, V v) { return number_text(v.gaps); }},
};

using Row = std::vector<std::string>;

Row titles() {
  Row row{"rank"};
  for (const Column& column : kColumns) row.emplace_back(column.title);
  row.emplace_back("heard");
  return row;
}

Row row_of(uint32_t rank, const RankView& view, int64_t now_ms) {
  Row row{number_text(rank)};
  for (const Column& column : kColumns) {
    row.push_back(view.last ? column.cell(*view.last, view) : "-");
  }
  row.push_back(view.last ? seconds_text(static_cast<double>(now_ms - view.last_ms) / 1e3) + " ago"
                          : "never");
  return row;
}

std::vector<std::string> align(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::vector<std::string> lines;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += std::string(widths[i] - row[i].size(), ' ') + row[i];
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string head_of(const MonitorState& state) {
  Step committed = kNoStep;
  for (const RankView& rank : state.ranks()) {
    if (rank.last) committed = std::max(committed, rank.last->step_committed);
  }
  return format("job %s: %u of %zu ranks heard, step %s of %lld committed", state.job().c_str(),
                state.ranks_heard(), state.ranks().size(), step_text(committed).c_str(),
                static_cast<long long>(state.steps()));
}

std::string note_of(const MonitorState& state, uint32_t rank, int64_t now_ms) {
  const RankView& view = state.ranks()[rank];
  if (!view.last) return format("rank %u: no answer yet", rank);
  if (state.is_silent(view, now_ms)) {
    return format("rank %u: SILENT for %s: its actor (pid %u) is dead, restarting or stuck", rank,
                  seconds_text(static_cast<double>(now_ms - view.last_ms) / 1e3).c_str(),
                  view.last->pid);
  }
  if (view.bad_documents > 0) {
    return format("rank %u: %llu documents could not be read", rank,
                  static_cast<unsigned long long>(view.bad_documents));
  }
  return {};
}

}  // namespace

std::vector<std::string> render(const MonitorState& state, int64_t now_ms) {
  std::vector<Row> rows{titles()};
  std::vector<std::string> notes;
  for (uint32_t rank = 0; rank < state.ranks().size(); ++rank) {
    rows.push_back(row_of(rank, state.ranks()[rank], now_ms));
    if (std::string note = note_of(state, rank, now_ms); !note.empty()) {
      notes.push_back(std::move(note));
    }
  }
  std::vector<std::string> lines{head_of(state)};
  for (std::string& line : align(rows)) lines.push_back(std::move(line));
  for (std::string& note : notes) lines.push_back(std::move(note));
  return lines;
}

std::string bytes_text(uint64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return format("%llu B", static_cast<unsigned long long>(bytes));
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.995 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return format("%.2f %s", value, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 0.9995) return format("%.1f ms", seconds * 1e3);
  return seconds < 999.95 ? format("%.2f s", seconds) : format("%.0f s", seconds);
}

}  // namespace optlease
