#include "actors/runtime/step_figures.h"

#include <map>
#include <sstream>

#include "actors/runtime/json_fields.h"

namespace optlease {
namespace {

// Every key with its member, once for writer and reader.
template <class Archive, class Figures>
void fields(Archive& a, Figures& f) {
  a("step", f.step);
  a("incarnation", f.incarnation);
  a("step_seconds", f.step_seconds);
  a("stream_begun_us", f.stream_begun_us);
  a("stream_ended_us", f.stream_ended_us);
  a("stream_seconds", f.stream_seconds);
  a("first_window_seconds", f.first_window_seconds);
  a("bytes_in", f.bytes_in);
  a("bytes_out", f.bytes_out);
  a("read_ahead_bytes", f.read_ahead_bytes);
  a("bounced_bytes", f.bounced_bytes);
  a("in_busy_seconds", f.in_busy_seconds);
  a("out_busy_seconds", f.out_busy_seconds);
  a("in_busy_seconds_after_first", f.in_busy_seconds_after_first);
  a("stall_seconds", f.stall_seconds);
  a("lease_wait_seconds", f.lease_wait_seconds);
  a("kernel_seconds", f.kernel_seconds);
  a("gather_exposed_seconds", f.gather_exposed_seconds);
  a("cpu_seconds", f.cpu_seconds);
  a("device_bytes_before", f.device_bytes_before);
  a("device_bytes_peak", f.device_bytes_peak);
  a("device_bytes", f.device_bytes);
  a("device_buffer_bytes", f.device_buffer_bytes);
  a("staging_bytes", f.staging_bytes);
}

}  // namespace

std::string step_log_file(const RunDirectory& run, Rank rank) {
  return run.path() + "/steps." + std::to_string(rank.value) + ".jsonl";
}

std::string to_json(const StepFigures& figures) {
  JsonFieldWriter writer;
  fields(writer, figures);
  return writer.text();
}

std::vector<StepFigures> step_figures_of(const std::string& text, size_t count_max) {
  std::map<Step, StepFigures> by_step;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    StepFigures figures;
    JsonFieldReader reader(line, JsonFieldReader::Nulls::kRefused);
    fields(reader, figures);
    if (!reader.error().empty()) continue;
    by_step[figures.step] = figures;
    if (by_step.size() > count_max) by_step.erase(by_step.begin());
  }
  std::vector<StepFigures> out;
  out.reserve(by_step.size());
  for (const auto& [step, figures] : by_step) out.push_back(figures);
  return out;
}

}  // namespace optlease
